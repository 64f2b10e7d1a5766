"""What comes now and then lands on the thread that read it, time after time; the loop is told when it has to know."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from streamshop import say

from redrive import App
from redrive.redis import Stream
from redrive.runner import land
from redrive.runner.land import Landing, LandingLoop
from redrive.settings import Settings

PATIENCE = 30.0


class Seen:
    """What was applied, and who did it."""

    def __init__(self, app: App, stream: Stream) -> None:
        self.numbers, self.threads, self.changed = list[int](), set[str](), threading.Condition()

        @app.projection(stream, "order.placed", name="seen", start="first")
        def seen(event: Any, tx: Any) -> None:
            with self.changed:
                self.numbers.append(event.data["n"])
                self.threads.add(threading.current_thread().name.partition(" ")[0].partition("_")[0])
                self.changed.notify_all()

    async def wait_for(self, count: int) -> None:
        def wait() -> None:
            with self.changed:
                assert self.changed.wait_for(lambda: len(self.numbers) >= count, PATIENCE), self.numbers

        await asyncio.to_thread(wait)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the loop had its say, and how often something landed."""
    counted = {"rounds": 0, "landings": 0, "refused": 0}
    one_round, one_landing = LandingLoop._round, Landing.land

    async def one(self: Any, reader: Any) -> None:
        counted["rounds"] += 1
        await one_round(self, reader)

    def landing(self: Any, *args: Any) -> bool:
        landed = one_landing(self, *args)
        counted["landings" if landed else "refused"] += 1
        return landed

    monkeypatch.setattr(LandingLoop, "_round", one)
    monkeypatch.setattr(Landing, "land", landing)
    return counted


def test_one_after_the_other_needs_no_loop_in_between(
    tmp_path: Path, valkey_url: str, server: Any, rounds: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(land, "AWAY_SECONDS_MAX", 3_600.0)
    monkeypatch.setattr(land, "WAIT_MIN", 60.0)  # it has nothing to come back for
    monkeypatch.setattr(land, "WAIT_MAX", 60.0)
    app = App(str(tmp_path / "shop.db"), name="shop", settings=Settings(lease=600.0))  # who is not woken sleeps long
    seen = Seen(app, Stream(valkey_url, "orders", partitions=1))

    async def serve() -> None:
        async with app.running():
            for number in range(1, 101):
                await asyncio.to_thread(say, server, 1)
                await seen.wait_for(number)

    asyncio.run(serve())
    app.close()
    assert len(seen.numbers) == rounds["landings"] == 100
    assert rounds["rounds"] <= 10, "three to begin with, and one to end"
    assert "redrive-intake" in seen.threads


def test_a_pause_ends_it_and_a_stop_does(
    tmp_path: Path, valkey_url: str, server: Any, rounds: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(land, "AWAY_SECONDS_MAX", 3_600.0)
    app = App(str(tmp_path / "shop.db"), name="shop")
    seen, desk = Seen(app, Stream(valkey_url, "orders", partitions=1)), app.operate("test")

    async def serve() -> None:
        async with app.running():
            await asyncio.to_thread(say, server, 3)
            await seen.wait_for(3)
            desk.subscriptions.pause("redis:orders")
            await asyncio.to_thread(say, server, 3)
            while not rounds["refused"]:
                await asyncio.sleep(0.001)
            assert len(seen.numbers) == 3
            desk.subscriptions.resume("redis:orders")
            await seen.wait_for(6)

    asyncio.run(asyncio.wait_for(serve(), PATIENCE))
    app.close()
    assert len(seen.numbers) == 6


def test_a_projection_that_hangs_there_does_not_hold_up_a_stop(tmp_path: Path, valkey_url: str, server: Any) -> None:
    """Nobody waits for it longer than `stop_timeout`, and its thread does not keep the process from ending."""
    app = App(str(tmp_path / "shop.db"), name="shop", settings=Settings(stop_timeout=0.1))
    hangs, go_on, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    @app.projection(Stream(valkey_url, "orders", partitions=1), "order.placed", start="first")
    def seen(event: Any, tx: Any) -> None:
        threads.append(threading.current_thread())
        if len(threads) > 5 and "intake" in threads[-1].name:
            hangs.set()
            assert go_on.wait(PATIENCE)

    async def serve() -> None:
        async with app.running():
            while not hangs.is_set():
                await asyncio.to_thread(say, server, 1)
                await asyncio.sleep(0.005)

    try:
        asyncio.run(asyncio.wait_for(serve(), PATIENCE / 2))
        assert hangs.is_set() and not go_on.is_set()
        assert threads[-1].daemon
    finally:
        go_on.set()
        app.close()
