"""What a program that embeds an app may rely on: no handlers of ours, but nothing is silent either."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from redrive import App, Reject


def shop(folder: Path) -> App:
    app = App(str(folder / "shop.db"))

    @app.on(app.log("orders"), start="first")
    def refuse(event, ctx):  # type: ignore[no-untyped-def]
        raise Reject("no")

    return app


async def serve_one(app: App) -> None:
    async with app.running():
        await app.log("orders").append_async("order.placed", {})
        while not app.operate("test").letters.list("dead"):
            await asyncio.sleep(0.005)


def test_an_embedded_app_logs_a_dead_letter_and_installs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger, handlers, interrupt = logging.getLogger("redrive"), [], signal.getsignal(signal.SIGINT)
    app = shop(tmp_path)
    for _ in range(2):  # started again, a line is not written twice
        caplog.clear()
        asyncio.run(serve_one(app))
        buried = [record for record in caplog.records if record.message.startswith("buried ")]
        handlers.append(logger.handlers)
        assert [record.levelno for record in buried] == [logging.ERROR]
        [letter] = app.operate("test").letters.list("dead")
        app.operate("test").letters.discard(letter, "seen")
    app.close()
    assert handlers == [[], []]
    assert signal.getsignal(signal.SIGINT) is interrupt


def test_an_app_that_was_used_before_a_fork_works_in_the_child(tmp_path: Path) -> None:
    app = shop(tmp_path)
    orders = app.log("orders")
    orders.append("order.placed", {"by": "parent"})
    child = os.fork()
    if child == 0:  # only what is tested; never back into pytest
        code = 1
        try:
            orders.append("order.placed", {"by": "child"})
            app.run(until_idle=True)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    orders.append("order.placed", {"by": "parent"})
    assert [event.data["by"] for event in orders.read()] == ["parent", "child", "parent"]
    assert len(app.operate("test").letters.list("dead")) == 2
    app.close()
