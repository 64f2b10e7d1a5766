"""Health is honest: what is wrong is said, and nothing is green while it is."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from redrive import App, StoreError, health
from redrive.replay.health import Health
from redrive.settings import Settings
from redrive.testing import Harness
from redrive.testing.fakes import FakeEnv
from redrive.watch import STUCK_SECONDS


def wrong(found: Health) -> list[tuple[str, str | None]]:
    return [(check.name, check.subscription) for check in found.checks if not check.ok]


def test_an_app_that_works_is_healthy_and_ready(app: App, harness: Harness) -> None:
    harness.append("orders", "fine")
    harness.run_until_idle()
    found = health(app, verify=True)
    assert (found.live, found.ready, found.healthy, found.is_ready) == (True, "ready", True, True)
    assert found.shown()["checks"][-1] == {
        "check": "ledger", "ok": True, "message": "every event is accounted for, once",
    }  # fmt: skip


def test_a_subscription_that_halted_is_never_green(app: App, harness: Harness) -> None:
    harness.append("orders", "fine")
    harness.run_until_idle()
    harness.append("orders", "fine")
    harness.fault = StoreError("the disk is full")
    harness.advance("1s")
    found = health(app)
    assert (found.live, found.ready, found.healthy) == (True, "broken", False)
    assert wrong(found) == [("halted", "charge")]
    assert "the disk is full" in found.shown()["checks"][-1]["message"]
    harness.fault = None
    harness.advance("1m")
    assert health(app).healthy


def test_one_that_halted_elsewhere_is_seen_in_the_store(app: App, harness: Harness) -> None:
    harness.append("orders", "fine")
    harness.run_until_idle()
    with app.runtime.store.transaction() as tx:
        [member] = tx.progress.members(1)
        tx.sql.run("halted_set", {"reason": "the anchor is gone", "member": member.member, "epoch": member.epoch})
    found = health(app)
    assert wrong(found) == [("halted", "charge")]
    assert found.ready == "ready"  # this process can still work
    with app.runtime.store.transaction() as tx:
        tx.sql.run("halted_set", {"reason": None, "member": member.member, "epoch": member.epoch})


def test_a_pause_is_shown_and_is_not_an_illness(app: App, harness: Harness) -> None:
    harness.append("orders", "fine")
    harness.run_until_idle()
    app.operate("ada").subscriptions.pause("charge", "a test")
    found = health(app)
    assert found.healthy
    assert [check.subscription for check in found.checks if check.name == "paused"] == ["charge"]


def test_a_worker_that_stands_by_is_ready_and_says_so(app: App, harness: Harness, tmp_path: Path) -> None:
    harness.append("orders", "fine")
    harness.run_until_idle()
    rival = App(str(tmp_path / "rival.db"))
    rival.on(rival.log("orders"), start="first", name="charge")(lambda event, ctx: None)
    with Harness(rival, harness.path, env=FakeEnv(harness.clock, owner="rival-1")) as second:
        second.run_until_idle()
        found = health(rival)
    assert (found.ready, found.is_ready, found.healthy) == ("standby", True, True)


def test_an_event_that_is_not_accounted_for_is_found_when_asked_to_look(app: App, harness: Harness) -> None:
    harness.append("orders", "fine")
    harness.run_until_idle()
    with app.runtime.store.transaction() as tx:
        [member] = tx.progress.members(1)
        change = {"applied": 1, "ignored": 0, "anchor": None, "now": 1.0, "last_type": None, "last_time_us": None}
        tx.sql.run("advance", {"member": member.member, "epoch": member.epoch, "position": member.position, **change})
    assert health(app).healthy  # nobody counted
    found = health(app, verify=True)
    assert wrong(found) == [("ledger", "charge")] and not found.healthy


def test_a_store_without_the_progress_of_a_subscription_contradicts_itself(app: App, harness: Harness) -> None:
    harness.append("orders", "fine")
    harness.run_until_idle()
    with app.runtime.store.transaction() as tx:
        tx.sql.run("members_drop", {"subscription": 1})
    found = health(app)
    assert wrong(found) == [("ledger", None)] and found.ready == "broken"


def test_signals_that_nobody_got_are_an_illness(app: App, harness: Harness) -> None:
    app.runtime.signals.dropped = 3
    found = health(app)
    assert wrong(found) == [("signals", None)]
    assert "3 batches" in next(check.message for check in found.checks if not check.ok)


def test_a_store_that_cannot_be_read_is_not_ready(app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.run_until_idle()

    def gone() -> Any:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(app.runtime.store, "reading", gone)
        found = health(app)
    assert (found.live, found.ready, found.healthy) == (True, "broken", False)
    assert wrong(found) == [("store", None)]


def test_a_store_that_is_not_there_is_said(tmp_path: Path) -> None:
    found = health(App(str(tmp_path / "missing" / "shop.db")))
    assert wrong(found) == [("store", None)] and found.ready == "stopped"


def test_a_producer_that_runs_nothing_is_healthy_and_not_ready(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    app.log("orders").append("order.placed")
    found = health(app)
    app.close()
    assert (found.live, found.ready, found.healthy, found.is_ready) == (True, "stopped", True, False)


def test_asked_from_the_event_loop_it_does_not_wait_for_itself(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"), settings=Settings())
    app.on(app.log("orders"), start="first", name="charge")(lambda event, ctx: None)

    async def ask() -> tuple[Health, float]:
        async with app.running():
            started = time.monotonic()
            return health(app), time.monotonic() - started

    found, seconds = asyncio.run(ask())
    app.close()
    assert found.live and seconds < STUCK_SECONDS / 2


def test_a_function_that_blocks_the_event_loop_is_noticed(tmp_path: Path) -> None:
    """From another thread, as the pages of `run` do it."""
    app = App(str(tmp_path / "shop.db"), settings=Settings())
    looked: list[Health] = []

    @app.on(app.log("orders"), start="first")
    async def block(event: Any, ctx: Any) -> None:
        from threading import Thread

        looker = Thread(target=lambda: looked.append(health(app)))
        looker.start()
        looker.join()  # the loop stands still for as long as the other thread waits for it to turn

    app.log("orders").append("order.placed")
    app.run(until_idle=True)
    app.close()
    [found] = looked
    assert not found.live and not found.is_ready and not found.healthy
    assert wrong(found) == [("worker", None)]
