"""Threads that nobody has to wait for: a function that hangs must not keep the process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from redrive.runner.call import attempt

T = TypeVar("T")


def start_thread(job: Callable[[], T], name: str) -> asyncio.Future[tuple[T, None] | tuple[None, BaseException]]:
    """Run a job on a thread that nobody has to wait for at the end; the future has its result, or what it raised."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    results: list[Any] = []

    def resolve(error: BaseException | None) -> None:
        if not future.done():
            future.set_result((results[0], None) if error is None else (None, error))

    def run() -> None:
        error = attempt(lambda: results.append(job()))
        attempt(loop.call_soon_threadsafe, resolve, error)  # a loop that is closed waits for nobody

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
