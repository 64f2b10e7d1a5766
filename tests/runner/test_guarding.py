"""Breakers and limits of handlers, in situations that the simulator came upon first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import App, UsageError, breaker, retry
from redrive.testing import Harness

PATIENT = retry(attempts=9, wait="1s")


class Service:
    """What a handler calls."""

    calls, down = 0, True

    async def call(self, event: Any) -> None:
        self.calls += 1
        if self.down:
            raise ConnectionError


def test_a_breaker_that_buries_is_probed_when_it_has_cooled(app: App, harness: Harness) -> None:
    service = Service()
    rule = breaker(failures=1, cooldown="10s", probes=1, when_open="bury")
    app.on(app.log("orders"), name="call", start="first", breaker=rule, retry=PATIENT)(service.call)
    for number in range(5):
        harness.append("orders", "order.placed", number, key=str(number))
    harness.run_until_idle()
    assert service.calls == 1
    assert {letter.reason for letter in harness.letters("dead")} == {"breaker_open"}
    service.down = False
    harness.advance("15s")
    harness.replay()
    harness.advance("15s")
    assert service.calls == 6 and not harness.letters("dead")


@pytest.mark.parametrize("when_open", ["pause", "bury"])
def test_a_clock_set_back_keeps_no_breaker_open(app: App, harness: Harness, when_open: Any) -> None:
    service = Service()
    rule = breaker(failures=1, cooldown="10s", probes=1, when_open=when_open)
    app.on(app.log("orders"), name="call", start="first", breaker=rule, retry=PATIENT)(service.call)
    harness.append("orders", "order.placed", 1, key="a")
    harness.run_until_idle()
    harness.clock.jump(-3600)
    service.down = False
    harness.advance("15s")
    harness.append("orders", "order.placed", 2, key="b")
    harness.advance("15s")
    assert service.calls >= 2


def test_permits_do_not_pile_up_while_calls_are_slow(app: App, harness: Harness) -> None:
    times, orders = [], app.log("orders")

    @app.on(orders, name="call", start="first", limit="10/s")
    async def call(event: Any) -> None:
        times.append(harness.clock.monotonic())
        if event.data == 0:
            for number in range(1, 30):
                await asyncio.sleep(0.3)
                await orders.append_async("order.placed", number, key=str(number))  # the worker looks, and asks

    harness.append(orders, "order.placed", 0, key="0")
    harness.advance("20s")
    assert len(times) == 30
    for first, sixth in zip(times[1:], times[6:], strict=False):
        assert sixth - first >= 0.29  # one that was saved up, one in hand, and then ten a second


def test_who_shares_a_breaker_says_the_same_of_it(app: App) -> None:
    def call(event: Any) -> None: ...

    orders = app.log("orders")
    app.on(orders, name="book", start="now", breaker=breaker("bank", failures=3))(call)
    app.on(orders, name="refund", start="now", breaker=breaker("bank", failures=3, on=OSError, when_open="bury"))(call)
    for odd in ({}, {"failures": 3, "probes": 1}, {"failures": 3, "cooldown": "10s"}):
        with pytest.raises(UsageError, match="share the breaker 'bank'"):
            app.on(orders, name="charge", start="now", breaker=breaker("bank", **odd))(call)
