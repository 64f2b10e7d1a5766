"""A stop that has waited long enough: what has overrun has spent its attempt, what has time left has not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from redrive import App, StoreError, breaker, retry
from redrive.event import Event
from redrive.runner.handle import Handling
from redrive.settings import Settings
from redrive.sinks.port import Sink
from redrive.testing import Harness

SLOWLY = retry(attempts=2, wait="1m", jitter=0)


async def refuse() -> None:
    """Tidy up for ever when cancelled; only who means it is obeyed."""
    try:
        await asyncio.sleep(1e6)
    except asyncio.CancelledError:
        await asyncio.sleep(1e6)


def run_until_it_hangs(harness: Harness) -> None:
    with pytest.raises(AssertionError, match="does a function hang"):
        harness.advance("1m")


def declare(app: App, timeout: str = "30s", **options: Any) -> list[tuple[str, int]]:
    """A handler that hangs for keys that begin with an x, and does not end when it is cancelled; its calls."""
    called = []

    @app.on(app.log("orders"), start="first", timeout=timeout, concurrency=4, retry=SLOWLY, **options)
    async def charge(event, ctx):
        called.append((event.data, ctx.attempt))
        ctx.emit(app.log("receipts"), "sent", event.data)
        if event.key.startswith("x"):
            await refuse()

    return called


def put(harness: Harness, *names: str) -> None:
    for name in names:
        harness.append("orders", "order.placed", name, key=name[:-1])


def letters(harness: Harness) -> list[tuple[str | None, str, str, int]]:
    return [(letter.lane, letter.state, letter.error_type, letter.attempts) for letter in harness.letters()]


def test_every_stop_spends_one_attempt_and_the_last_one_buries(app: App, harness: Harness) -> None:
    called = declare(app)
    put(harness, "x1", "a1", "x2", "y1")
    run_until_it_hangs(harness)
    harness.restart()
    assert letters(harness) == [("x", "retrying", "TimeoutError", 1)]
    run_until_it_hangs(harness)
    harness.restart()
    assert letters(harness) == [("x", "dead", "TimeoutError", 2), ("x", "retrying", "", 0)]
    harness.run_until_idle()
    assert called == [("x1", 1), ("a1", 1), ("y1", 1), ("x1", 2)]
    assert sorted(harness.emitted("receipts")) == [("sent", "a1"), ("sent", "y1")]


def test_several_that_hang_have_each_spent_an_attempt(app: App, harness: Harness) -> None:
    declare(app)
    put(harness, "x1", "xx1", "xxx1")
    run_until_it_hangs(harness)
    harness.restart()
    assert letters(harness) == [(lane, "retrying", "TimeoutError", 1) for lane in ("x", "xx", "xxx")]


def test_who_returns_while_it_is_given_up_is_settled_once(
    app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread puts down what came of its call, and then removes it from what runs: both may see it."""
    give_up = Handling.give_up

    def return_meanwhile(work: Handling, now: float) -> Any:
        late = give_up(work, now)
        for one in late:
            work.called(one)
            work.desk.outbox.append(one)
        return late

    monkeypatch.setattr(Handling, "give_up", return_meanwhile)
    declare(app)
    put(harness, "x1", "xx1")
    run_until_it_hangs(harness)
    harness.restart()
    assert letters(harness) == [(lane, "retrying", "TimeoutError", 1) for lane in ("x", "xx")]
    assert harness.query("SELECT count(*) FROM redrive_attempts") == [(2,)]


def test_what_has_time_left_is_given_back(app: App, harness: Harness) -> None:
    called = declare(app, timeout="2h")
    put(harness, "x1", "a1")
    run_until_it_hangs(harness)
    harness.restart()
    assert letters(harness) == []
    run_until_it_hangs(harness)
    assert called == [("x1", 1), ("a1", 1), ("x1", 1)]


def test_what_has_overrun_and_nobody_has_noticed_has_overrun(app: App, harness: Harness) -> None:
    """Whoever would have looked may have waited for the store. Nothing that the call still does is in the copy."""
    declare(app, timeout="2h")
    put(harness, "x1")
    run_until_it_hangs(harness)
    supervisor: Any = harness._driver.supervisor
    work, now = supervisor.loops["charge"].work, harness.clock.monotonic()
    [running] = work.desk.running
    running.effects = running.ctx.effects()
    assert (work.give_up(now), list(work.desk.outbox)) == (set(), [])
    assert work.give_up(now + 7200) == {running}
    copy = work.desk.outbox.pop()
    assert (copy is running, copy.position, copy.ctx, copy.effects) == (False, 1, None, None)


def test_what_overruns_while_the_stop_waits_for_it_has_overrun(app: App, harness: Harness) -> None:
    declare(app, timeout="1h10s")  # a stop waits for 30 s
    put(harness, "x1")
    run_until_it_hangs(harness)
    harness.restart()
    assert letters(harness) == [("x", "retrying", "TimeoutError", 1)]


def test_the_breaker_of_what_has_overrun_hears_of_it(app: App, harness: Harness) -> None:
    declare(app, breaker=breaker("stripe", failures=1, cooldown="1h"))
    put(harness, "x1")
    run_until_it_hangs(harness)
    harness.restart()
    [(state,)] = harness.query("SELECT state FROM redrive_breakers WHERE name = 'stripe'")
    assert (state, letters(harness)) == ("open", [("x", "retrying", "TimeoutError", 1)])


def test_the_breaker_of_the_key_takes_the_blame(app: App, harness: Harness) -> None:
    declare(app, breaker=breaker("stripe", failures=1, cooldown="2h", per="key"))
    put(harness, "x1", "a1")
    run_until_it_hangs(harness)
    harness.restart()
    [letter] = harness.letters()
    assert (letter.state, letter.error_type) == ("retrying", "TimeoutError")
    [(due_in,)] = harness.query("SELECT due_at - due_set_at FROM redrive_letters")
    assert due_in == 7200


def test_a_store_that_is_down_at_that_moment_spends_no_attempt(app: App, harness: Harness) -> None:
    called = declare(app)
    put(harness, "x1")
    run_until_it_hangs(harness)
    harness.fault = StoreError("the store is down")
    harness.restart()
    harness.fault = None
    assert letters(harness) == []
    run_until_it_hangs(harness)
    assert called == [("x1", 1), ("x1", 1)]


class Hole(Sink):
    """Takes lists, and never answers to those in which there is an x."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__("hole")
        self.batch_max, self.whole = 10, whole

    async def send(self, events: Sequence[Event[Any]]) -> None:
        if any(event.key == "x" for event in events):
            await refuse()


@pytest.mark.parametrize("whole", [True, False])
def test_a_list_that_a_sink_never_answers_to_has_spent_one_attempt_of_each_key(
    app: App, harness: Harness, whole: bool
) -> None:
    rule = breaker("hole", failures=3, cooldown="1h")
    app.deliver(app.log("orders"), to=Hole(whole=whole), start="first", timeout="30s", retry=SLOWLY, breaker=rule)
    put(harness, "x1", "y1", "x2")
    run_until_it_hangs(harness)
    harness.restart()
    failed = [("x", "retrying", "TimeoutError", 1), ("y", "retrying", "TimeoutError", 1)]
    assert letters(harness) == ([*failed, ("x", "retrying", "", 0)] if whole else failed)
    assert harness.query("SELECT failures FROM redrive_breakers WHERE name = 'hole'") == [(1,)], "it was one call"


def test_a_stop_waits_for_what_tidies_up_and_cancels_it_once(app: App, start: Any) -> None:
    harness = start(app, settings=Settings(stop_timeout=1.0, poll_max=60.0))
    ended = []

    @app.on(app.log("orders"), start="first")
    async def charge(event, ctx):
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(60)
            ended.append(event.data)

    put(harness, "x1")
    run_until_it_hangs(harness)
    harness.restart()
    assert (ended, letters(harness)) == (["x1"], [])
