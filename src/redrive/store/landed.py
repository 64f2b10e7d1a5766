"""What a broker gave: how far each partition of it has landed, and the rows of its messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from redrive.codec import to_json
from redrive.event import Event, Stored
from redrive.store.append import Names
from redrive.store.sql import Row, Sql

if TYPE_CHECKING:
    from redrive.types import EventTypes


def positions(sql: Sql, subscription: int) -> dict[int, str]:
    """By partition, the last message that has landed."""
    return dict(sql.all("landed_all", {"subscription": subscription}))


def move(sql: Sql, subscription: int, to: Mapping[int, str]) -> None:
    """These have landed, in the transaction that holds their events."""
    sql.many("landed_put", [(subscription, partition, position) for partition, position in to.items()])


def known(sql: Sql, log: int, ids: Sequence[str]) -> dict[str, Row]:
    """Those of these ids that the log holds, with their type, key, schema and data."""
    if not ids:
        return {}
    rows: Iterable[Row] = sql.all("events_known", {"log": log, "ids": to_json([*ids]).decode()})
    return {row[0]: row[1:] for row in rows}


class Fields(Stored, Protocol):
    """What is stored of an event that comes from elsewhere: it has data."""

    @property
    def data_raw(self) -> bytes: ...


class Appended(NamedTuple):
    """The first and the last position of what was appended; the first is 0 if others may lie in between."""

    first: int
    position: int
    above: int  # nothing of the log lies between this position and the first

    def events(self, fields: Sequence[Fields], types: EventTypes) -> list[Event[Any]]:
        """What was appended, as it will be read; nothing, if it is not known where it lies."""
        at = self.first - 1
        if at < 0:
            return []
        return [
            Event(at := at + 1, e.id, e.type, e.key, None, e.schema, e.time_us, e.headers_raw, e.data_raw, types)
            for e in fields
        ]


def append_new(
    names: Names, sql: Sql, log_name: str, events: Sequence[Fields], *, is_first: bool, is_plain: bool = False
) -> Appended | None:
    """Append events that the log should not hold yet, without versions: who writes to a broker cannot ask for one.

    None if it holds one of them: then some are missing, the transaction is to be rolled back, and each looked at.
    `is_first`: nobody has made sure yet that the log says from where on it has events without. `is_plain`: all are of
    the first schema and without headers, as nearly all that a broker gives. Each parameter less makes it faster.
    """
    log = names.id_of(log_name, create=True)
    sql.claim((log,))
    above: int = sql.value("log_last", (log,))
    if is_first:
        sql.run("log_landed", {"log": log, "position": above + 1})
    if is_plain:
        rows: list[Row] = [(log, e.id, e.type, e.key, e.time_us, e.data_raw) for e in events]
    else:
        rows = [(log, e.id, e.type, e.key, e.schema, e.time_us, e.headers_raw, e.data_raw) for e in events]
    put = sql.put_all("event_land_plain" if is_plain else "event_land", rows)
    if put.size != len(rows):
        return None
    position: int = sql.value("log_last", (log,)) if put.last is None else put.last
    names.spans.passed(position)
    # Elsewhere others may number theirs in between, and a server may come back without what it has committed.
    return Appended(0 if sql.is_far else position - len(rows) + 1, position, above)
