"""How often something may be done: a bucket of tokens that fills at a steady rate.

The whole state is one number, the time at which the bucket will be full again, so it can be a column of a row that
several workers share. Whoever asks is told at once how many of the wanted tokens there are, and how long to wait for
the next; nothing here waits. A clock that was set back never costs more than the time an empty bucket takes to fill.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from msgspec import Struct

from redrive.errors import UsageError
from redrive.units import rate as parse_rate

FULL = 0.0  # the state of a bucket that nobody has used: full since the beginning of time

# A token that is this near counts as there. Times since 1970 are exact to a quarter of a microsecond only: without it,
# who waits as long as it was told could come a rounding error too early, for ever. It does not add up: what is taken
# is always paid for in full.
_NEARLY = 0.01


class Taken(NamedTuple):
    """The answer of a bucket."""

    granted: int
    state: float  # to be kept for the next time
    wait: float  # seconds until one more can be had; 0 if all that were wanted are granted


class Bucket(Struct, frozen=True):
    """`rate` tokens a second, of which at most `burst` are saved up.

    >>> door = Bucket(rate=4.0, burst=2)
    >>> door.take(FULL, now=100.0, wanted=3)
    Taken(granted=2, state=100.5, wait=0.25)
    """

    rate: float
    burst: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate > 0 and self.burst >= 1):
            raise UsageError(f"a limit of {self.rate}/s with a burst of {self.burst} lets nothing through")

    def take(self, state: float, now: float, wanted: int = 1) -> Taken:
        """As many of the wanted tokens as there are; who gets fewer asks again after `wait`."""
        full_at = self._full_at(state, now)
        spare = self.burst - (full_at - now) * self.rate
        granted = max(0, min(wanted, math.floor(spare + _NEARLY)))
        full_at += granted / self.rate
        missing = 0.0 if granted == wanted else 1 - (self.burst - (full_at - now) * self.rate)
        return Taken(granted, full_at, max(0.0, missing / self.rate))

    def give_back(self, state: float, now: float, count: int = 1) -> float:
        """The state if that many granted tokens were not used after all."""
        return max(now, self._full_at(state, now) - count / self.rate)

    def _full_at(self, state: float, now: float) -> float:
        # Later than an empty bucket would be full is a time of another clock, or of a slower rate.
        return min(max(state, now), now + self.burst / self.rate)


def bucket(limit: str, burst: int | None = None) -> Bucket:
    """A bucket from a text such as "100/s"; what one second brings is saved up, unless `burst` says otherwise.

    >>> bucket("30/m"), bucket("100/s").burst
    (Bucket(rate=0.5, burst=1), 100)
    """
    try:
        per_second = parse_rate(limit)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return Bucket(per_second, max(1, math.floor(per_second)) if burst is None else burst)


def paced(limit: str) -> Bucket:
    """A bucket for calls of others: hardly anything is saved up, so that no second sees much more than the rate."""
    whole = bucket(limit)
    return Bucket(whole.rate, max(1, math.ceil(whole.rate / 10)))
