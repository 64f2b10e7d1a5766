"""Trimming an outbox beside its delivery: now and then, a little at a time. What may go is decided elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redrive.errors import Fenced, StoreError
from redrive.runner.bridge import Bridge
from redrive.runner.duty import Duty

LOOK_EVERY = 60.0  # seconds between two looks; more often where less is kept
LOOKS_PER_KEEP = 10
PAUSE = 0.05  # between two pieces: others want to write, too

log = logging.getLogger("redrive")

Trim = Callable[[Any, str, float], bool]  # a piece off a log of the store, of what is older than a time; is there more?


class Trimming:
    """One owner's care for the log that it delivers."""

    def __init__(self, duty: Duty, bridge: Bridge, trim: Trim) -> None:
        self._duty, self._bridge, self._trim = duty, bridge, trim
        keep = duty.subscription.keep
        assert keep is not None
        self._keep, self._every = keep, max(1.0, min(LOOK_EVERY, keep / LOOKS_PER_KEEP))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            more = False
            try:
                more = await self._bridge.run(self._piece)
            except (StoreError, Fenced) as error:  # the loop meets it, too, and says so
                log.debug("the outbox could not be trimmed: %s", error)
            await asyncio.sleep(PAUSE if more else self._every)

    def _piece(self) -> bool:
        engine = self._duty.engine
        return self._trim(engine.store, self._duty.subscription.source, engine.env.clock.now() - self._keep)
