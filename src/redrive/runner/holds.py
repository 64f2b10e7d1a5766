"""Held keys: what an operator keeps back, as the owner of a subscription sees it.

A new event of a held key is not called: its outcome is HELD, and it becomes a letter like one whose breaker is open. A
letter of a held key that is due is kept back in memory alone, so that a release leaves it as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.clock import Clock
from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.holds import NO_HOLDS, Holds
from redrive.policy.lanes import Head, Lanes
from redrive.policy.outcome import NO_FAILURE
from redrive.store.holds import holds_of
from redrive.store.port import StoreTx

if TYPE_CHECKING:
    from redrive.runner.duty import Work

HELD = out.Held(act.HELD, 0.0)  # an operator holds its key; until when is looked up as it is written

Due = list[tuple[str | None, Head]]


class KeyHolds:
    """The holds of one subscription; false if there are none, so that they cost one look."""

    __slots__ = ("_are_lanes", "_clock", "now", "subscription")

    def __init__(self, subscription: int, clock: Clock, *, are_lanes: bool) -> None:
        """`are_lanes`: a lane is called like the key of its events. Else only an event tells its key."""
        self.subscription, self._clock, self._are_lanes = subscription, clock, are_lanes
        self.now = NO_HOLDS  # another object whenever they changed

    def __bool__(self) -> bool:
        return bool(self.now)

    def load(self, tx: StoreTx, lanes: Lanes) -> None:
        """Read them again: somebody may have changed them."""
        found = holds_of(tx.sql, self.subscription)
        if found or self.now:
            self.now = Holds(found, now=self._clock.now())
            lanes.release()

    def until(self, key: str | None) -> float | None:
        """How long this key is held; None: it is not."""
        return self.now.until(key, self._clock.now())

    def keep_back(self, work: Work) -> bool:
        """Is the key of this new event held? Then that is its fate."""
        if work.outcome is None and self.until(work.key) is not None:
            work.outcome = HELD
        return work.outcome is HELD

    def drop_ended(self) -> None:
        """Holds that have ended cost nothing any more."""
        self.now = self.now.still(self._clock.now())

    def sift(self, due: Due, lanes: Lanes) -> Due:
        """Letters that are due, but for those of a held key, as far as their lane tells it."""
        if not (self and self._are_lanes):
            return due
        free = []
        for lane, head in due:
            if (until := self.until(lane)) is None:
                free.append((lane, head))
            else:
                lanes.hold(lane, head, until)
        return free

    def letter(self, key: str | None) -> act.Park:
        """What becomes of a new event. If its hold was released meanwhile, it is due at once."""
        now = self._clock.now()
        until = self.until(key) or now
        return act.Park(until, until - now, NO_FAILURE, act.HELD, spent=False)
