"""Events that came too fast, out of the log beside their log: let in, or left out for good; each once, in order.

How far it has got is kept in the transaction that lets them in, so that an interruption loses and doubles nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from redrive.errors import UsageError
from redrive.event import NewEvent
from redrive.failpoints import hit
from redrive.replay.deed import Operator
from redrive.replay.events import find_log
from redrive.store.port import StoreTx
from redrive.tracking.intake import LIMITED

BATCH_MAX = 1_000  # in one transaction: bounds how long the write lock is held
EVERYTHING = 2**62


@dataclass(frozen=True, slots=True)
class Admitted:
    """How many were let in (or left out) now, and how many still wait."""

    done: int
    left: int


def waiting(operator: Operator, log: str) -> int:
    """How many events wait beside this log."""
    with operator.store.reading() as tx:
        return _waiting(tx, log)


def admit(
    operator: Operator, log: str, *, count: int = EVERYTHING, discard: bool = False, reason: str = ""
) -> Admitted:
    """Let the oldest in, at most so many; or with `discard` leave them out. They stay in the log beside, as history."""
    if discard and not reason.strip():
        raise UsageError("to leave events out needs a reason; it goes into the audit")
    done = 0
    while done < count:
        moved = _batch(operator, log, min(BATCH_MAX, count - done), discard, reason)
        done += moved
        if moved < BATCH_MAX:
            break
    if done:
        operator.tell("discard limited" if discard else "admit", "", f"log {log}")
    return Admitted(done, waiting(operator, log))


def _batch(operator: Operator, log: str, count: int, discard: bool, reason: str) -> int:
    side = log + LIMITED
    with operator.transaction() as tx:
        after = _bookmark(tx, side)
        rows = tx.logs.after(tx.logs.id_of(side), after, count)
        if not rows:
            return 0
        if not discard:
            tx.logs.append(
                log, [NewEvent(row[1], row[2], row[3], row[5], row[6], row[7], bytes(row[8])) for row in rows]
            )
        tx.books.set(_name(side), rows[-1][0])
        details = {"log": log, "events": len(rows), "after": after, "upto": rows[-1][0]}
        operator.audit(tx, "discard limited" if discard else "admit", "", f"log {log}", reason, details)
        hit("operator.before_commit")
    return len(rows)


def _waiting(tx: StoreTx, log: str) -> int:
    number = tx.logs.id_of(log + LIMITED)
    if not number:
        find_log(tx, log)  # a name that is misspelt must not look like a log of which nothing waits
        return 0
    after, count = _bookmark(tx, log + LIMITED), 0
    while rows := tx.logs.after(number, after, BATCH_MAX):
        count, after = count + len(rows), rows[-1][0]
    return count


def _bookmark(tx: StoreTx, side: str) -> int:
    return int(tx.books.get(_name(side)) or 0)


def _name(side: str) -> str:
    return f"admitted {side}"
