"""Automatic replay beside a loop: when to take the next step. What a step does is replay's, which writes letters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from redrive.errors import StoreError
from redrive.policy.auto_replay import AutoReplay
from redrive.runner.bridge import Bridge
from redrive.runner.duty import Duty
from redrive.runner.wake import Wake

LOOK_EVERY = 1.0  # seconds: a breaker may have been closed by another worker, or by hand

log = logging.getLogger("redrive")


class Next(Protocol):
    """When to look again, and whether there is nothing to do until then."""

    @property
    def wait(self) -> float | None: ...
    @property
    def idle(self) -> bool: ...


class Steps(Protocol):
    """Whoever does it, a step at a time, where writing happens."""

    def step(self) -> Next: ...


Heal = Callable[[Duty, AutoReplay], Steps]


class Healing:
    """One owner's automatic replay: looks when the breaker changes, when a time has come, and now and then."""

    def __init__(self, steps: Steps, bridge: Bridge, wakes: Sequence[Wake], every: float) -> None:
        """`every`: so many seconds at least between two looks for what others have done."""
        self._steps, self._bridge, self._wakes = steps, bridge, wakes
        self._every = max(every, LOOK_EVERY)
        self._loop = asyncio.get_running_loop()
        self.wake = Wake(asyncio.Event())
        self._rests = False
        self.on_idle: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                found = await self._bridge.run(self._steps.step)
            except StoreError as error:  # the loop meets it, too, and says so
                log.debug("automatic replay could not look: %s", error)
                await self._rest(LOOK_EVERY, idle=True)
                continue
            if not found.idle:
                for wake in self._wakes:  # what was asked for is due now
                    wake.ring()
            pause = self._every if found.wait is None else min(found.wait, self._every)
            await self._rest(pause, idle=found.idle)

    @property
    def is_idle(self) -> bool:
        """Is nothing to be replayed now, and has nothing happened since we looked?"""
        return self._rests and not self.wake.pending

    def news(self) -> None:
        """The breaker has changed; from any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self.wake.ring)

    async def _rest(self, seconds: float, *, idle: bool) -> None:
        self._rests = idle
        if idle:
            self.on_idle()
        try:
            await self.wake.wait(seconds)
        finally:
            self._rests = False
