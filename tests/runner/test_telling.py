"""Dead letters of a backlog share a sync, and are told all the same: soon, and when the worker is stopped."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from redrive import App, no_retry
from redrive.observe.logs import log_signals
from redrive.observe.signals import Buried, Signal
from redrive.runner import project
from redrive.settings import Settings


class Shop:
    """Events in batches of ten, of which the second fails; each turn is a hop of its own."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, told_after: float) -> None:
        monkeypatch.setattr(project, "TURNS_TIME_MAX", 0.0)
        monkeypatch.setattr(project, "TOLD_AFTER_MAX", told_after)
        self.app, self.buried, self.is_told = App(str(path / "shop.db")), list[int](), threading.Event()
        self.app.runtime.use(Settings(batch_max=10))
        self.app.log("orders").append_many([{"type": "placed", "data": n, "key": f"{n}"} for n in range(100)])
        self.app.listen(self.hear)

    def hear(self, signals: Sequence[Signal]) -> None:
        self.buried += [signal.position for signal in signals if isinstance(signal, Buried)]
        if self.buried:
            self.is_told.set()


def test_they_are_told_while_there_is_still_a_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, monkeypatch, told_after=0.0)

    @shop.app.projection(shop.app.log("orders"), retry=no_retry)
    def look(event: Any, tx: Any) -> None:
        if event.data == 1:
            raise ValueError("poison")
        if event.data == 35:
            assert shop.is_told.wait(30), "the rest of the backlog waits for it"

    asyncio.run(asyncio.wait_for(shop.app.serve(until_idle=True), 60))
    assert shop.buried == [2]
    shop.app.close()


def test_they_are_told_when_the_worker_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, called = Shop(tmp_path, monkeypatch, told_after=3600.0), list[int]()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        @shop.app.projection(shop.app.log("orders"), retry=no_retry)
        def look(event: Any, tx: Any) -> None:
            called.append(event.data)
            if event.data == 1:
                raise ValueError("poison")
            if event.data == 35:
                supervisor: Any = shop.app.runtime.supervisor
                asyncio.run_coroutine_threadsafe(stop(supervisor), loop).result(30)

        await asyncio.wait_for(shop.app.serve(until_idle=True), 60)

    async def stop(supervisor: Any) -> None:
        supervisor.stop("before the backlog is done")

    asyncio.run(scenario())
    assert shop.is_told.wait(30)
    assert shop.buried == [2]
    assert max(called) < 99, "it was stopped in the middle"
    shop.app.close()


def test_those_of_many_transactions_are_told_at_once_and_share_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop, batches = Shop(tmp_path, monkeypatch, told_after=3600.0), list[list[int]]()
    shop.app.listen(lambda signals: batches.append([one.position for one in signals if isinstance(one, Buried)]))
    log_signals(shop.app.runtime.signals)

    @shop.app.projection(shop.app.log("orders"), retry=no_retry)
    def look(event: Any, tx: Any) -> None:
        if event.data % 10 == 1:
            raise ValueError(f"poison {event.data}")

    with caplog.at_level(logging.ERROR, logger="redrive"):
        asyncio.run(asyncio.wait_for(shop.app.serve(until_idle=True), 60))
        shop.app.close()
    expected = [*range(2, 102, 10)]
    assert [batch for batch in batches if batch] == [expected]
    (line,) = [one.getMessage() for one in caplog.records if one.getMessage().startswith("buried")]
    assert f"count={len(expected)}" in line
