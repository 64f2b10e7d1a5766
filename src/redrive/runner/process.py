"""A process that runs an app: signals, exit, logs. Embedding does none of this."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from redrive.errors import UsageError
from redrive.observe.logs import log_to_stderr

if TYPE_CHECKING:
    from redrive.app import App


def run_process(
    app: App, *, until_idle: bool, only: Iterable[str] | None, exclude: Iterable[str], strict: bool = False
) -> str:
    """Block until told to stop, or until nothing is left to do; why it ended. Raise `Halted` as `App.run` does."""
    if asyncio._get_running_loop() is not None:
        raise UsageError("app.run() blocks, and an event loop runs here already: `await app.serve()`")
    log_to_stderr(app.runtime.settings.log_format)
    return asyncio.run(_serve(app, until_idle, only, exclude, strict=strict))


async def _serve(
    app: App, until_idle: bool, only: Iterable[str] | None, exclude: Iterable[str], *, strict: bool
) -> str:
    loop = asyncio.get_running_loop()
    async with app._supervised(only, exclude, strict=strict) as supervisor:
        asked = 0

        def count(number: int, _: object) -> None:
            nonlocal asked
            asked += 1
            if asked > 1:  # the operator means it: nothing is lost, the lease of a dead process is free at once
                os._exit(128 + number)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, supervisor.stop, f"signal {signal.Signals(number).name}")
            signal.signal(number, count)  # beside it, and at once: a function may block the loop
        if not until_idle:
            stay()
        try:
            with nullcontext() if until_idle else app._watched():  # who ends by itself is gone before anybody scrapes
                await supervisor.run(until_idle=until_idle)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
    supervisor.check_end()
    return supervisor.stopped_by


def stay() -> None:
    """What was loaded by now is here for good: to look through all of it for garbage stopped everybody for 37 ms."""
    gc.freeze()
