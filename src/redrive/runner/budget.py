"""The retry budget: how many calls that failed before are made again, a second, on one dependency.

When something comes back after an outage everything that failed meanwhile falls due at about the same time. First
attempts are not counted, so that new events flow; retries and replays share what the budget gives, across workers. A
replay whose operator gave a rate is bounded by that rate alone.
"""

from __future__ import annotations

import math

from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.fingerprint import fingerprint
from redrive.policy.lanes import Head, draws_on_budget
from redrive.policy.limiter import Bucket
from redrive.policy.outcome import Failure
from redrive.runner.bridge import Bridge
from redrive.runner.duty import Duty, fence

Due = tuple[str | None, Head]


class Budget:
    """Tokens for the retries of one owner, got from the store as they are needed."""

    def __init__(self, duty: Duty, bridge: Bridge, dependency: str) -> None:
        self.duty, self._bridge, self._name = duty, bridge, f"retry {dependency}"
        rate = duty.engine.settings.retry_budget
        self._bucket = Bucket(rate, max(1, math.ceil(rate / 10)))
        self.buries = duty.engine.settings.retry_budget_over == "bury"
        self._ask_at = 0.0  # on the monotonic clock

    def pause(self) -> float:
        """Seconds until there is something in it again; 0 unless it was found empty."""
        return max(0.0, self._ask_at - self._monotonic())

    async def sift(self, due: list[Due]) -> tuple[list[Due], list[Due]]:
        """Which of them may be tried now, and which it does not cover."""
        retries = sum(1 for _, head in due if draws_on_budget(head))
        if not retries:
            return due, []
        left = 0 if self.pause() else await self._bridge.run(lambda: self._take(retries))
        may: list[Due] = []
        over: list[Due] = []
        for lane, head in due:
            if not draws_on_budget(head):
                may.append((lane, head))
            elif left:
                left -= 1
                may.append((lane, head))
            else:
                over.append((lane, head))
        return may, over

    def _take(self, wanted: int) -> int:
        """Runs where writing happens. Nothing is lost if a power cut takes it back."""
        with self.duty.engine.store.transaction(durable=False) as tx:
            fence(self.duty, tx)
            taken = tx.guards.take(self._name, self._bucket, self.duty.engine.env.clock.now(), wanted)
        if taken.granted < wanted:  # those who wait for the same budget do not all come back at once
            jitter = self.duty.engine.settings.retry_budget_jitter * self.duty.engine.env.dice.random()
            self._ask_at = self._monotonic() + taken.wait * (1.0 + jitter)
        granted: int = taken.granted
        return granted

    def _monotonic(self) -> float:
        return self.duty.engine.env.clock.monotonic()


def over_budget(rate: float) -> out.Blocked:
    """What a letter says that is buried because there was no budget for its retry."""
    return blocked(act.RETRY_LIMITED, "RetryLimited", f"more than {rate:g} retries a second were due")


def blocked(reason: str, kind: str, message: str) -> out.Blocked:
    """The outcome of an event that was not called."""
    return out.Blocked(reason, Failure(kind, message, "", fingerprint(kind, [], message)))
