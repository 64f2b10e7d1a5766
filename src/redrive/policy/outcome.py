"""What came of calling a user's function once: the vocabulary that `decide` reads.

An outcome is a fact about one call and says nothing about what to do next. The runner makes
them; it must never make `Failed` out of a shutdown or of a store that is down, because those
are not the event's fault and must not spend one of its attempts.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from redrive.policy.classify import blames_a_dependency


class Failure(Struct, frozen=True, gc=False):
    """An error as it is written into a letter: text only, cut to size, safe to store and to show."""

    error_type: str
    message: str
    traceback: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The function returned; its effects wait to be committed."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """The function raised `Ignore`: nothing to do for this event."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The function raised `Reject`: it can never process this event."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Postponed:
    """The function raised `RetryLater`; `after` is None when it left the time to the retry rule."""

    failure: Failure
    after: float | None
    error: BaseException | None = None  # only ever asked what it is: who says "later" may be unwell


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The stored bytes do not fit the event's type; the function was not called."""

    failure: Failure
    reason: str = "undecodable"


@dataclass(frozen=True, slots=True)
class Unkeyed:
    """`key_by` raised or gave no usable key; the function was not called."""

    failure: Failure


class Failed(Struct, frozen=True):  # as a Struct, like others of which a burst of failures makes many
    """The function raised, or overran its timeout."""

    error: BaseException  # only ever asked what it is (isinstance); its text is in `failure`, made safe by the runner
    failure: Failure


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Somebody else wrote first: a version conflict, or keyed state that moved."""

    error: BaseException
    failure: Failure
    reruns: int  # re-runs in place that came before this call; 0 the first time


@dataclass(frozen=True, slots=True)
class StoreDown:
    """The store did not answer or refused: nothing is known to be wrong with the event."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker was told to stop while the function ran."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process died while this event ran alone, `charges` times by now."""

    charges: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """It was not called: a breaker is open, or a budget spent, and the program has it buried rather than wait."""

    reason: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Held:
    """It was not called, and is not to wait in memory: the breaker or the limit of its key lets it through later."""

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
