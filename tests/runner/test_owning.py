"""Ownership: one worker per subscription, the other stands by; a stalled one that wakes up commits nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from redrive import App, retry
from redrive.observe import signals as sig
from redrive.runner import leases
from redrive.runner.leases import take as take_lease
from redrive.settings import Settings
from redrive.store.address import is_postgres
from redrive.testing import Harness
from redrive.testing.crashing import Crashed
from redrive.testing.fakes import FakeEnv

LEASE = Settings(lease=10.0, poll_min=0.5, poll_max=0.5)
KINDS = pytest.mark.parametrize("kind", ["projection", "handler"])


class Workers:
    """Two processes of one program on one file and one clock. A worker that is not advanced is stopped (SIGSTOP)."""

    def __init__(self, start: Any, kind: str) -> None:
        self.seen: list[tuple[int, Any]] = []
        self.first = self._worker(start, kind, 1, None)
        self.second = self._worker(start, kind, 2, self.first)

    def _worker(self, start: Any, kind: str, number: int, before: Harness | None) -> Harness:
        app = App("/nonexistent/shop.db")

        def apply(event: Any, out: Any) -> None:
            self.seen.append((number, event.data))
            out.execute("INSERT INTO applied VALUES (:worker, :data)", {"worker": number, "data": event.data})

        if before is None:
            env, path = FakeEnv(owner="first-1"), None
        else:
            env, path = FakeEnv(before.clock, owner="second-1"), before.path
        harness: Harness = start(app, path, settings=LEASE, env=env)
        with app.transaction() as tx:
            kind_of_data = "INTEGER" if is_postgres(harness.path) else ""
            tx.execute(f"CREATE TABLE IF NOT EXISTS applied (worker INTEGER, data {kind_of_data})")
        if kind == "projection":
            app.projection(app.log("orders"), name="apply")(apply)
        else:
            app.on(app.log("orders"), name="apply", start="first")(apply)
        return harness

    def applied(self) -> list[tuple[int, Any]]:
        return self.second.query("SELECT worker, data FROM applied ORDER BY rowid")

    def owner(self) -> str | None:
        [(owner,)] = self.second.query("SELECT owner FROM redrive_progress")
        return owner


@pytest.fixture
def workers(start: Any, kind: str) -> Workers:
    return Workers(start, kind)


@KINDS
def test_the_second_process_stands_by(workers: Workers) -> None:
    workers.first.run_until_idle()
    workers.second.run_until_idle()
    workers.second.append("orders", "order.placed", 1)
    workers.first.run_until_idle()
    workers.second.run_until_idle()
    assert workers.seen == [(1, 1)]
    assert workers.second.halted == {"apply": "standby"}
    assert workers.owner() == "first-1"


@KINDS
def test_who_stands_by_does_not_look_at_each_commit_of_the_owner(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def take(engine: Any, *rest: Any, **how: Any) -> Any:
        looks.append(engine.env.owner)
        return take_lease(engine, *rest, **how)

    monkeypatch.setattr(leases, "take", take)
    workers.first.run_until_idle()
    workers.second.run_until_idle()
    looks.clear()
    for number in range(200):
        workers.second.append("orders", "order.placed", number)
        workers.first.run_until_idle()
        workers.second.advance("5ms")
    assert [number for _, number in workers.seen] == list(range(200))
    assert 20 <= looks.count("second-1") <= 40  # in a second: the looks that were saved up, and twenty


@KINDS
def test_it_takes_over_when_the_owner_is_silent_for_a_lease(workers: Workers) -> None:
    workers.first.run_until_idle()
    workers.second.append("orders", "order.placed", 1)
    workers.second.advance("9s")
    assert workers.seen == []
    workers.second.advance("2s")
    assert workers.seen == [(2, 1)]
    assert workers.owner() == "second-1"


@KINDS
def test_an_owner_that_works_keeps_its_lease(workers: Workers) -> None:
    workers.first.run_until_idle()
    workers.second.run_until_idle()
    for number in range(30):
        workers.first.advance("1s")
        workers.second.advance("1s")
        workers.second.append("orders", "order.placed", number)
    workers.first.run_until_idle()
    assert {worker for worker, _ in workers.seen} == {1}
    assert len(workers.seen) == 30


@KINDS
def test_a_dead_owner_is_replaced_at_once(workers: Workers) -> None:
    workers.first.run_until_idle()
    workers.second.append("orders", "order.placed", 1)
    workers.second.env.dead.add("first-1")
    workers.second.run_until_idle()
    assert workers.seen == [(2, 1)]
    assert workers.second.clock.monotonic() == 0


@KINDS
def test_a_graceful_end_hands_over_at_once(workers: Workers) -> None:
    workers.first.run_until_idle()
    workers.second.run_until_idle()
    workers.first.close()
    workers.second.append("orders", "order.placed", 1)
    workers.second.run_until_idle()
    assert workers.seen == [(2, 1)]
    assert workers.second.clock.monotonic() < 1


@KINDS
def test_a_stalled_owner_that_wakes_up_commits_nothing(workers: Workers) -> None:
    workers.first.run_until_idle()
    workers.second.run_until_idle()
    workers.second.append("orders", "order.placed", 1)
    workers.second.advance("11s")
    workers.second.append("orders", "order.placed", 2)
    workers.first.run_until_idle()
    workers.second.run_until_idle()
    workers.first.advance("1s")
    assert workers.applied() == [(2, 1), (2, 2)]
    assert any(isinstance(signal, sig.LeaseLost) for signal in workers.first.signals)
    assert workers.first.halted == {"apply": "standby"}


@KINDS
def test_the_epoch_grows_with_every_owner_and_never_restarts(workers: Workers) -> None:
    epochs = []
    for _ in range(3):
        for worker in (workers.first, workers.second):
            worker.advance("11s")
            epochs += worker.query("SELECT epoch FROM redrive_progress")
    assert epochs == sorted(set(epochs))


def test_a_handler_that_was_running_while_its_lease_was_lost_settles_nothing(start: Any) -> None:
    workers = Workers(start, "handler")
    entered = []

    @workers.first.app.on(workers.first.app.log("slow"), start="first")
    async def slow(event, ctx):
        entered.append(1)
        if len(entered) == 1:
            # The whole process is stopped here for longer than its lease, while the other one takes over.
            await asyncio.to_thread(workers.second.advance, "11s")
        ctx.execute("INSERT INTO applied VALUES (1, 77)")

    @workers.second.app.on(workers.second.app.log("slow"), start="first", name="slow")
    def quick(event, ctx):
        ctx.execute("INSERT INTO applied VALUES (2, 77)")

    workers.first.append("slow", "order.placed")
    workers.first.run_until_idle()
    assert workers.applied() == [(2, 77)]
    assert entered == [1]


@KINDS
def test_a_clock_that_is_set_back_does_not_keep_a_dead_lease_alive(workers: Workers) -> None:
    workers.first.run_until_idle()
    workers.second.run_until_idle()
    workers.second.clock.jump(-3600)
    workers.second.append("orders", "order.placed", 1)
    workers.second.advance("15s")
    assert workers.seen == [(2, 1)], "a whole lease on the looker's own watch is enough"


@KINDS
def test_a_crash_of_the_owner_is_taken_over_with_all_it_had_settled(workers: Workers) -> None:
    for number in range(5):
        workers.first.append("orders", "order.placed", number)
    workers.first.run_until_idle()
    workers.second.run_until_idle()
    workers.second.append("orders", "order.placed", 5)
    workers.first.crash()
    workers.second.env.dead.add("first-1")
    workers.second.advance("1s")
    assert [data for _, data in workers.applied()] == [0, 1, 2, 3, 4, 5]


@KINDS
@pytest.mark.sqlite  # a file that goes back to an earlier copy, as a promoted standby without our last commits
def test_owner_notices_a_store_without_its_last_settling(app: App, harness: Harness, kind: str) -> None:
    """The last settling was of a retry: epoch, position and version are what they were before it."""
    done: list[int] = []

    def apply(event: Any, out: Any) -> None:
        if harness.clock.monotonic() < 30:
            raise OSError
        done.append(event.data)

    rule = retry(wait="1m", jitter=0)
    if kind == "projection":
        app.projection(app.log("orders"), name="apply", retry=rule)(apply)
    else:
        app.on(app.log("orders"), name="apply", start="first", retry=rule)(apply)
    harness.append("orders", "order.placed", 1, key="a")
    harness.run_until_idle()
    copy = sqlite3.connect(":memory:")
    with closing(sqlite3.connect(harness.path)) as live:
        live.backup(copy)
    harness.advance("1m")
    assert done == [1]
    with closing(sqlite3.connect(harness.path)) as live, closing(copy):
        copy.backup(live)
    assert [letter.state for letter in harness.letters()] == ["retrying"]
    harness.advance("2m")
    assert done == [1, 1]
    assert [letter.state for letter in harness.letters()] == ["applied"]


def test_crashed_is_what_the_harness_says_about_a_death_inside(app: App, harness: Harness) -> None:
    app.on(app.log("orders"), start="first", name="die")(lambda event, ctx: harness.crash())
    harness.append("orders", "order.placed")
    with pytest.raises(Crashed):
        harness.run_until_idle()
