"""A loop that asks somebody outside, a disk or a broker, who may let us wait: a thread of its own waits for the answer.

Without threads, where time is virtual, the question is asked on the spot.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from redrive.runner.bridge import Bridge, answer
from redrive.runner.duty import Duty
from redrive.runner.loop import Loop
from redrive.runner.wake import Wake
from redrive.store.groups import Done, run_here

T = TypeVar("T")


class Line:
    """A thread that is asked one thing after the other. What hangs on it does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._name, self._is_begun = name, False
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def submit(self, job: Callable[[], Any], done: Done) -> None:
        """Do this, then say what came of it: `done` is called from there."""
        self._asked.put(partial(run_here, job, done))
        if not self._is_begun:  # from one thread only, the event loop's
            self._is_begun = True
            threading.Thread(target=self._loop, name=self._name, daemon=True).start()

    def end(self) -> None:
        """When all of it is done."""
        self._asked.put(None)

    def _loop(self) -> None:
        while (run := self._asked.get()) is not None:
            run()


class AskingLoop(Loop):
    """What intakes and mirrors have in common."""

    def __init__(self, duty: Duty, bridge: Bridge, wake: Wake, thread: str | None) -> None:
        super().__init__(duty, bridge, wake)
        self._thread = None if thread is None else Line(thread)

    def _ask(self, question: Callable[[], T]) -> asyncio.Future[T]:
        """Something that may block until it is answered; one after the other."""
        if self._thread is None:
            return asyncio.ensure_future(_answer(question))
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._thread.submit(question, partial(answer, future))
        return future

    def _ask_no_more(self) -> None:
        if self._thread is not None:
            self._thread.end()


async def _answer(question: Callable[[], T]) -> T:
    return question()
