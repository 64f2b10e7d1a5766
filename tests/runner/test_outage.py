"""The outage: one sink of three is down for ten seconds and comes back weak. Nobody else notices, nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redrive import App, breaker, retry
from redrive.event import Event
from redrive.settings import Settings
from redrive.sinks.port import Sink
from redrive.testing import Harness
from redrive.testing.fakes import FakeClock

RATE, SECONDS, DOWN, CAPACITY = 100, 20, (2.0, 12.0), 150


class Busy(Exception):
    status = 503


class Warehouse(Sink):
    """Down for a while, and then able to take so many requests a second."""

    def __init__(self, name: str, clock: FakeClock, down: tuple[float, float] = (0.0, 0.0)) -> None:
        super().__init__(name)
        self.clock, self.down = clock, down
        self.calls: list[float] = []
        self.got: list[tuple[float, int]] = []
        self.began = clock.monotonic()

    async def send(self, events: Sequence[Event[Any]]) -> None:
        now = self.clock.monotonic() - self.began
        self.calls.append(now)
        await asyncio.sleep(0.005)
        if self.down[0] <= now < self.down[1]:
            raise ConnectionRefusedError
        if self.down[1] and sum(1 for at in self.calls[-CAPACITY - 1 :] if int(at) == int(now)) > CAPACITY:
            raise Busy
        self.got += [(now, event.data) for event in events]

    async def probe(self) -> None:
        if self.down[0] <= self.clock.monotonic() - self.began < self.down[1]:
            raise ConnectionRefusedError


def tell_the_story(
    start: Any, *, protected: bool, seconds: int = SECONDS, down: tuple[float, float] = DOWN
) -> tuple[Harness, dict[str, Warehouse]]:
    """A hundred orders a second for twenty seconds, three sinks, one of them sick."""

    @asynccontextmanager
    async def producing(app: App) -> AsyncIterator[None]:
        async def produce() -> None:
            for number in range(RATE * seconds):
                await app.log("orders").append_async("order.placed", number, key=f"customer-{number % 50}")
                if number % 10 == 9:
                    await asyncio.sleep(10 / RATE)

        task = asyncio.create_task(produce())
        yield
        task.cancel()

    app = App("unused.db", lifespan=producing)
    harness: Harness = start(app, settings=Settings() if protected else Settings(retry_budget=1e6))
    sinks = {
        "crm": Warehouse("crm", harness.clock),
        "sick": Warehouse("sick", harness.clock, down),
        "search": Warehouse("search", harness.clock),
    }
    app.deliver(
        app.log("orders"),
        to=sinks.values(),
        start="first",
        retry=retry(
            attempts=50, wait="1s", factor=1.5 if protected else 1, wait_max="5s", jitter=0.1 if protected else 0
        ),
        breaker=breaker(failures=5, cooldown="60s") if protected else None,
        limit="130/s" if protected else None,
        concurrency=10 if protected else 500,
    )
    harness.advance("90s")
    return harness, sinks


@pytest.mark.sqlite("what is tested is the policy; the store is the same contract")
def test_healthy_sinks_do_not_notice_and_the_sick_one_recovers_without_being_drowned(start: Any) -> None:
    harness, sinks = tell_the_story(start, protected=True)
    for name in ("crm", "search"):
        assert max(at - number / RATE for at, number in sinks[name].got) < 1.0
    for sink in sinks.values():
        assert sorted(number for _, number in sink.got) == list(range(RATE * SECONDS)), "each arrives once"
        for customer in range(50):
            mine = [number for _, number in sink.got if number % 50 == customer]
            assert mine == sorted(mine), "in key order"
    sick = sinks["sick"]
    during = [at for at in sick.calls if DOWN[0] <= at < DOWN[1]]
    after = Counter(int(at) for at in sick.calls if at >= DOWN[1])
    assert len(during) < 20, "it is left alone while it is down"
    assert max(after.values()) <= CAPACITY, "it is not drowned when it is back"
    assert max(at for at, _ in sick.got) - DOWN[1] < 60, "and has everything soon"
    assert [letter for letter in harness.letters() if letter.state == "dead"] == []


@pytest.mark.sqlite("what is tested is the policy; the store is the same contract")
def test_without_protection_there_is_a_storm(start: Any) -> None:
    """What the test above is worth: the same outage, and the sink is overrun while it is down and when it is back."""
    _, sinks = tell_the_story(start, protected=False, seconds=6, down=(1.0, 5.0))
    calls = sinks["sick"].calls
    assert len([at for at in calls if 1.0 <= at < 5.0]) > 100
    assert max(Counter(int(at) for at in calls if at >= 5.0).values()) > CAPACITY
