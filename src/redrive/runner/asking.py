"""A loop that asks somebody outside, a disk or a broker, who may let us wait: a thread of its own waits for the answer.

Without threads, where time is virtual, the question is asked on the spot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from redrive.runner.bridge import Bridge
from redrive.runner.duty import Duty
from redrive.runner.loop import Loop
from redrive.runner.wake import Wake

T = TypeVar("T")


class AskingLoop(Loop):
    """What intakes and mirrors have in common."""

    def __init__(self, duty: Duty, bridge: Bridge, wake: Wake, thread: str | None) -> None:
        super().__init__(duty, bridge, wake)
        self._thread = None if thread is None else ThreadPoolExecutor(1, thread)

    def _ask(self, question: Callable[[], T]) -> asyncio.Future[T]:
        """Something that may block until it is answered; one after the other."""
        if self._thread is None:
            return asyncio.ensure_future(_answer(question))
        return asyncio.get_running_loop().run_in_executor(self._thread, question)

    def _ask_no_more(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)


async def _answer(question: Callable[[], T]) -> T:
    return question()
