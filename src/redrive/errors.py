"""Errors, sorted by whose fault they are, and the verdicts a function may raise.

`UsageError`: fix the program. `EventError`: this event; the engine decides its fate.
`StoreError`: the world; the engine backs off and spends no attempt. `BugError`: ours; the
subscription stops. Every message says what happened and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from redrive.units import duration


class RedriveError(Exception):
    """Everything redrive raises on purpose."""


class UsageError(RedriveError):
    """The program or its configuration is wrong; nothing was started or written."""


class Unfit(UsageError):
    """A subscription as it is declared does not fit what the store holds of it; the others do not depend on it."""

    subscription = ""


class EventError(RedriveError):
    """One event cannot be stored or processed as it is."""


class Undecodable(EventError):
    """The stored bytes do not fit the event's type."""

    reason = "undecodable"


class Refused(Undecodable):
    """What a broker gave is not an event that a function could be called with; `reason` says in a word why."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BadKey(EventError):
    """`key_by` gave no usable key for this event."""


class VersionConflict(EventError):
    """`expected_version` did not match: somebody else wrote to the key first."""

    def __init__(self, log: str, key: str | None, expected: int, actual: int) -> None:
        super().__init__(
            f"log {log!r}, key {key!r}: expected version {expected}, found {actual}; read the key again and retry"
        )
        self.log, self.key, self.expected, self.actual = log, key, expected, actual


class IdConflict(EventError):
    """An event with this id is stored already, with other content."""


class StoreError(RedriveError):
    """The store did not do what was asked; nothing was decided about any event."""

    store: object | None = None  # which one, if it has left a store's hands

    def of(self, store: object) -> Self:
        """It comes from this store, if it does not come from another one. A function may have to do with several."""
        self.store = self.store or store
        return self


class StoreBusy(StoreError):
    """Somebody else held the write lock for too long."""


class NotBegun(StoreError):
    """The connection was lost before anything was done on it: to do it on another is safe."""


class StoreGone(StoreError):
    """The store's file is not in its place any more; nothing was written."""


class ConnectionLost(StoreError):
    """The connection ended inside a transaction."""

    code = ""  # the SQLSTATE that the server gave
    server: float | None = None  # when that server was started
    positions: frozenset[int] = frozenset()  # of the events whose functions or statements ran
    alone = False  # did they run behind a mark?


class CommitUnknown(ConnectionLost):
    """COMMIT was sent and no answer came: it may have happened. Look before acting."""


class Unreachable(StoreError):
    """No server answered."""


class TransactionEnded(StoreError):
    """A statement ended the transaction; nothing was written. Who begins it again finds out whose it was."""


class CommitRefused(StoreError):
    """A constraint that is checked at the end was broken; nothing was written. `error`: what the driver says."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(f"{url}: COMMIT was refused, nothing was written: {str(error).strip()}")
        self.error = error


class Fenced(StoreError):
    """Another worker owns the subscription now; nothing of ours was written."""


class Halted(StoreError):
    """A subscription cannot go on; the message says why.

    The engine halts that subscription and tries again. `run(until_idle=True)` and `serve(until_idle=True)` raise this
    at their end; `subscriptions` then holds the reason of each halted subscription, by name.
    """

    def __init__(self, message: str = "", subscriptions: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.subscriptions = dict(subscriptions or {})

    @classmethod
    def at_end(cls, subscriptions: Mapping[str, str]) -> Self:
        """Make the error of a run that ends while these subscriptions are halted."""
        reasons = "; ".join(f"{name}: {why.removeprefix(f'{name}: ')}" for name, why in sorted(subscriptions.items()))
        count = "1 subscription is" if len(subscriptions) == 1 else f"{len(subscriptions)} subscriptions are"
        return cls(f"{count} halted: {reasons}; remove the cause, then run again", subscriptions)


class Differs(StoreError):
    """This process may not work on the subscription now: it stands by, and the message says why."""

    def __init__(self, message: str, *, may_declare: bool = False) -> None:
        super().__init__(message)
        self.may_declare = may_declare  # once no living process declares what the store has
        self.subscription = ""


class SourceDown(StoreError):
    """A broker cannot be reached, or does not answer; it is tried again."""


class MirrorDown(StoreError):
    """A mirror of letters cannot be written to; it is tried again, and the letters are where they are."""


class BugError(RedriveError):
    """redrive itself is wrong. Please report it."""


class Verdict(Exception):
    """What a function raises to say what it means; not a failure of the function."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Reject(Verdict):
    """This event can never be processed: a dead letter at once, no retry."""


class Ignore(Verdict):
    """This event needs no processing: settled, counted as ignored, effects dropped."""


class RetryLater(Verdict):
    """Not now: try again after the given time. Spends an attempt, so it ends."""

    def __init__(self, after: str | float = "", reason: str = "") -> None:
        super().__init__(reason)
        self.after = duration(after) if after != "" else None


def is_conflict(error: BaseException | None) -> bool:
    """Did the database end one of two transactions that were in each other's way? Then once more is all it takes."""
    while error is not None:
        if str(getattr(error, "sqlstate", None) or "").startswith("40"):  # SQL's own class for it: rolled back
            return True
        error = error.__cause__
    return False
