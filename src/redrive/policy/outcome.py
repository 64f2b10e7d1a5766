"""What came of calling a user's function once: the vocabulary that `decide` reads.

An outcome is a fact about one call and says nothing about what to do next. The runner makes
them; it must never make `Failed` out of a shutdown or of a store that is down, because those
are not the event's fault and must not spend one of its attempts.
"""

from __future__ import annotations

from msgspec import Struct

from redrive.policy.classify import blames_a_dependency


class Failure(Struct, frozen=True, gc=False):
    """An error as it is written into a letter: text only, cut to size, safe to store and to show."""

    error_type: str
    message: str
    traceback: str
    fingerprint: str


class Applied(Struct, frozen=True):
    """The function returned; its effects wait to be committed."""


class Ignored(Struct, frozen=True):
    """The function raised `Ignore`: nothing to do for this event."""

    reason: str


class Rejected(Struct, frozen=True):
    """The function raised `Reject`: it can never process this event."""

    failure: Failure


class Postponed(Struct, frozen=True):
    """The function raised `RetryLater`; `after` is None when it left the time to the retry rule."""

    failure: Failure
    after: float | None
    error: BaseException | None = None  # only ever asked what it is: who says "later" may be unwell


class Unreadable(Struct, frozen=True):
    """The stored bytes do not fit the event's type; the function was not called."""

    failure: Failure
    reason: str = "undecodable"


class Unkeyed(Struct, frozen=True):
    """`key_by` raised or gave no usable key; the function was not called."""

    failure: Failure


class Failed(Struct, frozen=True):  # as a Struct, like others of which a burst of failures makes many
    """The function raised, or overran its timeout."""

    error: BaseException  # only ever asked what it is (isinstance); its text is in `failure`, made safe by the runner
    failure: Failure


class Conflicted(Struct, frozen=True):
    """Somebody else wrote first: a version conflict, or keyed state that moved."""

    error: BaseException
    failure: Failure
    reruns: int  # re-runs in place that came before this call; 0 the first time


class StoreDown(Struct, frozen=True):
    """The store did not answer or refused: nothing is known to be wrong with the event."""

    error: BaseException


class Stopped(Struct, frozen=True):
    """The worker was told to stop while the function ran."""


class Crashed(Struct, frozen=True):
    """The process died while this event ran alone, or its connection to the store was lost, `charges` times by now."""

    charges: int
    lost: int = 0  # so many of them are lost connections


class Blocked(Struct, frozen=True):
    """It was not called: a breaker is open, or a budget spent, and the program has it buried rather than wait."""

    reason: str
    failure: Failure


class Held(Struct, frozen=True):
    """It was not called, and is not to wait in memory: its key's breaker, limit or hold lets it through later."""

    reason: str
    seconds: float


NO_FAILURE = Failure("", "", "", "")

Outcome = (
    Applied
    | Ignored
    | Rejected
    | Postponed
    | Unreadable
    | Unkeyed
    | Failed
    | Conflicted
    | StoreDown
    | Stopped
    | Crashed
    | Blocked
    | Held
)

APPLIED = Applied()  # these two carry nothing, so one of each is enough for the hot path
STOPPED = Stopped()


def error_in(outcome: Outcome | None) -> BaseException | None:
    """The error of a call that failed. A verdict is none, unless somebody else had us say it: `Retry-After`."""
    match outcome:
        case Failed(error=error) | Conflicted(error=error):
            return error
        case Postponed(error=BaseException() as error) if blames_a_dependency(error):
            return error
    return None
