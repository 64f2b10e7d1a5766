"""Events that kill the process: only dying alone is charged, three charges bury, neighbours are innocent."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from redrive import App, StoreError, breaker, no_retry, retry
from redrive.policy.partitions import place
from redrive.settings import Settings
from redrive.testing import Harness, failpoint
from redrive.testing.crashing import Crashed
from redrive.testing.fakes import FakeClock

KINDS = pytest.mark.parametrize("kind", ["projection", "handler", "async handler"])


def run_through(harness: Harness, times: int = 20) -> int:
    """Start the worker again whenever it dies, until it is idle; how often it died."""
    for deaths in range(times):
        try:
            harness.run_until_idle()
        except Crashed:
            continue
        return deaths
    return times


def declare(app: App, harness: Harness, kind: str, deadly: Any, **options: Any) -> None:
    """A function that notes the key of its event, or dies."""
    with app.transaction() as tx:
        tx.execute("CREATE TABLE applied (name TEXT)")

    def apply(event: Any, out: Any) -> None:
        if deadly(event):
            harness.crash()
        out.execute("INSERT INTO applied VALUES (:name)", {"name": event.data})

    async def apply_async(event: Any, ctx: Any) -> None:
        await asyncio.sleep(0.01)
        apply(event, ctx)

    if kind == "projection":
        app.projection(app.log("orders"), name="apply", **options)(apply)
    else:
        function = apply if kind == "handler" else apply_async
        app.on(app.log("orders"), name="apply", start="first", **options)(function)


def put(harness: Harness, *names: str) -> None:
    for name in names:
        harness.append("orders", "order.placed", name, key=name[0])


def applied(harness: Harness) -> list[str]:
    return sorted(name for (name,) in harness.query("SELECT name FROM applied"))


@KINDS
def test_an_event_that_kills_the_process_alone_three_times_is_buried(app: App, harness: Harness, kind: str) -> None:
    declare(app, harness, kind, lambda event: event.key == "x")
    put(harness, "a1", "b1", "x1", "c1", "x2", "a2")
    deaths = run_through(harness)
    assert deaths == 4, "the first death was in company: nobody is charged"
    assert applied(harness) == ["a1", "a2", "b1", "c1"]
    first, second = harness.letters()
    assert (first.state, first.reason, first.lane) == ("dead", "crashed_worker", "x")
    assert "died 3 times" in first.error_message
    assert (second.state, second.reason) == ("retrying", "behind_head")


@KINDS
def test_after_the_burial_nothing_runs_alone_any_more(app: App, harness: Harness, kind: str) -> None:
    declare(app, harness, kind, lambda event: event.key == "x")
    put(harness, "x1", "a1")
    run_through(harness)
    assert harness.query("SELECT * FROM redrive_inflight") == []
    put(harness, "b1", "c1")
    assert run_through(harness) == 0
    assert applied(harness) == ["a1", "b1", "c1"]


def test_partition_suspects_all_that_was_in_flight(app: App, start: Any) -> None:
    """Its events lie among those of the other partition: more of the log has to be looked through than a window."""
    settings = Settings(window_max=4, lease=1e6, poll_min=1e6, poll_max=1e6)
    harness = start(app, settings=settings)
    declare(app, harness, "async handler", lambda event: event.key == "x", concurrency=4, partitions=2)
    others = [key for key in "abcdefghijklmnopqrstuvw" if place(key, 2) != place("x", 2)]
    mine = [key for key in "abcdefghijklmnopqrstuvw" if place(key, 2) == place("x", 2)]
    for number in range(3):
        put(harness, *(f"{key}{number}" for key in others[:5]), f"{mine[number]}1")
    put(harness, "x1")
    assert run_through(harness) == 4, "in company, and three times alone"
    assert [(letter.lane, letter.reason) for letter in harness.letters()] == [("x", "crashed_worker")]
    assert len(applied(harness)) == 18


@pytest.mark.parametrize("other", ["async handler", "projection"])
def test_event_of_another_subscription_is_not_charged(app: App, harness: Harness, other: str) -> None:
    """It is slow, and was in flight at each death: both would run alone at the same time."""
    declare(app, harness, other, lambda event: event.key == "x")

    @app.on(app.log("mails"), start="first")
    async def send(event: Any, ctx: Any) -> None:
        await asyncio.sleep(60)

    put(harness, "x1", "a1")
    harness.append("mails", "mail", {}, key="m")
    assert run_through(harness) == 4
    assert [(letter.subscription, letter.lane) for letter in harness.letters()] == [("apply", "x")]
    assert applied(harness) == ["a1"]
    assert harness.query("SELECT * FROM redrive_inflight") == []


def test_call_that_overruns_while_alone_keeps_no_other_from_running(app: App, harness: Harness) -> None:
    """It refuses to be cancelled, as a plain function does that hangs: nobody can say when it ends."""
    calls: list[float] = []
    crashes = iter([True])

    @app.on(app.log("mails"), start="first", timeout="1s", concurrency=3, retry=no_retry)
    async def send(event: Any, ctx: Any) -> None:
        try:
            await asyncio.sleep(500)
        except asyncio.CancelledError:
            await asyncio.sleep(500)

    def deadly(event: Any) -> bool:
        calls.append(harness.clock.now())
        return event.key == "x" and next(crashes, False)

    declare(app, harness, "async handler", deadly)
    for key in ("m", "n", "o"):
        harness.append("mails", "mail", {}, key=key)
    put(harness, "x1", "y1", "z1")
    with pytest.raises(Crashed):
        harness.run_until_idle()
    began = harness.clock.now()
    harness.run_until_idle()
    assert applied(harness) == ["x1", "y1", "z1"]
    assert max(calls) - began < 60


def test_event_that_waits_for_its_breaker_keeps_no_other_from_running_alone(app: App, harness: Harness) -> None:
    calls: list[str] = []

    @app.on(app.log("mails"), start="first", breaker=breaker("bank"))
    async def send(event: Any, ctx: Any) -> None:
        await asyncio.sleep(60)
        calls.append(event.key)

    declare(app, harness, "async handler", lambda event: event.key == "x")
    harness.append("mails", "mail", {}, key="m")
    put(harness, "x1", "a1")
    with pytest.raises(Crashed):
        harness.run_until_idle()
    app.operate("ada").breakers.open("bank", "it is down")
    for _ in range(3):
        with pytest.raises(Crashed):
            harness.advance("1m")
    harness.advance("1m")
    assert (applied(harness), calls) == (["a1"], [])
    app.operate("ada").breakers.close("bank", "it is back")
    harness.advance("2m")
    assert calls == ["m"]


@KINDS
def test_turn_to_run_alone_ends_if_the_store_fails_meanwhile(app: App, harness: Harness, kind: str) -> None:
    declare(app, harness, kind, lambda event: False)
    app.on(app.log("mails"), name="send", start="first")(lambda event, ctx: None)
    harness.run_until_idle()
    put(harness, "a1", "b1")
    harness.append("mails", "mail", {}, key="m")
    harness.crash()
    place = "batch.before_commit" if kind == "projection" else "round.before_commit"
    with failpoint(place, StoreError("the disk is away")) as failed:
        harness.run_until_idle()
    harness.advance("1m")
    assert failed.fired
    assert applied(harness) == ["a1", "b1"]
    assert [row.lag_events for row in app.operate().status()] == [0, 0]


@KINDS
def test_an_event_that_survives_is_forgiven(app: App, harness: Harness, kind: str) -> None:
    deaths = []

    def deadly(event: Any) -> bool:
        if event.key == "x" and len(deaths) < 3:
            deaths.append(1)
            return True
        return False

    declare(app, harness, kind, deadly)
    put(harness, "x1", "a1")
    run_through(harness)
    assert applied(harness) == ["a1", "x1"]
    assert harness.letters() == []
    assert harness.query("SELECT * FROM redrive_inflight") == []


@KINDS
def test_the_number_of_charges_is_a_setting(app: App, start: Any, kind: str) -> None:
    harness = start(app, settings=Settings(crash_charges_max=1, lease=1e6, poll_min=1e6, poll_max=1e6))
    declare(app, harness, kind, lambda event: event.key == "x")
    put(harness, "x1", "a1")
    assert run_through(harness) == 2
    assert harness.letters()[0].reason == "crashed_worker"


@KINDS
def test_neighbours_in_the_window_are_never_charged(app: App, harness: Harness, kind: str) -> None:
    """Two killers: each is charged for its own deaths only."""
    declare(app, harness, kind, lambda event: event.key in "xy")
    put(harness, "a1", "x1", "b1", "y1", "c1")
    deaths = run_through(harness)
    assert 7 <= deaths <= 8
    assert applied(harness) == ["a1", "b1", "c1"]
    assert {letter.lane: letter.reason for letter in harness.letters()} == {
        "x": "crashed_worker",
        "y": "crashed_worker",
    }


@KINDS
def test_a_retry_that_kills_the_process_is_charged_like_a_first_attempt(app: App, harness: Harness, kind: str) -> None:

    def deadly(event: Any) -> bool:
        if event.key != "x":
            return False
        if harness.clock.monotonic() < 1:  # the first attempt fails without harm
            raise OSError
        return True

    declare(app, harness, kind, deadly, retry=retry(attempts=10, wait="1s", factor=1, jitter=0))
    put(harness, "x1", "a1")
    harness.run_until_idle()
    harness.clock.advance(2)
    assert run_through(harness) >= 3
    [letter] = harness.letters()
    assert (letter.state, letter.reason) == ("dead", "crashed_worker")
    assert applied(harness) == ["a1"]


@KINDS
def test_a_charged_retry_runs_alone_also_when_a_clock_set_back_makes_it_wait_again(
    app: App, harness: Harness, kind: str
) -> None:
    tries = count()

    def deadly(event: Any) -> bool:
        if event.key != "x":
            return False
        tried = next(tries)
        if tried == 0:
            raise OSError
        return tried < 3  # in company, then alone

    declare(app, harness, kind, deadly, retry=retry(attempts=10, wait="1s", factor=1, jitter=0))
    put(harness, "x1", "a1")
    harness.run_until_idle()
    harness.clock.advance(2)
    for _ in range(2):
        with pytest.raises(Crashed):
            harness.run_until_idle()
    [(charged,)] = harness.query("SELECT count(*) FROM redrive_inflight")
    harness.clock.jump(-3600)
    harness.run_until_idle()
    harness.advance("2s")
    assert (charged, applied(harness)) == (1, ["a1", "x1"])
    assert harness.query("SELECT position, charges FROM redrive_inflight") == []


@KINDS
def test_retry_that_the_clock_makes_wait_is_not_charged_for_a_death(app: App, start: Any, kind: str) -> None:
    """The mark is set, and then the clock is set back: it is not called, and the process dies of something else."""
    harness = start(app, settings=Settings(crash_charges_max=1, lease=1e6, poll_min=1e6, poll_max=1e6))
    tries = count()

    def deadly(event: Any) -> bool:
        tried = next(tries)
        if tried == 0:
            raise OSError
        return tried == 1  # in company

    declare(app, harness, kind, deadly, retry=retry(attempts=10, wait="1m", factor=1, wait_max="1m", jitter=0))
    put(harness, "x1")
    harness.run_until_idle()
    harness.clock.advance(61)
    with pytest.raises(Crashed):
        harness.run_until_idle()
    with failpoint("alone.before_commit", lambda: harness.clock.jump(-3600)) as marked:
        harness.run_until_idle()
    assert marked.fired
    if kind == "projection":
        assert applied(harness) == []
        harness.crash()
    harness.advance("2m")
    assert applied(harness) == ["x1"]
    assert [letter.state for letter in harness.letters()] == ["applied"]


@KINDS
def test_a_changed_boot_id_excuses(app: App, harness: Harness, kind: str) -> None:
    declare(app, harness, kind, lambda event: event.key == "x")
    put(harness, "x1", "a1")
    for number in range(8):
        with pytest.raises(Crashed):
            harness.run_until_idle()
        harness.env.boot = f"boot-{number + 2}"
    assert harness.letters() == []


def test_a_stop_that_was_asked_for_excuses_a_kill_that_comes_after_it(app: App, harness: Harness) -> None:
    calls = []

    @app.on(app.log("orders"), start="first")
    async def apply(event, ctx):
        calls.append(event.key)
        if len(calls) > 1:
            assert harness._driver.supervisor is not None
            harness._driver.supervisor.stop("SIGTERM")
            await asyncio.sleep(1)
        harness.crash()

    put(harness, "x1")
    for _ in range(8):
        with pytest.raises(Crashed):
            harness.run_until_idle()
    assert len(calls) == 8
    assert harness.letters() == []


@KINDS
def test_a_graceful_restart_suspects_nobody(app: App, harness: Harness, kind: str) -> None:
    declare(app, harness, kind, lambda event: False)
    for number in range(5):
        put(harness, f"a{number}", f"b{number}")
        harness.run_until_idle()
        harness.restart()
    harness.run_until_idle()
    assert len(applied(harness)) == 10
    assert not any(signal.unclean for signal in harness.signals if type(signal).__name__ == "LeaseTaken")


@KINDS
def test_an_unclean_start_is_told_and_runs_everything_all_the_same(app: App, harness: Harness, kind: str) -> None:
    declare(app, harness, kind, lambda event: False)
    put(harness, "a1")
    harness.run_until_idle()
    put(harness, "a2", "b1", "c1")
    harness.crash()
    harness.run_until_idle()
    assert applied(harness) == ["a1", "a2", "b1", "c1"]
    taken = [signal.unclean for signal in harness.signals if type(signal).__name__ == "LeaseTaken"]
    assert taken == [False, True]


def test_a_suspect_runs_alone_also_where_time_is_short(
    app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is so slow that a batch is late before its first call: a mark that nobody clears would stay."""
    calls: list[int] = []

    def deadly(event: Any) -> bool:
        calls.append(len(calls))
        if len(calls) == 1:
            raise ValueError("once")
        return len(calls) == 2

    declare(app, harness, "projection", deadly, retry=retry(wait="1s", jitter=0.0))
    put(harness, "a1")
    harness.run_until_idle()
    with pytest.raises(Crashed):
        harness.advance("1s")
    looks, monotonic = count(1), FakeClock.monotonic
    monkeypatch.setattr(FakeClock, "monotonic", lambda clock: monotonic(clock) + next(looks) * 0.1)
    harness.run_until_idle()
    assert applied(harness) == ["a1"]
    assert harness.query("SELECT position FROM redrive_inflight") == []
