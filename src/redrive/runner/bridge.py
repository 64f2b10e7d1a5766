"""The bridge between the event loop and the place where the store is written: one hop for many events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
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

    def start(self, job: Callable[[], T], future: asyncio.Future[T], *, here: bool = False) -> None:
        """Run a job where writing happens, for a future that somebody waits for; from any thread.

        `here`: that may be this thread, if nobody else writes.
        """
        self._store.submit(job, partial(answer, future), here=here)


def answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """What a future was waiting for; from any thread."""
    try:
        future.get_loop().call_soon_threadsafe(_resolve, future, result, error)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return


def heard(future: asyncio.Future[Any]) -> None:
    """Nobody may come for it; then what it raised is of no interest."""
    if not future.cancelled():
        future.exception()


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # the loop gave up waiting; the job's commit stands or falls by itself
        return
    if error is not None:
        future.set_exception(_carried(error))
    else:
        future.set_result(result)


def _carried(error: BaseException) -> BaseException:
    """A future refuses StopIteration, and SystemExit must not end the loop from inside a callback."""
    if isinstance(error, StopIteration | SystemExit | KeyboardInterrupt):
        return RuntimeError(f"{type(error).__name__} inside a store job")
    return error
