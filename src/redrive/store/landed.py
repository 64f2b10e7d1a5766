"""What a broker gave: how far each partition of it has landed, and the rows of its messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from redrive.codec import from_json, to_json
from redrive.event import NewEvent
from redrive.store.append import Names
from redrive.store.sql import Row, Sql

KEYS_MAX = 100_000  # whose versions are remembered


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


class Versions:
    """The last version of each key of a log, for as long as nobody else appends to it."""

    __slots__ = ("_known", "upto")

    def __init__(self) -> None:
        self.upto = -1  # the last position that they include
        self._known: dict[str, int] = {}

    def of(self, sql: Sql, log: int, keys: set[str], last: int) -> dict[str, int]:
        """At least those of these keys, to be counted on; None of it holds if the transaction does not commit.

        `last`: the last position of the log now.
        """
        if self.upto != last or len(self._known) > KEYS_MAX:
            self._known = {}
        if new := keys - self._known.keys():
            self._known |= from_json(sql.value("key_versions", (log, to_json([*new]).decode())))
        self.upto = -1
        return self._known

    def counted(self, upto: int, others: Iterable[str | None]) -> None:
        """They hold up to this position, but for these keys, which others have counted on."""
        self.upto = upto
        for key in others:
            self._known.pop(key, None)  # type: ignore[arg-type]


def append_new(
    names: Names, sql: Sql, log_name: str, events: Sequence[NewEvent], versions: Versions
) -> tuple[int, bool]:
    """Append events that the log should not hold yet. The last position, and whether it held none of them.

    If it did, some are missing: the transaction is to be rolled back, and each of them looked at.
    """
    log = names.id_of(log_name, create=True)
    sql.claim((log,))
    keys = {event.key for event in events}
    keys.discard(None)
    last = versions.of(sql, log, keys, sql.value("log_last", (log,)))  # type: ignore[arg-type]
    rows: list[Row] = []
    for id, kind, key, schema, time_us, headers, data, _, _, _, _ in events:
        version = None
        if key is not None:
            version = last[key] = last[key] + 1
        rows.append((log, id, kind, key, version, schema, time_us, headers, data))
    if sql.put_all("event_land", rows) != len(rows):
        return 0, False
    position: int = sql.value("log_last", (log,))
    names.spans.passed(position)
    return position, True
