"""The bridge between the event loop and the place where the store is written: one hop for many events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import get_ident
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
        self._store.submit(job, partial(answer, future))

    def run_here(self, job: Callable[[], T], future: asyncio.Future[T]) -> list[T]:
        """Run a job in this thread and give its result, unless somebody else writes: then as `start`, and nothing."""
        me, results, errors = get_ident(), list[T](), list[BaseException]()

        def done(result: T, error: BaseException | None) -> None:
            if get_ident() != me:
                answer(future, result, error)
            elif error is not None:
                errors.append(error)
            else:
                results.append(result)

        self._store.submit(job, done, here=True)
        for error in errors:
            raise error
        return results


def ask(loop: asyncio.AbstractEventLoop, what: Callable[..., object], *arguments: Any) -> None:
    """Have something done on an event loop, soon; from any thread."""
    try:
        loop.call_soon_threadsafe(what, *arguments)
    except RuntimeError:  # it is closed: the process ends, and nobody waits any more
        return


def answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """What a future was waiting for; from any thread."""
    ask(future.get_loop(), _resolve, future, result, error)


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
