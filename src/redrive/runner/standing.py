"""Turns that wait for their log to grow, and that whoever makes it grow begins: to wake the loop that would begin them
takes two changes of threads, as long as the turn itself.

They are begun again and again, and the loop sleeps on, until one ends in a way that it has to look at. Nothing depends
on it. Who is woken takes its turns back, and begins them itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from redrive.store.groups import run_here

T = TypeVar("T")


class Stand(Generic[T]):
    """The turns of one loop for as long as it rests. Begun from wherever writing happens, one at a time."""

    def __init__(
        self,
        turn: Callable[[], T],
        is_nothing: Callable[[T], bool],
        answer: Callable[[Any, BaseException | None], None],
    ) -> None:
        """`is_nothing`: is the loop not needed after such a turn? `answer` is told of one after which it is."""
        self._turn, self._is_nothing, self._answer = turn, is_nothing, answer
        self._lock = threading.Lock()
        self._runs = self._is_over = self._is_wanted = False
        self.last: T | None = None  # of those after which the loop was not needed
        self.rings = 0  # so many of them were followed by a ring: for others, but it rings here, too

    def begin(self) -> bool:
        """Take a turn. True: the loop need not know."""
        with self._lock:
            if self._is_over:
                return False
            self._runs = True
        run_here(self._take, self._done)
        return not self._is_over

    def _take(self) -> tuple[T, bool]:
        turn = self._turn()
        return turn, self._is_nothing(turn)

    def _done(self, taken: tuple[T, bool] | None, error: BaseException | None) -> None:
        turn, is_nothing = taken or (None, False)
        with self._lock:
            self._runs = False
            is_over = self._is_over = self._is_wanted or not is_nothing
        if is_over:
            self._answer(turn, error)
        else:
            self.last = turn

    def end(self) -> bool:
        """No more turns. False: one is under way, or was to be looked at, and is answered."""
        with self._lock:
            self._is_wanted = True
            is_answered = self._runs or self._is_over
            self._is_over = self._is_over or not self._runs
        return not is_answered


class Standing:
    """The turns that wait, by log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Stand[Any]]] = {}
        self._readers: Mapping[str, int] = {}

    def read_by(self, readers: Mapping[str, int]) -> None:
        """So many loops of this process read each log, of which some may leave their turns here."""
        self._readers = readers

    def leave(self, log: str, stand: Stand[Any]) -> None:
        """To be begun whenever this log has grown."""
        with self._lock:
            self._waiting.setdefault(log, []).append(stand)

    def take_back(self, log: str, stand: Stand[Any]) -> None:
        """It is not to be begun any more."""
        with self._lock:
            self._waiting[log].remove(stand)

    def begin(self, log: str) -> bool:
        """It has grown. True: everybody who reads it here had a turn, and nobody is to be woken; else all are."""
        with self._lock:
            waiting = [*self._waiting.get(log, ())]
        quiet = [stand for stand in waiting if stand.begin()]
        if len(quiet) == self._readers.get(log):
            return True
        for stand in quiet:
            stand.rings += 1
        return False
