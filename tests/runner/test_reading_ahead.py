"""Reading ahead: while a group is committed another thread reads what comes next, and nothing else changes."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App
from redrive.errors import StoreBusy
from redrive.store.ahead import Ahead, Lookout

KEYS = 150  # more than a group must have to be worth another thread


@pytest.fixture
def lookout() -> Iterator[Lookout]:
    made = Lookout("a test")
    yield made
    made.stop()


def test_what_is_begun_is_read_once_by_another_thread(lookout: Lookout) -> None:
    readers: list[str] = []
    ahead = Ahead(lookout, lambda: readers.append(threading.current_thread().name))
    ahead.begin()
    ahead.begin()
    ahead.result()
    assert readers == ["redrive-lookout a test"]


def test_what_was_never_begun_is_read_where_it_is_wanted(lookout: Lookout) -> None:
    assert Ahead(lookout, threading.current_thread).result() is threading.current_thread()


def test_what_went_wrong_is_told_to_who_wants_the_answer(lookout: Lookout) -> None:
    def read() -> None:
        raise StoreBusy("somebody else")

    ahead, next_one = Ahead(lookout, read), Ahead(lookout, lambda: "goes on")
    ahead.begin()
    next_one.begin()
    with pytest.raises(StoreBusy, match="somebody else"):
        ahead.result()
    assert next_one.result() == "goes on"


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_what_is_read_beside_a_commit_is_handled_once_and_in_order(tmp_path: Path, kind: str) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    handled: dict[str, list[int]] = defaultdict(list)
    readers: set[str] = set()
    look = Ahead._hear

    def handle(event: Any) -> None:
        handled[event.key].append(event.data["n"])

    if kind == "async":

        @app.on(orders, start="first")
        async def on_order(event: Any, ctx: Any) -> None:
            handle(event)
    else:

        @app.on(orders, start="first")
        def on_order_in_thread(event: Any, ctx: Any) -> None:
            handle(event)

    def hear(ahead: Ahead[Any], result: Any, error: BaseException | None) -> None:
        readers.add(threading.current_thread().name)
        look(ahead, result, error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ahead, "_hear", hear)
        orders.append_many([{"type": "placed", "data": {"n": n}, "key": f"k{n % KEYS}"} for n in range(5_000)])
        asyncio.run(asyncio.wait_for(app.serve(until_idle=True), 60))
    assert len(readers) == 1 and next(iter(readers)).startswith("redrive-lookout")
    assert handled == {f"k{k}": list(range(k, 5_000, KEYS)) for k in range(KEYS)}
    app.close()
    assert not any(thread.name in readers for thread in threading.enumerate())


def test_what_a_group_emits_to_its_own_log_is_not_overlooked(tmp_path: Path) -> None:
    """It is read when the group may not be committed yet: what is found then is not all there is."""
    app = App(str(tmp_path / "shop.db"))
    orders, handled = app.log("orders"), []

    @app.on(orders, start="first")
    async def on_order(event: Any, ctx: Any) -> None:
        handled.append((event.key, event.data["left"]))
        if event.data["left"]:
            ctx.emit(orders, "placed", {"left": event.data["left"] - 1})

    orders.append_many([{"type": "placed", "data": {"left": 3}, "key": f"k{k}"} for k in range(KEYS)])
    asyncio.run(asyncio.wait_for(app.serve(until_idle=True), 60))
    assert sorted(handled) == sorted((f"k{k}", left) for k in range(KEYS) for left in range(4))
    app.close()
