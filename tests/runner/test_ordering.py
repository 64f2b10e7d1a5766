"""Order: what a failed event holds back, for `order="key"`, `"none"` and `"total"`, in projections and handlers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import App, UsageError, no_retry, retry
from redrive.observe import signals as sig
from redrive.settings import Settings
from redrive.testing import Harness, failpoint

ONE_RETRY = retry(attempts=2, wait="1m", jitter=0)
KINDS = pytest.mark.parametrize("kind", ["projection", "handler"])


class Log:
    """What a function that fails for some events has applied, in order."""

    def __init__(self, app: App, kind: str, **options: Any) -> None:
        self.done: list[str] = []
        self.failing: set[str] = set()
        self.called: list[str] = []

        def apply(event: Any, _: Any) -> None:
            name = event.data["name"]
            self.called.append(name)
            if name in self.failing:
                raise OSError(name)
            if kind == "projection":
                _.execute("INSERT INTO applied (name) VALUES (:name)", {"name": name})
            else:
                _.execute("INSERT INTO applied (name) VALUES (:name)", {"name": name})

        options = {"start": "first", "retry": ONE_RETRY, **options}
        if kind == "projection":
            app.projection(app.log("orders"), tables={"applied": "n INTEGER PRIMARY KEY, name TEXT"}, **options)(apply)
        else:
            app.on(app.log("orders"), **options)(apply)

            @app.projection(app.log("nothing"), tables={"applied": "n INTEGER PRIMARY KEY, name TEXT"})
            def owner(event, tx): ...


def append(harness: Harness, *names: str) -> None:
    """The key of an event is the first letter of its name."""
    for name in names:
        harness.append("orders", "order.placed", {"name": name}, key=name[0])


def applied(harness: Harness) -> list[str]:
    return [name for (name,) in harness.query("SELECT name FROM applied ORDER BY n")]


def states(harness: Harness) -> dict[str, str]:
    names = dict(harness.query("SELECT position, data FROM redrive_events"))
    return {names[letter.position].decode()[9:-2]: letter.state for letter in harness.letters()}


@KINDS
def test_by_key_a_failed_event_holds_back_its_own_key_only(app: App, harness: Harness, kind: str) -> None:
    log = Log(app, kind)
    log.failing = {"a1"}
    append(harness, "a1", "b1", "a2", "b2", "a3")
    harness.run_until_idle()
    assert applied(harness) == ["b1", "b2"]
    assert states(harness) == {"a1": "retrying", "a2": "retrying", "a3": "retrying"}
    reasons = [(letter.reason, letter.attempts) for letter in harness.letters()]
    assert reasons == [("failing", 1), ("behind_head", 0), ("behind_head", 0)]


@KINDS
def test_followers_drain_in_order_once_their_head_succeeds(app: App, harness: Harness, kind: str) -> None:
    log = Log(app, kind)
    log.failing = {"a1"}
    append(harness, "a1", "a2", "a3", "b1")
    harness.run_until_idle()
    append(harness, "a4")
    log.failing = set()
    harness.advance("1m")
    append(harness, "a5")
    harness.run_until_idle()
    assert applied(harness) == ["b1", "a1", "a2", "a3", "a4", "a5"]
    assert set(states(harness).values()) == {"applied"}
    assert "a5" not in states(harness)


@KINDS
def test_a_follower_that_fails_becomes_the_head_with_attempts_of_its_own(app: App, harness: Harness, kind: str) -> None:
    log = Log(app, kind)
    log.failing = {"a1", "a2"}
    append(harness, "a1", "a2", "a3")
    harness.run_until_idle()
    log.failing = {"a2"}
    harness.advance("1m")
    assert (applied(harness), states(harness)) == (["a1"], {"a1": "applied", "a2": "retrying", "a3": "retrying"})
    harness.advance("1m")
    assert states(harness) == {"a1": "applied", "a2": "dead", "a3": "retrying"}
    assert applied(harness) == ["a1"]


@KINDS
def test_a_dead_head_holds_its_key_for_as_long_as_it_is_dead(app: App, harness: Harness, kind: str) -> None:
    log = Log(app, kind, retry=no_retry)
    log.failing = {"a1"}
    append(harness, "a1", "a2", "b1")
    harness.advance("7d")
    append(harness, "a3", "b2")
    harness.restart()
    harness.advance("7d")
    assert applied(harness) == ["b1", "b2"]
    assert states(harness) == {"a1": "dead", "a2": "retrying", "a3": "retrying"}


@KINDS
def test_an_event_without_a_key_holds_back_nobody(app: App, harness: Harness, kind: str) -> None:
    log = Log(app, kind)
    log.failing = {"x1"}
    for name in ("x1", "x2", "x3"):
        harness.append("orders", "order.placed", {"name": name})
    harness.run_until_idle()
    assert applied(harness) == ["x2", "x3"]
    log.failing = set()
    harness.advance("1m")
    assert applied(harness) == ["x2", "x3", "x1"]


@KINDS
def test_without_order_a_failed_event_is_put_aside_and_its_key_flows_on(app: App, harness: Harness, kind: str) -> None:
    log = Log(app, kind, order="none")
    log.failing = {"a1"}
    append(harness, "a1", "a2", "b1", "a3")
    harness.run_until_idle()
    assert applied(harness) == ["a2", "b1", "a3"]
    log.failing = set()
    harness.advance("1m")
    assert applied(harness) == ["a2", "b1", "a3", "a1"]
    assert states(harness) == {"a1": "applied"}


@KINDS
def test_in_total_order_everything_waits_for_the_failed_event(app: App, harness: Harness, kind: str) -> None:
    log = Log(app, kind, order="total")
    log.failing = {"b1"}
    append(harness, "a1", "b1", "c1", "a2")
    harness.run_until_idle()
    assert applied(harness) == ["a1"]
    assert states(harness) == {"b1": "retrying"}
    harness.restart()
    harness.run_until_idle()
    assert applied(harness) == ["a1"]
    log.failing = set()
    harness.advance("1m")
    assert applied(harness) == ["a1", "b1", "c1", "a2"]


@KINDS
def test_in_total_order_a_dead_letter_stops_the_subscription(app: App, harness: Harness, kind: str) -> None:
    log = Log(app, kind, order="total", retry=no_retry)
    log.failing = {"b1"}
    append(harness, "a1", "b1", "c1")
    harness.advance("1d")
    assert (applied(harness), states(harness)) == (["a1"], {"b1": "dead"})


@KINDS
@pytest.mark.parametrize("order", ["key", "none", "total"])
def test_an_idle_worker_notices_at_once_that_an_operator_replays(
    app: App, harness: Harness, kind: str, order: str
) -> None:
    log = Log(app, kind, order=order, retry=no_retry)
    log.failing = {"a1"}
    append(harness, "a1", "b1")
    harness.run_until_idle()
    log.failing = set()
    harness.replay()
    assert sorted(applied(harness)) == ["a1", "b1"]
    assert harness.clock.monotonic() == 0


@KINDS
@pytest.mark.parametrize("order", ["key", "total"])
def test_an_idle_worker_goes_on_at_once_when_an_operator_discards(
    app: App, harness: Harness, kind: str, order: str
) -> None:
    log = Log(app, kind, order=order, retry=no_retry)
    log.failing = {"a1"}
    append(harness, "a1", "a2", "b1")
    harness.run_until_idle()
    app.operate("ada").letters.discard(harness.letters("dead"), "not needed")
    harness.run_until_idle()
    assert sorted(applied(harness)) == ["a2", "b1"]


def test_total_order_refuses_concurrency(app: App) -> None:
    with pytest.raises(UsageError, match="total order runs one at a time"):
        app.on(app.log("orders"), order="total", concurrency=2)(lambda event, ctx: None)


def test_an_unknown_order_is_refused(app: App) -> None:
    with pytest.raises(UsageError, match='order is "key", "none" or "total"'):
        app.on(app.log("orders"), order="fifo")(lambda event, ctx: None)  # type: ignore[arg-type]


@KINDS
def test_a_failure_in_the_middle_of_a_batch_leaves_its_neighbours_applied_once(
    app: App, harness: Harness, kind: str
) -> None:
    log = Log(app, kind, retry=no_retry)
    names = [f"{key}{number}" for number in range(20) for key in "abcdefgh"]
    log.failing = {"c7", "d7", "h19", "a0"}
    append(harness, *names)
    harness.run_until_idle()
    held = {name for name in names for bad in log.failing if name[0] == bad[0] and int(name[1:]) >= int(bad[1:])}
    good = [name for name in names if name not in held]
    assert sorted(applied(harness)) == sorted(good)
    for key in "abcdefgh":
        assert [name for name in applied(harness) if name[0] == key] == [name for name in good if name[0] == key]
    assert set(states(harness)) == held


def test_concurrency_runs_different_keys_side_by_side_and_one_key_in_order(app: App, harness: Harness) -> None:
    trace = []

    @app.on(app.log("orders"), start="first", concurrency=3)
    async def charge(event, ctx):
        trace.append(("begin", event.data["name"]))
        await asyncio.sleep(1)
        trace.append(("end", event.data["name"]))

    append(harness, "a1", "a2", "b1", "c1", "d1")
    harness.run_until_idle()
    assert trace[:3] == [("begin", "a1"), ("begin", "b1"), ("begin", "c1")]
    assert trace.index(("end", "a1")) < trace.index(("begin", "a2"))
    running = most = 0
    for what, _ in trace:
        running += 1 if what == "begin" else -1
        most = max(most, running)
    assert most == 3


def test_without_concurrency_one_event_runs_at_a_time(app: App, harness: Harness) -> None:
    trace = []

    @app.on(app.log("orders"), start="first")
    async def charge(event, ctx):
        trace.append("begin")
        await asyncio.sleep(1)
        trace.append("end")

    append(harness, "a1", "b1", "c1")
    harness.run_until_idle()
    assert trace == ["begin", "end"] * 3


def test_a_key_stays_busy_until_its_settling_is_committed(app: App, harness: Harness) -> None:
    """The second event of a key must see the first one's state, however fast it comes."""
    seen = []

    @app.on(app.log("orders"), start="first", concurrency=4)
    async def count(event, ctx):
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        seen.append((event.key, ctx.state["n"]))

    append(harness, *[f"{key}{n}" for n in range(5) for key in "abc"])
    harness.run_until_idle()
    assert [n for key, n in seen if key == "b"] == [1, 2, 3, 4, 5]


SMALL = Settings(batch_max=1, lane_max=3, window_max=3, settle_max=3, lease=1e6, poll_min=1e6, poll_max=1e6)


@KINDS
def test_a_full_lane_stops_intake_and_retries_go_on(app: App, start: Any, kind: str) -> None:
    harness = start(app, settings=SMALL)
    log = Log(app, kind, retry=retry(attempts=9, wait="1m", factor=1, jitter=0))
    log.failing = {"a1"}
    append(harness, "a1", "a2", "a3")
    harness.run_until_idle()
    append(harness, "a4", "b1")
    harness.run_until_idle()
    assert applied(harness) == []
    assert sorted(states(harness)) == ["a1", "a2", "a3"]
    [full] = [signal for signal in harness.signals if isinstance(signal, sig.LaneFull)]
    assert (full.lane, full.size) == ("a", 3)
    harness.advance("1m")
    assert harness.letters()[0].attempts == 2
    log.failing = set()
    harness.advance("1m")
    assert [name for name in applied(harness) if name[0] == "a"] == ["a1", "a2", "a3", "a4"]
    assert "b1" in applied(harness)


@KINDS
def test_a_full_lane_is_waited_for_quietly(app: App, start: Any, kind: str) -> None:
    """An empty commit would be news to our own poller, and the next turn would commit again, every millisecond."""
    harness = start(app, settings=Settings(batch_max=1, lane_max=3, window_max=3, settle_max=3, lease=1e6))
    log = Log(app, kind, retry=no_retry)
    log.failing = {"a1"}
    append(harness, "a1", "a2", "a3", "a4", "b1")
    harness.run_until_idle()
    harness.advance("1s")
    place = "batch.fenced" if kind == "projection" else "round.fenced"
    with failpoint(place, lambda: None, at=10**9) as turns:
        harness.advance("10s")
    assert turns.hits <= 1, "one look when the harness asks, no more"


@KINDS
def test_one_failing_subscription_never_blocks_another(app: App, harness: Harness, kind: str) -> None:
    log = Log(app, kind, order="total")
    log.failing = {"a1"}
    seen = []

    @app.on(app.log("orders"), start="first")
    def other(event, ctx):
        seen.append(event.data["name"])

    append(harness, "a1", "b1", "c1")
    harness.run_until_idle()
    assert (applied(harness), seen) == ([], ["a1", "b1", "c1"])


@KINDS
def test_progress_never_passes_an_unsettled_event(app: App, harness: Harness, kind: str) -> None:
    log = Log(app, kind)
    log.failing = {"b1"}
    append(harness, "a1", "b1", "c1")
    harness.run_until_idle()
    [(position, applied_count)] = harness.query(
        "SELECT position, applied FROM redrive_progress WHERE subscription ="
        " (SELECT id FROM redrive_subscriptions WHERE name = 'apply')"
    )
    assert (position, applied_count) == (3, 2)
    assert harness.query("SELECT * FROM redrive_done") == []
