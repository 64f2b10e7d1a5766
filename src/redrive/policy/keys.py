"""A breaker and a limit for each key: what may go now, and what waits how long.

A tenant that is not well must cost the others nothing. So what it holds back does not wait in memory, where there is
room for a few thousand events only, but as a letter that falls due when its key may be tried again. One in trouble
has a row; a breaker that has nothing to tell and a bucket that is full have none.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from redrive.policy.action import BREAKER_OPEN, RATE_LIMITED
from redrive.policy.breaker import Admission, Breaker, Rule, State, ramp_left
from redrive.policy.limiter import Taken

KEYS_MAX = 10_000  # breakers of one name that are not closed and clean; so many at once are no longer single tenants
PROBES_AGAIN = 1.0  # seconds until to ask again where others make all the probes


class Go(NamedTuple):
    """It may be called."""

    probe: bool


class Hold(NamedTuple):
    """It may not, for so long."""

    reason: str
    seconds: float


Verdict = Go | Hold


def name_of(name: str, key: str | None) -> str:
    """What the breaker of a key is called; what has no key, and the keys beyond `KEYS_MAX`, share the one without.

    >>> name_of("tenants", "acme"), name_of("tenants", None)
    ('tenants/acme', 'tenants/')
    """
    return f"{name}/{key or ''}"


def bounds(prefix: str) -> tuple[str, str]:
    """Between which names those with this prefix are, in the order of their code points.

    >>> bounds("tenants/")
    ('tenants/', 'tenants0')
    """
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def lets_all(breaker: Breaker, now: float) -> bool:
    """Need nobody ask it? It may count failures, but neither holds back nor slows down."""
    return breaker.state is State.CLOSED and not ramp_left(breaker, now)


def is_clean(breaker: Breaker, now: float) -> bool:
    """Is it as good as one that never was, so that its row may go?"""
    return lets_all(breaker, now) and not breaker.failures


def fades(breaker: Breaker, now: float) -> bool:
    """Will it be clean by itself, when its rate has grown enough?"""
    return breaker.state is State.CLOSED and not breaker.failures and not is_clean(breaker, now)


def shut_for(admission: Admission, rule: Rule) -> float:
    """How long what was not let through stays away, though somebody may close the breaker earlier."""
    if not math.isinf(admission.wait):
        return max(0.0, admission.wait)
    return min(PROBES_AGAIN, rule.cooldown) if admission.breaker.state is State.PROBING else rule.cooldown


def verdicts(count: int, admission: Admission, taken: Taken | None, rule: Rule) -> list[Verdict]:
    """What becomes of so many calls of one key: those that came first go first.

    `taken`: the answer of its bucket, where there is a limit and the breaker lets any through.
    """
    admitted = int(min(count, admission.room))
    going = admitted if taken is None else min(admitted, taken.granted)
    found: list[Verdict] = [Go(admission.breaker.state is State.PROBING)] * going
    if taken is not None:
        found += [Hold(RATE_LIMITED, taken.wait)] * (admitted - going)
    return found + [Hold(BREAKER_OPEN, shut_for(admission, rule))] * (count - admitted)


def waits_here(held: int, window_max: int) -> bool:
    """May what is over its limit wait in memory? Not if others might need the room."""
    return 2 * held <= window_max
