"""The harness: an app as it is declared, on a store of its own, in a time of its own, the same every time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Reject, UsageError, retry
from redrive.settings import Settings
from redrive.testing import FakeClock, FakeEnv, Harness, check_exactly_once
from redrive.testing.crashing import Crashed

# An app as a module of a program declares it; its store does not exist and must never be asked for.
app = App("/nonexistent/folder/shop.db")
orders, alerts = app.log("orders"), app.log("alerts")
calls: list[float] = []


@app.projection(orders, "order.placed", tables={"revenue": "day TEXT PRIMARY KEY, cents INTEGER NOT NULL"})
def revenue(event, tx):
    tx.execute(
        "INSERT INTO revenue VALUES (:day, :cents) ON CONFLICT (day) DO UPDATE SET cents = cents + excluded.cents",
        {"day": event.time.date().isoformat(), "cents": event.data["cents"]},
    )


@app.on(orders, start="first", retry=retry(attempts=3, wait="10m", jitter=0, factor=1, wait_max="10m"))
async def charge(event, ctx):
    await asyncio.sleep(0.5)
    if event.data["cents"] < 0:
        raise Reject("negative")
    if event.data["cents"] == 13:
        raise OSError("the gateway is down")
    if event.data["cents"] > 1000:
        ctx.emit(alerts, "order.large", {"cents": event.data["cents"]}, key=None)


@pytest.fixture
def harness() -> Iterator[Harness]:
    with Harness(app) as harness:
        yield harness


def test_a_sync_test_appends_runs_and_looks(harness: Harness) -> None:
    for cents in (1, 2000, 3):
        harness.append(orders, "order.placed", {"cents": cents}, key="a")
    harness.run_until_idle()
    assert harness.query("SELECT * FROM revenue") == [("2026-01-01", 2004)]
    assert harness.query("SELECT day FROM revenue WHERE cents = :cents", {"cents": 2004}) == [("2026-01-01",)]
    assert harness.emitted(alerts) == [("order.large", {"cents": 2000})]


def test_an_async_test_awaits_the_same() -> None:
    async def scenario() -> None:
        with Harness(app) as harness:
            harness.append(orders, "order.placed", {"cents": 13}, key="a")
            await harness.arun_until_idle()
            assert len(harness.letters("retrying")) == 1
            await harness.aadvance("1h")
            assert len(harness.letters("dead")) == 1

    asyncio.run(scenario())


def test_a_sync_call_inside_a_running_loop_works_too() -> None:
    async def scenario() -> list[Any]:
        with Harness(app) as harness:
            harness.append("orders", "order.placed", {"cents": 5000})
            harness.run_until_idle()
            harness.advance("1m")
            harness.restart()
            harness.run_until_idle()
            harness.crash()
            harness.run_until_idle()
            return harness.emitted("alerts")

    assert asyncio.run(scenario()) == [("order.large", {"cents": 5000})]


def test_time_passes_only_when_told_and_what_falls_due_happens_at_its_time(harness: Harness) -> None:
    began = harness.clock.now()
    harness.append(orders, "order.placed", {"cents": 13}, key="a")
    harness.run_until_idle()
    assert harness.clock.now() == began + 0.5, "the function waited, in virtual time"
    harness.advance("9m")
    assert [letter.attempts for letter in harness.letters()] == [1]
    harness.advance("2m")
    assert [letter.attempts for letter in harness.letters()] == [2]
    harness.advance("1d")
    [letter] = harness.letters()
    assert (letter.state, letter.attempts) == ("dead", 3)
    times = [at - began for (at,) in harness.query("SELECT at FROM redrive_attempts ORDER BY id")]
    assert times == pytest.approx([0.5, 601, 1201.5])


def test_letters_are_chosen_by_state(harness: Harness) -> None:
    for cents, key in [(13, "a"), (1, "a"), (-1, "b"), (2, "c")]:
        harness.append(orders, "order.placed", {"cents": cents}, key=key)
    harness.run_until_idle()
    assert [(letter.state, letter.lane) for letter in harness.letters()] == [
        ("retrying", "a"),
        ("retrying", "a"),
        ("dead", "b"),
    ]
    assert [letter.reason for letter in harness.letters("dead")] == ["rejected"]
    with pytest.raises(UsageError, match="no state of a letter"):
        harness.letters("dying")


def test_a_replay_sends_dead_heads_round_once_more(tmp_path: Path) -> None:
    local = App(str(tmp_path / "x.db"))
    broken = [True]

    @local.on(local.log("orders"), start="first")
    def charge(event, ctx):
        if broken[0]:
            raise Reject("broken")

    with Harness(local) as harness:
        for key in "aab":
            harness.append("orders", "order.placed", key=key)
        harness.run_until_idle()
        again = harness.replay()
        assert (len(again.done), again.refused) == (2, ())
        assert len(harness.letters("dead")) == 2
        broken[0] = False
        assert len(harness.replay(harness.letters("dead")[:1]).done) == 1
        assert [letter.state for letter in harness.letters()] == ["applied", "applied", "dead"]
        assert harness.replay([harness.letters("dead")[0].id]).action == "replay"
        assert harness.letters("dead") == []


def test_the_same_test_gives_the_same_history() -> None:
    def history() -> Any:
        with Harness(app) as harness:
            for cents in (1, 13, -1, 2000):
                harness.append(orders, "order.placed", {"cents": cents}, key=str(cents))
            harness.advance("1h")
            return harness.signals, harness.query("SELECT * FROM redrive_events"), harness.letters()

    assert history() == history()


def test_no_thread_is_started(harness: Harness) -> None:
    before = threading.active_count()
    harness.append(orders, "order.placed", {"cents": 1})
    harness.run_until_idle()
    assert threading.active_count() == before


def test_the_app_is_given_back_as_it_was() -> None:
    heard: list[Any] = []
    local = App("/nonexistent/folder/x.db", settings=Settings(batch_max=7))
    local.listen(heard.extend)
    before = dict(vars(local.runtime))
    with Harness(local) as harness:
        assert local.runtime.settings.batch_max == 7
        harness.append("orders", "order.placed")
        local.listen(lambda signals: heard.append("of the harness"))
    assert dict(vars(local.runtime)) == before
    assert "of the harness" not in heard, "a listener that a test adds ends with its harness"
    assert [type(signal).__name__ for signal in heard] == ["Appended"]


def test_it_is_given_back_when_the_test_fails() -> None:
    local = App("/nonexistent/folder/x.db")
    before = dict(vars(local.runtime))
    with pytest.raises(ZeroDivisionError), Harness(local):
        raise ZeroDivisionError
    assert dict(vars(local.runtime)) == before


def test_an_app_is_in_one_harness_at_a_time(harness: Harness) -> None:
    with pytest.raises(UsageError, match="in a harness already"):
        Harness(app)
    harness.close()
    harness.close()
    with Harness(app) as again:
        assert again.query("SELECT count(*) FROM redrive_events") == [(0,)]


def test_a_given_store_is_used_and_kept(tmp_path: Path) -> None:
    for expected in (0, 1):
        with Harness(app, f"sqlite:///{tmp_path / 'kept.db'}") as harness:
            assert len(list(orders.read())) == expected
            harness.append(orders, "order.placed", {"cents": 1})
            harness.run_until_idle()
    assert (tmp_path / "kept.db").exists()


def test_a_temporary_store_is_removed_with_its_harness() -> None:
    harness = Harness(app)
    folder = Path(harness.path).parent
    assert folder.exists()
    harness.close()
    del harness
    import gc

    gc.collect()
    assert not folder.exists()


def test_only_some_functions_may_run() -> None:
    with Harness(app, only=["revenue"]) as harness:
        harness.append(orders, "order.placed", {"cents": -1})
        harness.run_until_idle()
        assert harness.letters() == []
        assert harness.query("SELECT name FROM redrive_subscriptions") == [("revenue",)]


def test_a_function_declared_later_runs_too() -> None:
    local, seen = App("/nonexistent/x.db"), []
    with Harness(local) as harness:
        harness.run_until_idle()
        harness.append("orders", "order.placed", 1)
        local.on(local.log("orders"), start="first", name="late")(lambda event, ctx: seen.append(event.data))
        harness.run_until_idle()
    assert seen == [1]


def test_a_function_that_hangs_is_named() -> None:
    local = App("/nonexistent/x.db")

    @local.on(local.log("orders"), start="first")
    async def waits_for_ever(event, ctx):
        await asyncio.Event().wait()

    harness = Harness(local)
    harness.append("orders", "order.placed")
    with pytest.raises(AssertionError, match="waits_for_ever"):
        harness.run_until_idle()
    harness.crash()
    harness.close()


def test_emitted_leaves_out_what_the_test_appended_itself(harness: Harness) -> None:
    harness.append(alerts, "by.hand", 1)
    harness.append(orders, "order.placed", {"cents": 2000})
    harness.run_until_idle()
    assert harness.emitted(alerts) == [("order.large", {"cents": 2000})]
    assert len(list(alerts.read())) == 2


def test_a_crash_in_a_function_ends_the_run_and_the_next_one_starts_anew() -> None:
    local, attempts = App("/nonexistent/x.db"), []
    with Harness(local) as harness:

        @local.on(local.log("orders"), start="first")
        def dies_once(event, ctx):
            attempts.append((ctx.attempt, harness.env.owner))
            if len(attempts) == 1:
                harness.crash()

        harness.append("orders", "order.placed")
        with pytest.raises(Crashed):
            harness.run_until_idle()
        harness.run_until_idle()
        assert attempts == [(1, "worker-1"), (1, "worker-2")]


def test_a_refused_start_is_raised_and_can_be_tried_again() -> None:
    local = App("/nonexistent/x.db")
    with Harness(local) as harness:
        harness.append("orders", "order.placed")
        local.on(local.log("orders"), name="new")(lambda event, ctx: None)
        for _ in range(2):
            with pytest.raises(UsageError, match="'new' is new"):
                harness.run_until_idle()


def test_the_clock_can_be_set(harness: Harness) -> None:
    assert isinstance(harness.clock, FakeClock)
    harness.clock.jump(86_400)
    assert harness.append(orders, "order.placed", {"cents": 1}).time.day == 2


def test_who_is_idle_for_long_still_hears_of_another_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    idle, busy = App("unused.db"), App("unused.db")
    idle.on(idle.log("orders"), name="look", start="first")(lambda event, ctx: seen.append(event.position))
    path, settings = str(tmp_path / "two.db"), Settings()
    with Harness(idle, path, settings=settings) as here:
        here.advance("10m")
        with Harness(busy, path, settings=settings, env=FakeEnv(here.clock, owner="another")) as there:
            there.append("orders", "order.placed")
            here.advance("1s")
    assert (seen, caplog.messages) == ([1], [])


def app_with_a_bank(seen: list[Any]) -> App:
    """An app whose own lifespan must not be opened by a test."""

    def real(app: App) -> Any:
        raise AssertionError("the app's own lifespan was opened")

    local = App("/nonexistent/x.db", lifespan=real)
    local.on(local.log("orders"), name="charge", start="first")(lambda event, ctx: seen.append(ctx.deps))
    return local


def test_harness_gives_functions_the_deps_of_the_test() -> None:
    seen: list[Any] = []
    with Harness(app_with_a_bank(seen), deps="a fake bank") as harness:
        harness.append("orders", "order.placed")
        harness.run_until_idle()
    assert seen == ["a fake bank"]


def test_harness_accepts_none_as_deps() -> None:
    seen: list[Any] = []
    with Harness(app_with_a_bank(seen), deps=None) as harness:
        harness.append("orders", "order.placed")
        harness.run_until_idle()
    assert seen == [None]


def test_harness_opens_the_lifespan_of_the_test_at_each_start() -> None:
    seen: list[Any] = []
    steps: list[str] = []
    local = app_with_a_bank(seen)

    @contextmanager
    def fake(given: App) -> Iterator[str]:
        assert given is local
        steps.append("open")
        yield "a fake bank"
        steps.append("close")

    with Harness(local, lifespan=fake) as harness:
        harness.append("orders", "order.placed")
        harness.run_until_idle()
        harness.restart()
        harness.append("orders", "order.placed")
        harness.run_until_idle()
    assert (seen, steps) == (["a fake bank"] * 2, ["open", "close"] * 2)


def test_harness_gives_the_app_its_own_lifespan_back() -> None:
    local = app_with_a_bank([])
    with Harness(local, deps="a fake bank"):
        pass
    with Harness(local) as harness, pytest.raises(AssertionError, match="own lifespan was opened"):
        harness.run_until_idle()


def test_harness_refuses_deps_beside_a_lifespan() -> None:
    with pytest.raises(UsageError, match="deps= or lifespan=, not both"):
        Harness(app_with_a_bank([]), deps=1, lifespan=lambda app: None)


def test_check_exactly_once_uses_the_deps_of_the_test() -> None:
    seen: list[Any] = []
    check_exactly_once(app_with_a_bank(seen), [("orders", "order.placed")], deps="a fake bank")
    assert set(seen) == {"a fake bank"}
