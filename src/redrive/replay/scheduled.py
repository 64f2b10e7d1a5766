"""Events that are appended later, as operators see them: what waits, for how long, and taking one back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from redrive.errors import UsageError
from redrive.event import check_id, withdrawal
from redrive.failpoints import hit
from redrive.replay.deed import Operator, need_reason
from redrive.replay.events import find_log
from redrive.store.port import Store

PAGE = 500


@dataclass(frozen=True, slots=True)
class Waiting:
    """One scheduled event. Times are seconds since 1970."""

    log: str
    id: str
    type: str
    key: str | None
    due_at: float
    set_at: float
    bytes: int
    seq: int  # of two that are due at the same time, the first comes first


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one log waits for."""

    log: str
    scheduled: int
    overdue: int  # of them: their time has come, and no worker has appended them yet
    next_at: float


@dataclass(frozen=True, slots=True)
class Sought:
    """Which of them; None: whichever."""

    log: str | None = None
    key: str | None = None
    type: str | None = None


EVERYTHING = Sought()


def waiting(store: Store, sought: Sought = EVERYTHING, limit: int = PAGE) -> list[Waiting]:
    """The next so many, in the order in which they are due."""
    with store.reading() as tx:
        if sought.log is not None:
            find_log(tx, sought.log)  # a name that is misspelt must not look like a log that waits for nothing
        values = {"log": sought.log, "key": sought.key, "type": sought.type, "limit": limit}
        return [Waiting(*row) for row in tx.sql.all("scheduled_page", values)]


def backlog(store: Store, now: float) -> Iterator[Backlog]:
    """By log, how much is scheduled and how much of it is late."""
    with store.reading() as tx:
        rows = tx.sql.all("scheduled_backlog", {"now": now})
    yield from (Backlog(*row) for row in rows)


def scheduled_for(store: Store, log: str) -> int:
    """How many events a log waits for."""
    return sum(one.scheduled for one in backlog(store, 0.0) if one.log == log)


def cancel(operator: Operator, id: str, reason: str, log: str | None = None) -> Waiting:
    """Take a scheduled event back, and write down who did and why."""
    need_reason("cancel", reason)
    check_id(id)
    with operator.transaction() as tx:
        found = [Waiting(*row) for row in tx.sql.all("scheduled_by_id", {"id": id, "log": log})]
        if len(found) > 1:
            raise UsageError(f"several logs wait for an event {id!r}: {', '.join(one.log for one in found)}; say --log")
        # Until the log is claimed a worker may have appended it.
        if not found or not tx.logs.append(found[0].log, [withdrawal(id)])[0][0][1]:
            raise UsageError(f"no event {id!r} is scheduled: it has come due, was cancelled, or is another log's")
        (one,) = found
        details = {"log": one.log, "type": one.type, "key": one.key, "due_at": one.due_at}
        operator.audit(tx, "cancel", "", f"event {id}", reason, details)
        hit("operator.before_commit")
    hit("operator.committed")
    operator.tell("cancel", "", f"event {id}")
    return one
