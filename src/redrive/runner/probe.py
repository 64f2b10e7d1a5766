"""Asking a sink how it is while its breaker is open, so that it heals without an event being spent on it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from redrive.errors import StoreError
from redrive.policy.limiter import Bucket
from redrive.policy.outcome import Failure
from redrive.runner.bridge import Bridge
from redrive.runner.call import describe
from redrive.runner.gate import Gate
from redrive.runner.wake import Wake
from redrive.sinks.port import Sink

PROBE_EVERY = 5.0  # seconds between two looks at a sink that is not well, of all workers together
PROBE_TIMEOUT = 10.0


class Prober:
    """Calls `probe` now and then while the breaker is open, and tells it the answer."""

    def __init__(self, sink: Sink, gate: Gate, bridge: Bridge, wake: Wake) -> None:
        self.sink, self.gate, self._bridge, self._wake = sink, gate, bridge, wake
        self._turns = Bucket(1 / PROBE_EVERY, 1)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(PROBE_EVERY)
            with suppress(StoreError):  # the loop meets it, too, and says so
                await self._look()

    async def _look(self) -> None:
        if self.gate.is_open and await self._bridge.run(lambda: self.gate.may_probe(self._turns)):
            failure = await self._ask()
            await self._bridge.run(lambda: self.gate.probed(failure))
            self._wake.ring()

    async def _ask(self) -> Failure | None:
        try:
            await asyncio.wait_for(self.sink.probe(), PROBE_TIMEOUT)
        except Exception as error:  # whatever a sink raises means that it is not well
            return describe(error)
        return None
