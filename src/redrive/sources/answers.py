"""Producers that wait in one event loop: what they ask for in one round of it goes to the writer at once.

So do the answers come back: whoever wakes another thread gives up the interpreter's lock, and would get it back for
the second answer when the first producer has been and gone. Those who are answered together ask again together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from redrive.errors import StoreError
from redrive.event import NewEvent
from redrive.store.port import Appending, Store
from redrive.store.writer import APPEND_GROUP_MAX

if TYPE_CHECKING:
    from redrive.runtime import Runtime

Waiting = asyncio.Future[Any]


class Answers:
    """What the producers of one log in one event loop ask for, and the answers on their way to them."""

    __slots__ = ("_asked", "_box", "_log", "_runtime", "loop")

    running = staticmethod(asyncio.get_running_loop)

    def __init__(self, runtime: Runtime, log: str) -> None:
        self.loop = self.running()
        self._runtime, self._log = runtime, log
        self._asked: list[tuple[NewEvent, Waiting]] = []
        self._box: deque[tuple[list[Waiting], Any, BaseException | None]] = deque()

    def ask(self, event: NewEvent) -> Waiting:
        """Have it appended with all that is asked for in this round of the loop; its row comes back."""
        if not self._asked:
            self.loop.call_soon(self._send, self._runtime.store)  # who comes first is told if it cannot be opened
        future = self.loop.create_future()
        self._asked.append((event, future))
        return future

    def _send(self, store: Store) -> None:
        asked, self._asked = self._asked, []
        for begin in range(0, len(asked), APPEND_GROUP_MAX):
            events, waiting = map(list, zip(*asked[begin : begin + APPEND_GROUP_MAX], strict=True))
            try:
                store.append(Appending(self._log, events, partial(self._put, waiting), apart=True))
            except StoreError as error:  # it was closed meanwhile
                self._put(waiting, None, error)
                self._empty()

    def _put(self, waiting: list[Waiting], rows: Any, error: BaseException | None) -> Callable[[], None]:
        """Answer, from any thread; what is returned is to be called once for all that were put."""
        self._box.append((waiting, rows, error))
        return self._wake

    def _wake(self) -> None:
        """Let the loop look into the box."""
        try:
            self.loop.call_soon_threadsafe(self._empty)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self._box.clear()

    def _empty(self) -> None:
        box = self._box
        while box:
            waiting, rows, error = box.popleft()
            if error is not None:
                rows = [error] * len(waiting)
            stored = rows
            if set(map(type, rows)) != {tuple}:  # else nobody was refused, and they need not be looked at one by one
                stored = [row for row in rows if type(row) is tuple]
            if stored:
                self._runtime.notify(self._log, stored)
            for future, row in zip(waiting, rows, strict=True):
                if future.done():  # nobody waits any more
                    continue
                if type(row) is tuple:
                    future.set_result(row)
                else:
                    future.set_exception(row)
