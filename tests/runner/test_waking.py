"""What wakes a worker on SQLite: news of other connections, not what it has committed itself."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event
from redrive.runner.loop import HandlerLoop
from redrive.runner.wake import Wake
from redrive.settings import Settings

N = 300


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


def test_what_an_owner_settles_is_no_news_and_all_else_is(path: str) -> None:
    app, other = App(path), App(path)
    orders = app.log("orders")

    @app.on(orders, start="first")
    def ship(event: Event[Any], ctx: Ctx) -> None:
        """Nothing can go wrong."""

    orders.append("placed", 1, key="ada")
    app.run(until_idle=True)
    store = other.runtime.store
    try:
        assert store.changed(), "nobody has looked yet"
        assert not store.changed()
        with app.runtime.store.transaction() as tx:
            row = tx.progress.member(1)
            change = {"member": 1, "epoch": row.epoch, "position": row.position, "anchor": row.anchor, "applied": 0}
            tx.progress.advance({**change, "ignored": 0, "now": 1.0, "last_type": None, "last_time_us": None})
        assert not store.changed(), "progress is no news"
        orders.append("placed", 2, key="ada")
        assert store.changed()
        orders.append("placed", 3, key="ada", after="30m")
        assert store.changed(), "the first that is scheduled"
        orders.append("placed", 4, key="ada", after="40m")
        assert not store.changed(), "one that is due later"
        orders.append("placed", 5, key="ada", after="20m")
        assert store.changed()
        app.operate("ada").subscriptions.pause("ship")
        assert store.changed()
        assert not store.changed()
    finally:
        app.close()
        other.close()


def test_what_everybody_was_told_of_is_no_news_unless_somebody_else_was_there(path: str) -> None:
    app, other = App(path), App(path)
    orders, theirs, store = app.log("orders"), other.log("orders"), app.runtime.store

    def land(count: int = 1) -> None:
        """As a landing appends: whoever waits here was rung."""
        first, *_, last = [orders.append("placed").position for _ in range(count + 1)]
        store.news.told(first, last)

    try:
        assert store.changed(), "nobody has looked yet"
        land()
        assert not store.changed()
        land(3)
        land()
        assert not store.changed()
        land()
        theirs.append("placed")
        assert store.changed(), "the last is another's"
        theirs.append("placed")
        land()
        assert store.changed(), "the first is another's"
        land()
        theirs.append("placed")
        land()
        assert store.changed(), "one in between is another's"
        land()
        theirs.append("placed", after="30m")
        assert store.changed(), "something else has changed, too"
        land()
        assert not store.changed()
        store.news.told(10**6, 10**6 + 5)
        theirs.append("placed")
        assert store.changed(), "what is not there yet does not count"
    finally:
        app.close()
        other.close()


def test_a_log_that_has_nothing_more_is_not_asked_again_until_somebody_rings(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question is a hop to another thread and back, while functions want to run."""
    did: list[tuple[int, int] | None] = []  # outcomes settled and events taken in by a hop; None: a rest
    hop, rest = HandlerLoop._hop, HandlerLoop.rest

    async def hopping(loop: HandlerLoop, group: Any, room: int, due: Any) -> Any:
        found = await hop(loop, group, room, due)
        did.append((len(group.works), len(found.events)))
        return found

    async def resting(loop: HandlerLoop, idle: bool, seconds: float, *, hears: bool) -> None:
        await rest(loop, idle, seconds, hears=hears)
        did.append(None)

    monkeypatch.setattr(HandlerLoop, "_hop", hopping)
    monkeypatch.setattr(HandlerLoop, "rest", resting)
    app = App(path)
    orders = app.log("orders")

    @app.on(orders, start="first", concurrency=4)
    async def ship(event: Event[Any], ctx: Ctx) -> None:
        await asyncio.sleep(0)

    orders.append_many([{"type": "placed", "data": n, "key": str(n)} for n in range(N)])
    app.run(until_idle=True)
    app.close()
    hops = [one for one in did if one is not None]
    assert [sum(column) for column in zip(*hops, strict=True)] == [N, N]
    in_vain = [pair for pair in pairwise(did) if pair[1] == (0, 0) and pair[0] is not None and pair[0][1] == 0]
    assert in_vain == []


def test_commits_of_others_are_looked_for_only_while_there_is_room_for_them(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: set[tuple[int, bool]] = set()  # calls that had begun, and whether others would be heard of
    wait, full = Wake.wait, asyncio.Event()

    async def waiting(wake: Wake, seconds: float | None, *, hears: bool | None = None) -> None:
        if hears is None:  # not the handler: who appends what is due waits, too, at any time
            await wait(wake, seconds)
            return
        if not full.is_set():
            heard.add((started, hears))
        task = asyncio.ensure_future(wait(wake, seconds, hears=hears))
        await asyncio.sleep(0)
        assert wake.is_waited_for == hears or wake.pending or task.done()
        await task

    monkeypatch.setattr(Wake, "wait", waiting)
    app = App(path, settings=Settings(window_max=3, settle_max=1))
    orders, started = app.log("orders"), 0

    @app.on(orders, start="first", concurrency=3)
    async def ship(event: Event[Any], ctx: Ctx) -> None:
        nonlocal started
        started += 1
        while (started, started < 3) not in heard:  # one more is appended when this was waited for
            await asyncio.sleep(0)
        if started < 3:
            orders.append("placed", started, key=str(started))
        await full.wait()

    async def main() -> None:
        async with app.running():
            while (3, False) not in heard:
                await asyncio.sleep(0)
            full.set()

    orders.append("placed", 0, key="0")
    asyncio.run(asyncio.wait_for(main(), 60))
    app.close()
    assert {(1, True), (2, True), (3, False)} <= heard
    assert not heard & {(1, False), (3, True)}  # of three in memory, two may have been called
