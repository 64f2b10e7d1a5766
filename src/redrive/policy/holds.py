"""Holds: keys whose events an operator keeps back, until a time or until they are released.

The owner's cache. A hold covers one key, or every key that begins with a prefix, so also keys that no event had before.
An event without a key is never held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

FOREVER = 253_402_300_799.0  # the last second of the year 9999: when a held letter is due that waits for a release
ALL = 0  # in place of a subscription: a hold of every one


class Hold(NamedTuple):
    """A key, or a prefix of keys, that is held back."""

    id: int
    subscription: int  # ALL: every subscription
    pattern: str
    is_prefix: bool
    until: float | None  # None: until it is released
    set_at: float
    who: str
    reason: str

    @property
    def shown(self) -> str:
        """The pattern as an operator writes it."""
        return f"{self.pattern}*" if self.is_prefix else self.pattern

    def covers(self, key: str) -> bool:
        """Is this key held back?"""
        return key.startswith(self.pattern) if self.is_prefix else key == self.pattern

    def ends_at(self, now: float) -> float:
        """When it ends. If the clock was set back since, its whole time starts again, as a retry's delay does."""
        if self.until is None:
            return FOREVER
        return self.until if now >= self.set_at else now + (self.until - self.set_at)


class Holds:
    """The holds of one subscription, to be asked about a key.

    >>> holds = Holds([Hold(1, ALL, "tenant-7/", True, None, 0.0, "ada", "migration")], now=0.0)
    >>> holds.until("tenant-7/ada", 5.0) == FOREVER, holds.until("tenant-8/ada", 5.0)
    (True, None)
    """

    __slots__ = ("_keys", "_lengths", "_prefixes", "first_end")

    def __init__(self, holds: Iterable[Hold] = (), *, now: float = 0.0) -> None:
        self._keys: dict[str, float] = {}
        self._prefixes: dict[str, float] = {}
        self.first_end = FOREVER  # before it no hold ends by itself
        for hold in holds:
            ends_at, ends = hold.ends_at(now), self._prefixes if hold.is_prefix else self._keys
            if ends_at > now:
                ends[hold.pattern] = max(ends_at, ends.get(hold.pattern, 0.0))
                self.first_end = min(self.first_end, ends_at)
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})  # so that a look takes no longer for many

    def __bool__(self) -> bool:
        return bool(self._keys or self._prefixes)

    def until(self, key: str | None, now: float) -> float | None:
        """How long this key is held: to the end of the last hold that covers it. None: it is not held."""
        if key is None:
            return None
        ends: Mapping[str, float] = self._prefixes
        latest = max((ends.get(key[:length], 0.0) for length in self._lengths), default=0.0)
        latest = max(latest, self._keys.get(key, 0.0))
        return latest if latest > now else None

    def still(self, now: float) -> Holds:
        """Those that have not ended."""
        if now < self.first_end:
            return self
        rest = Holds()
        rest._keys = {key: end for key, end in self._keys.items() if end > now}
        rest._prefixes = {prefix: end for prefix, end in self._prefixes.items() if end > now}
        rest._lengths = sorted({len(prefix) for prefix in rest._prefixes})
        rest.first_end = min([FOREVER, *rest._keys.values(), *rest._prefixes.values()])
        return rest


NO_HOLDS = Holds()
