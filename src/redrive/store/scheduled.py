"""Events that wait for their time: a row committed with whatever asked for it, which becomes an event when it is due.

Whoever writes here has claimed the log, so that an id is in the log or waits, never both, and each leaves once: by the
delete that is committed with the append, or by one that takes it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import Struct

from redrive.errors import BugError, VersionConflict
from redrive.event import NewEvent, withdrawal
from redrive.store.sql import Row, Sql

if TYPE_CHECKING:
    from redrive.store.port import StoreTx

_EVENT = 9  # columns of an event of the log; one that waits has its due time behind them


class NoLongerScheduled(VersionConflict):
    """It was still scheduled when the function looked, and has come due since: look again."""

    def __init__(self, log: str, id: str) -> None:
        super().__init__(log, None, 0, 0)
        self.args = (f"log {log!r}: event {id!r} came due while it was being taken back; run again",)


class DueEvent(Struct, frozen=True):
    """One whose time has come."""

    log_id: int
    log: str
    due_at: float
    event: NewEvent


def waiting_row(log: int, event: NewEvent) -> Row:
    """The columns of `scheduled_add` and `scheduled_emit`."""
    due = event.due
    assert due is not None
    return (
        log, event.id, event.type, event.key, event.schema, due.time_us, event.headers_raw, event.data_raw,
        due.at, due.set_at, due.delay,
    )  # fmt: skip


def found(row: Row) -> Row:
    """A row of `event_or_scheduled` or `event_by_id` as append returns it: one that waits ends with its due time."""
    if row[0] is not None:
        return row[:_EVENT]
    return (*row[:6], _time_us(row[6], row[9]), *row[7:])


def taken_back(sql: Sql, log: int, log_name: str, event: NewEvent) -> Row:
    """Delete what waits. Who looked before (a handler, whose wish is derived) must find it; others are told."""
    gone = sql.run("scheduled_drop", {"log": log, "id": event.id})
    if not gone and event.derived:
        raise NoLongerScheduled(log_name, event.id)
    return (None, bool(gone))


def is_scheduled(sql: Sql, log: str, id: str) -> bool:
    """Does an event with this id wait for its time?"""
    return sql.value("scheduled_has", {"log": log, "id": id}) is not None


def take_back(tx: StoreTx, log: str, id: str, *, quiet: bool) -> bool:
    """Take a scheduled event back inside a transaction; was it there?

    `quiet`: it was done long ago and is not done again. What neither waits nor has come was taken back then.
    """
    wish = withdrawal(id)
    if quiet:
        number = tx.logs.id_of(log)
        return bool(number) and tx.sql.one("event_or_scheduled", (number, id)) is None
    rows, _ = tx.logs.append(log, [wish])
    return bool(rows[0][1])


def next_due(sql: Sql, now: float) -> tuple[float | None, bool]:
    """When the next event is due, and whether the clock was set back since one was scheduled."""
    due_at, set_at = sql.one("scheduled_next") or (None, None)
    return due_at, set_at is not None and set_at > now


def take_due(sql: Sql, now: float, limit: int) -> list[DueEvent]:
    """Remove the events that are due, in their order, for the caller to append them in the same transaction."""
    if next_due(sql, now)[1]:
        sql.run("scheduled_rebase", {"now": now})
    asked = {"now": now, "limit": limit}
    logs = {log for (log,) in sql.all("scheduled_logs", asked)}
    sql.claim(logs)  # and look again: another worker may have been here
    rows = [row for row in sql.all("scheduled_due", asked) if row[1] in logs]
    if rows and sql.many("scheduled_take", [(row[0],) for row in rows]) != len(rows):
        raise BugError("a scheduled event left while its log was claimed")
    return [_due_event(row) for row in rows]


def batches(due: Sequence[DueEvent]) -> Iterator[tuple[str, list[NewEvent]]]:
    """As they are appended: neighbours of one log together."""
    for log, events in groupby(due, lambda one: one.log):
        yield log, [one.event for one in events]


def _due_event(row: Row) -> DueEvent:
    _, log_id, log, id, kind, key, schema, time_us, headers, data, due_at = row
    event = NewEvent(id, kind, key, schema, _time_us(time_us, due_at), headers, data, None, True, True)
    return DueEvent(log_id, log, due_at, event)


def _time_us(given: int | None, due_at: float) -> int:
    return round(due_at * 1e6) if given is None else given
