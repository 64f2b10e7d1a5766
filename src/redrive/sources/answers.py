"""Bringing results of appends from the writer's thread to an event loop: one wake-up for a whole group.

Not at the first of them: whoever wakes another thread gives up the interpreter's lock, and would get it back for the
second answer when the first producer has been and gone. Those who are answered together come back together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

Waiting = asyncio.Future[list[Any]]


class Answers:
    """The answers that are on their way to one event loop."""

    __slots__ = ("_box", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.get_running_loop()
        self._box: deque[tuple[Waiting, Any, BaseException | None]] = deque()

    def here(self) -> Answers:
        """These, if they go to the loop that runs now, or others that do."""
        loop = asyncio.get_running_loop()
        return self if loop is self.loop else Answers(loop)

    def put(self, future: Waiting, rows: Any, error: BaseException | None) -> Callable[[], None]:
        """Answer, from any thread; what is returned is to be called once for all that were put."""
        self._box.append((future, rows, error))
        return self.wake

    def wake(self) -> None:
        """Let the loop look into the box."""
        try:
            self.loop.call_soon_threadsafe(self._empty)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self._box.clear()

    def _empty(self) -> None:
        box = self._box
        while box:
            future, rows, error = box.popleft()
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(rows)
