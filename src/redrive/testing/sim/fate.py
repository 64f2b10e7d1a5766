"""What chance has in store for an operation: drawn from the world's dice, in the order of the operations."""

from __future__ import annotations

import random

from redrive.testing.sim.options import Faults

SLOW, LOST_TIME_MAX = 0.05, 0.06  # a look at the clock, seconds: enough to end a batch now and then
STATEMENTS = 12  # of a transaction: one of the first so many fails when the disk gives up


class Fate:
    """Draws faults while there are any; `Faults()` is a world without."""

    def __init__(self, dice: random.Random, faults: Faults, latency: float) -> None:
        self.dice, self.faults, self._latency = dice, faults, latency

    def latency(self) -> float:
        """How long an operation takes."""
        return self.dice.expovariate(1.0) * self._latency

    def passing(self) -> str:
        """What happens between two operations."""
        return self._draw(
            ("crash", self.faults.crash / 2), ("error", self.faults.error), ("stall", self.faults.stall)
        )  # fmt: skip

    def commit(self) -> str:
        """How a transaction ends."""
        faults = self.faults
        return self._draw(
            ("crash before", faults.crash / 2), ("crash after", faults.crash), ("error", faults.error),
            ("unknown, done", faults.unknown / 2), ("unknown, lost", faults.unknown / 2), ("midway", faults.midway),
        )  # fmt: skip

    def midway(self, fate: str) -> tuple[int, bool]:
        """Which statement of a transaction fails (0: none), and whether SQLite rolls back by itself."""
        return (self.dice.randint(1, STATEMENTS), self.dice.random() < 0.5) if fate == "midway" else (0, False)

    def slow(self) -> bool:
        """Does time pass while a job runs?"""
        return self.dice.random() < SLOW

    def lost_time(self) -> float:
        """How much of it."""
        return self.dice.random() * LOST_TIME_MAX

    def power(self) -> bool:
        """Does the machine go dark now?"""
        return self.dice.random() < self.faults.power

    def _draw(self, *chances: tuple[str, float]) -> str:
        dice = self.dice.random()
        for name, chance in chances:
            if dice < chance:
                return name
            dice -= chance
        return ""
