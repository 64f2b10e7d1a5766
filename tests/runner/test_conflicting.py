"""Version conflicts: re-run in place on fresh state, at no cost to the event, a few times."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from redrive import App, VersionConflict, conflicts, no_retry, retry
from redrive.testing import Harness


def waits(times: list[float]) -> list[float]:
    """Between moments: a projection may be called twice in one attempt, because it touches nothing but the database."""
    return [round(late - early, 3) for early, late in pairwise(sorted(set(times)))]


def test_a_conflict_that_escapes_a_handler_is_rerun_after_50_100_and_200_ms(app: App, harness: Harness) -> None:
    times, attempts = [], []

    @app.on(app.log("orders"), start="first", retry=no_retry)
    def charge(event, ctx):
        times.append(harness.clock.now())
        attempts.append(ctx.attempt)
        raise VersionConflict("orders", "a", 1, 2)

    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    assert waits(times) == [0.05, 0.1, 0.2]
    assert attempts == [1, 1, 1, 1]
    [letter] = harness.letters()
    assert (letter.state, letter.attempts, letter.reason) == ("dead", 1, "attempts_exhausted")


def test_after_the_reruns_a_conflict_is_a_failure_like_any_other(app: App, harness: Harness) -> None:
    attempts = []

    @app.on(app.log("orders"), start="first", retry=retry(attempts=2, wait="10s", jitter=0))
    def charge(event, ctx):
        attempts.append(ctx.attempt)
        raise VersionConflict("orders", "a", 1, 2)

    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    assert attempts == [1] * 4
    assert harness.letters()[0].state == "retrying"
    harness.advance("1m")
    assert attempts == [1] * 4 + [2] * 4
    assert harness.letters()[0].error_type.endswith("VersionConflict")


@pytest.mark.parametrize("kind", ["handler", "projection"])
def test_an_emission_with_a_stale_version_is_rerun_and_then_succeeds(app: App, harness: Harness, kind: str) -> None:
    """The other writer comes between reading the version and settling; the second run sees it."""
    accounts = app.log("accounts")
    runs = []

    def book(event: Any, out: Any) -> None:
        version = len(accounts.read_key("a"))
        runs.append(version)
        if len(runs) == 1:  # what a rival would have done meanwhile
            version -= 1
        out.emit(accounts, "booked", key="a", expected_version=version)

    harness.append(accounts, "opened", key="a")
    if kind == "handler":
        app.on(app.log("orders"), start="first")(book)
    else:
        app.projection(app.log("orders"))(book)
    harness.append("orders", "order.placed", key="x")
    harness.run_until_idle()
    assert runs[-1] == 1
    assert [(event.type, event.version) for event in accounts.read_key("a")] == [("opened", 1), ("booked", 2)]
    assert harness.letters() == []


def test_a_handlers_conflicting_emission_drops_all_its_effects(app: App, harness: Harness) -> None:
    accounts = app.log("accounts")

    @app.projection(app.log("unused"), tables={"notes": "text TEXT"})
    def owner(event, tx): ...

    @app.on(app.log("orders"), start="first", retry=no_retry)
    def book(event, ctx):
        ctx.state["n"] = 1
        ctx.execute("INSERT INTO notes VALUES ('half')")
        ctx.emit(accounts, "booked", key="a", expected_version=7)

    harness.append("orders", "order.placed", key="x")
    harness.run_until_idle()
    assert harness.query("SELECT * FROM notes") == []
    assert harness.query("SELECT * FROM redrive_state") == []
    assert [letter.state for letter in harness.letters()] == ["dead"]


def test_conflicts_may_be_switched_off(app: App, harness: Harness) -> None:
    runs = []

    @app.on(app.log("orders"), start="first", retry=no_retry, conflicts=conflicts(times=0))
    def charge(event, ctx):
        runs.append(1)
        raise VersionConflict("orders", "a", 1, 2)

    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    assert len(runs) == 1


def test_conflicts_take_their_times_waits_and_cap(app: App, harness: Harness) -> None:
    times = []

    @app.projection(app.log("orders"), retry=no_retry, conflicts=conflicts(times=4, wait="400ms", wait_max="1s"))
    def book(event, tx):
        times.append(harness.clock.now())
        raise VersionConflict("orders", "a", 1, 2)

    harness.append("orders", "order.placed", key="a")
    harness.run_until_idle()
    assert waits(times) == [0.4, 0.8, 1, 1]
    assert [letter.state for letter in harness.letters()] == ["dead"]


def test_while_one_key_waits_for_its_rerun_other_keys_of_a_handler_flow(app: App, harness: Harness) -> None:
    done = []

    @app.on(app.log("orders"), start="first")
    async def charge(event, ctx):
        if event.key == "a" and not any(key == "a" for key, _ in done):
            done.append(("a", "conflict"))
            raise VersionConflict("orders", "a", 1, 2)
        done.append((event.key, event.version))

    for key in ("a", "a", "b"):
        harness.append("orders", "order.placed", key=key)
    harness.run_until_idle()
    assert done == [("a", "conflict"), ("b", 1), ("a", 1), ("a", 2)]


def test_a_conflict_in_a_projection_takes_back_what_the_run_wrote(app: App, harness: Harness) -> None:
    runs = []

    @app.projection(app.log("orders"), tables={"seen": "key TEXT"})
    def seen(event, tx):
        tx.execute("INSERT INTO seen VALUES (:key)", {"key": event.key})
        runs.append(event.key)
        if event.key == "b" and runs.count("b") < 3:
            raise VersionConflict("orders", "b", 1, 2)

    for key in "abc":
        harness.append("orders", "order.placed", key=key)
    harness.run_until_idle()
    assert harness.query("SELECT key FROM seen") == [("a",), ("b",), ("c",)]
    assert harness.letters() == []


def test_conflicts_over_keyed_state_spend_no_attempt(app: App, harness: Harness) -> None:
    """A slow call loses to a quick one of its key again and again, more often than conflicts are run again at all."""
    import asyncio

    orders, attempts = app.log("orders"), []

    @app.on(orders, start="first", order="none", concurrency=2, retry=no_retry, conflicts=conflicts(times=1))
    async def count(event, ctx):
        seen = ctx.state.get("n", 0)
        if event.data == "slow":
            attempts.append(ctx.attempt)
            if len(attempts) <= 4:
                await orders.append_async("order.placed", "quick", key="a")
            await asyncio.sleep(1)
        ctx.state["n"] = seen + 1

    harness.append(orders, "order.placed", "slow", key="a")
    harness.advance("1m")
    assert harness.query("SELECT data FROM redrive_state") == [(b'{"n":5}',)]
    assert attempts == [1, 1, 1, 1, 1]
    assert harness.letters() == []


def test_keyed_state_that_moved_under_an_unordered_handler_is_rerun_on_fresh_state(app: App, harness: Harness) -> None:
    import asyncio

    @app.on(app.log("orders"), start="first", order="none", concurrency=5)
    async def count(event, ctx):
        seen = ctx.state.get("n", 0)
        await asyncio.sleep(0.01)
        ctx.state["n"] = seen + 1

    for _ in range(5):
        harness.append("orders", "order.placed", key="a")
    harness.advance("1m")
    assert harness.query("SELECT data FROM redrive_state") == [(b'{"n":5}',)]
    assert {letter.state for letter in harness.letters()} <= {"applied"}
