"""Log lines: where they go is the program's business, but nothing is silent."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from pathlib import Path

import pytest

from redrive import App, Reject
from redrive.observe import signals as sig
from redrive.observe.logs import JsonFormatter, LogListener, log_signals


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


def test_what_lasts_for_ever_is_a_line_of_json_too(caplog: pytest.LogCaptureFixture) -> None:
    LogListener()([sig.BreakerOpened("charge", "bank", float("inf"))])

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    line = json.loads(JsonFormatter().format(caplog.records[0]), parse_constant=refuse)
    assert (line["signal"], line["breaker"], line["seconds"]) == ("breaker.opened", "bank", None)


def test_events_that_failed_alike_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    def failing(number: int) -> tuple[str, str, str, int, int, int, str, str, str]:
        return ("charge", f"id-{number}", "order.placed", number, number, 1, "OSError", f"no {number}", "f" * 12)

    other = sig.Retried("charge", "id-9", "order.placed", 9, 9, 2, "OSError", "no 9", "f" * 12, 2.0)
    retried = [sig.Retried(*failing(number), 1.0) for number in range(3)]
    buried = [sig.Buried(*failing(number), "permanent") for number in range(2)]
    expired = sig.Buried(*failing(7), "expired")
    LogListener()([*retried, other, *buried, expired])
    told = [(record.redrive["signal"], record.redrive["position"], record.redrive.get("count"))  # type: ignore[attr-defined]
            for record in caplog.records]  # fmt: skip
    assert told == [("retried", 0, 3), ("retried", 9, None), ("buried", 0, 2), ("buried", 7, None)]
    assert caplog.records[0].message.endswith("delay=1.0 count=3")


def test_what_would_be_no_line_wakes_nobody(caplog: pytest.LogCaptureFixture) -> None:
    signals = sig.Signals()
    log_signals(signals)
    with caplog.at_level(logging.INFO, "redrive"):
        signals.tell([sig.Settled("charge", 1, 0, 7, 0.001)])
        assert signals._hearing is None
        signals.tell([sig.Settled("charge", 1, 0, 7, 0.001), sig.Stopping("disk full")])
        signals.flush(10)
    assert [record.message.split()[0] for record in caplog.records] == ["stopping"]
    with caplog.at_level(logging.DEBUG, "redrive"):
        signals.tell([sig.Settled("charge", 1, 0, 7, 0.001)])
        signals.flush(10)
    assert caplog.records[-1].message.startswith("settled ")
