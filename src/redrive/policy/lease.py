"""Who owns a subscription, and when that may change.

A lease only says who should be working; what keeps two owners apart is the epoch, which every
settling transaction checks. So a wrong guess here costs a hand-over and never a doubled effect,
and the questions below may be answered generously.
"""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct

from redrive.policy.machine import step


class Lease(Struct, frozen=True):
    """The ownership columns of a subscription's row."""

    owner: str | None  # None: released, free for anybody
    epoch: int
    until: float
    unclean: bool  # set when it is taken, cleared by a graceful release: still set means the owner died
    boot_id: str  # of the machine the owner ran on, when it took the lease


class State(StrEnum):
    """What a lease is to somebody looking at it now."""

    FREE = "free"
    HELD = "held"
    EXPIRED = "expired"


class Verb(StrEnum):
    """What happens to a lease."""

    TAKE = "take"  # the epoch grows
    RENEW = "renew"  # the epoch stays
    RELEASE = "release"
    LAPSE = "lapse"  # its time ran out, or its owner is known to be dead


TRANSITIONS: dict[tuple[State, Verb], State] = {
    (State.FREE, Verb.TAKE): State.HELD,
    (State.HELD, Verb.RENEW): State.HELD,
    (State.HELD, Verb.RELEASE): State.FREE,
    (State.HELD, Verb.LAPSE): State.EXPIRED,
    (State.EXPIRED, Verb.TAKE): State.HELD,
    # The owner overslept and nobody came: its epoch still stands, so it may go on as if nothing had been.
    (State.EXPIRED, Verb.RENEW): State.HELD,
    (State.EXPIRED, Verb.RELEASE): State.FREE,
}


def next_state(state: State, verb: Verb) -> State:
    """The state of a lease after `verb`; BugError if that cannot happen."""
    return step(TRANSITIONS, state, verb)


def state_of(
    lease: Lease, *, now: float, owner_is_dead: bool, unchanged_for: float = 0.0, length: float = math.inf
) -> State:
    """What the lease is worth now.

    `unchanged_for` is how long, on the looker's own monotonic watch, the row has not moved. A whole
    `length` without a renewal means the owner is gone, even if a clock set back shows hours to go.
    """
    if lease.owner is None:
        return State.FREE
    lapsed = owner_is_dead or now >= lease.until or unchanged_for >= length
    return State.EXPIRED if lapsed else State.HELD


def may_take(
    lease: Lease,
    *,
    me: str,
    now: float,
    owner_is_dead: bool,
    unchanged_for: float = 0.0,
    length: float = math.inf,
) -> bool:
    """Whether `me` may take the lease now, under a new epoch.

    >>> may_take(Lease("a", 7, until=10.0, unclean=True, boot_id="x"), me="b", now=9.9, owner_is_dead=False)
    False
    """
    # Mine already: after a commit whose answer was lost, taking it again is how to be sure.
    if lease.owner == me:
        return True
    state = state_of(lease, now=now, owner_is_dead=owner_is_dead, unchanged_for=unchanged_for, length=length)
    return (state, Verb.TAKE) in TRANSITIONS


def renew_at(taken_at: float, length: float) -> float:
    """When to renew a lease taken now: after a third of it, so that two renewals may fail before the third is late."""
    return taken_at + length / 3


def is_crash(lease: Lease, boot_id: str) -> bool:
    """Whether the last owner died by itself: not released, and the machine has not been restarted under it."""
    return lease.unclean and lease.boot_id == boot_id


def rebase(due_at: float, set_at: float, delay: float, now: float, delay_max: float) -> float:
    """When something is due, though the wall clock may have been set back since `set_at`.

    If the clock ran backwards nobody knows how much of the delay has passed, so all of it starts again
    from `now`; store that as the new `set_at`, or it starts again at every look. In no case is
    anything due later than `delay_max` from now.
    """
    due = due_at if now >= set_at else now + max(0.0, delay)
    return min(due, now + max(0.0, delay_max))
