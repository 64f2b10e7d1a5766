"""How long a breaker with its defaults takes to close after the dependency is back. In virtual time: nobody waits.

The engine, the store and the breaker are the real ones; the clock is the harness's, and the sink is down for as long as
we say. The outages are 1, 8.1, 15.2 … seconds long, so that the dependency comes back at any moment of a cooldown. What
is left of the cooldown then is the whole of the figure: a sink without a probe may have to wait for all of its 60 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from bench.lab import Figures, Stopwatch
from redrive import App
from redrive.event import Event
from redrive.sinks.port import Sink
from redrive.testing import Harness

SHORTEST, STEP = 1.0, 7.1  # seconds
BACKLOG = 20  # events that wait, of as many keys
LOOK_MAX = 200.0  # seconds after which a breaker that has not closed is stuck


class Place(Sink):
    """Answers or does not."""

    is_down = False

    async def send(self, events: Sequence[Event[Any]]) -> None:
        if self.is_down:
            raise ConnectionRefusedError("nobody listens")


class ProbedPlace(Place):
    """Can be asked, too."""

    async def probe(self) -> None:
        if self.is_down:
            raise ConnectionRefusedError("nobody listens")


def recovery(folder: Path, outages: int) -> Figures:
    """The worst of all outages, for a sink without a probe and for one with."""
    with Stopwatch() as watch:
        bare = [_recover(Place("crm"), SHORTEST + number * STEP) for number in range(outages)]
        probed = [_recover(ProbedPlace("crm"), SHORTEST + number * STEP) for number in range(outages)]
    return watch.figures(outages) | {
        "worst_seconds": max(bare), "mean_seconds": mean(bare), "probed_worst_seconds": max(probed),
        "probed_mean_seconds": mean(probed),
    }  # fmt: skip


def _recover(sink: Place, down_seconds: float) -> float:
    """Seconds from the moment that it is back until its breaker is closed."""
    app = App("unused.db")
    app.deliver(app.log("orders"), to=sink, start="first")
    with Harness(app) as harness:
        sink.is_down = True
        for number in range(BACKLOG):
            harness.append("orders", "order.placed", number, key=f"customer-{number}")
        harness.advance(down_seconds)
        assert _breaker(harness)[0] != "closed", "the outage was too short to be noticed"
        sink.is_down, back = False, harness.clock.now()
        harness.advance(LOOK_MAX)
        state, since = _breaker(harness)
        assert state == "closed", f"{state} after {LOOK_MAX:g} s"
        assert not harness.letters("dead")
    return since - back


def _breaker(harness: Harness) -> tuple[str, float]:
    ((state, since),) = harness.query("SELECT state, since FROM redrive_breakers")
    return state, since
