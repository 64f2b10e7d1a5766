"""The bridge between the event loop and the place where the store is written: one hop for many events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Bridge:
    """Runs jobs on the store's writer thread; the simulator replaces it by one that delays and fails."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job where writing happens and wait for its result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.start(job, future)
        return await future

    def start(self, job: Callable[[], T], future: asyncio.Future[T]) -> None:
        """Run a job where writing happens, for a future that somebody waits for; from any thread."""
        loop = future.get_loop()

        def resolve(result: Any, error: BaseException | None) -> None:
            if future.done():  # the loop gave up waiting; the job's commit stands or falls by itself
                return
            if error is not None:
                future.set_exception(_carried(error))
            else:
                future.set_result(result)

        def done(result: Any, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(resolve, result, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        self._store.submit(job, done)


def _carried(error: BaseException) -> BaseException:
    """A future refuses StopIteration, and SystemExit must not end the loop from inside a callback."""
    if isinstance(error, StopIteration | SystemExit | KeyboardInterrupt):
        return RuntimeError(f"{type(error).__name__} inside a store job")
    return error
