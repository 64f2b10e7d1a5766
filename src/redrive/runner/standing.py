"""Turns that wait for their log to grow, and that whoever makes it grow begins: to wake the loop that would begin them
takes two changes of threads, as long as the turn itself.

Nothing depends on it. Who waits is woken as ever, and finds its turn under way or begins it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Begin = Callable[[], None]


class Standing:
    """How to begin the turns that wait, by log. Left from the event loop, begun from wherever writing happens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Begin]] = {}

    def leave(self, log: str, begin: Begin) -> None:
        """To be called when this log has grown, once."""
        with self._lock:
            self._waiting.setdefault(log, []).append(begin)

    def take_back(self, log: str, begin: Begin) -> bool:
        """It is not to be called any more. False: it was."""
        with self._lock:
            waiting = self._waiting.get(log, [])
            if begin not in waiting:
                return False
            waiting.remove(begin)
            return True

    def begin(self, log: str) -> None:
        """It has grown."""
        with self._lock:
            waiting = self._waiting.pop(log, [])
        for begin in waiting:
            begin()
