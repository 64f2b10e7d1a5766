"""Log lines: where they go is the program's business, but nothing is silent."""

from __future__ import annotations

import asyncio
import logging
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
