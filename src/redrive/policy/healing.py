"""Automatic replay: which dead letters are sent round again without anybody asking, when, in which order, how fast.

At the times of a cron line, or when a dependency is well again, the oldest heads of lanes whose failure may pass go
first: one alone, then more at a time as long as all goes well. The first failure that blames the dependency ends
it until the next time. No letter is replayed automatically more than `times` times, whatever happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from redrive.policy.action import ATTEMPTS_EXHAUSTED, BREAKER_OPEN, RETRY_LIMITED
from redrive.policy.auto_replay import AutoReplay
from redrive.policy.cron import next_time as next_of_line
from redrive.policy.limiter import Bucket

# Why a letter died that may be applied another time. A Reject, what cannot be read, an error that is for good, and
# what kills its worker stay until a person has looked.
MAY_PASS = frozenset({ATTEMPTS_EXHAUSTED, BREAKER_OPEN, RETRY_LIMITED})

IN_FLIGHT_MAX = 100  # asked for and not run yet
RATE_START = 1.0  # replays a second
DOUBLES_AFTER = 10  # replays that went well


class Cause(StrEnum):
    """Why a run begins."""

    CRON = "cron"
    RECOVERY = "recovery"


class Ending(StrEnum):
    """How a run ended."""

    DONE = "done"
    RELAPSE = "relapse"  # the dependency failed again, or its breaker opened
    CANCELLED = "cancelled"  # by an operator


class DeadLetter(NamedTuple):
    """A dead letter, as far as it matters here."""

    letter: int
    position: int
    lane: str | None
    reason: str
    dependency: str | None
    replays: int  # automatic ones so far
    died_at: float
    rev: int
    operation: int | None = None  # the last that replayed it
    is_head: bool = True


class Seen(NamedTuple):
    """What has been answered already. Stored, so that a restart neither forgets a time nor answers it twice."""

    cron_at: float  # the times up to here
    recoveries: int  # the closings of the breaker up to this one
    operation: int | None = None  # the one under way
    cause: Cause | None = None
    first: int | None = None  # the operation that the run began with


class Run(NamedTuple):
    """How far an operation is."""

    applied: int
    failed: int
    waiting: int  # asked for, and not run yet
    left: int  # not asked for
    cancelled: bool
    relapsed: bool


class Ask(NamedTuple):
    """Replay up to so many more, as fast as the bucket gives."""

    room: int
    pace: Bucket


class Wait(NamedTuple):
    """Look again when something has come of those that were asked for."""


class End(NamedTuple):
    """It is over."""

    how: Ending


WAIT = Wait()


# ------------------------------------------------------------ when


def look(rule: AutoReplay, seen: Seen, now: float, recoveries: int, *, is_well: bool) -> tuple[Seen, Cause | None]:
    """Is it time for a run? And what has been answered by that.

    A dependency that is not well is left alone: its letters wait for its recovery, or for the next time.
    """
    # A copied store counts from nought, and a clock that was set back must not silence the cron.
    seen = seen._replace(recoveries=min(seen.recoveries, recoveries), cron_at=min(seen.cron_at, now))
    if rule.on_recovery and is_well and recoveries > seen.recoveries:
        return seen._replace(recoveries=recoveries, cause=Cause.RECOVERY), Cause.RECOVERY
    due_at = next_time(rule, seen.cron_at)
    if due_at is None or due_at > now:
        return seen, None
    seen = seen._replace(cron_at=now)
    return (seen._replace(cause=Cause.CRON), Cause.CRON) if is_well else (seen, None)


def next_time(rule: AutoReplay, after: float) -> float | None:
    """The first time of the cron line after this one; None if there is no cron line."""
    return None if rule.cron is None else next_of_line(rule.cron, after)


# ------------------------------------------------------------ which


def why_not(rule: AutoReplay, letter: DeadLetter, now: float, dependency: str | None, first: int | None = None) -> str:
    """Why a letter is left alone, or nothing.

    `dependency`: only letters that name it. `first`: what this run, which began with that operation, has replayed and
    is dead again is left until the next time.
    """
    if not letter.is_head:
        return "it waits behind another letter"
    if first is not None and letter.operation is not None and letter.operation >= first:
        return "it was replayed and is dead again"
    if letter.reason not in MAY_PASS:
        return f"it died of {letter.reason}, which does not pass by itself"
    if letter.replays >= rule.times:
        return f"it was replayed automatically {letter.replays} times"
    if rule.max_age is not None and now - letter.died_at > rule.max_age:
        return "it has been dead for too long"
    if dependency is not None and letter.dependency != dependency:
        return f"it does not name {dependency}"
    return ""


def next_letters(letters: Iterable[DeadLetter], room: int) -> list[DeadLetter]:
    """Which go first: the oldest, one of each lane."""
    chosen: list[DeadLetter] = []
    lanes: set[str] = set()
    for letter in sorted(letters, key=lambda letter: letter.position):
        if len(chosen) >= room:
            break
        if letter.lane is None or letter.lane not in lanes:
            chosen.append(letter)
            lanes |= {letter.lane} if letter.lane is not None else set()
    return chosen


# ------------------------------------------------------------ how fast, and how long


def step(rule: AutoReplay, run: Run) -> Ask | Wait | End:
    """What to do next about an operation that is under way."""
    if run.cancelled:
        return End(Ending.CANCELLED)
    if run.relapsed:
        return End(Ending.RELAPSE)
    if not run.left:
        return WAIT if run.waiting else End(Ending.DONE)
    well = max(0, run.applied - run.failed)
    room = min(run.left, min(1 + well, IN_FLIGHT_MAX) - run.waiting)
    return Ask(room, pace(rule, well)) if room > 0 else WAIT


def pace(rule: AutoReplay, well: int) -> Bucket:
    """How many a second, after so many more went well than failed: little at first, never more than the rule's rate.

    >>> [pace(AutoReplay(rate=10.0), well).rate for well in (0, 10, 30, 1_000_000)]
    [1.0, 2.0, 8.0, 10.0]
    """
    doublings = min(well / DOUBLES_AFTER, 62.0)
    rate = min(rule.rate, RATE_START * 2.0**doublings)
    return Bucket(rate, max(1, math.ceil(rate / 10)))
