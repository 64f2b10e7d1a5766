"""Turns that wait for their log to grow, and that whoever makes it grow begins: to wake the loop that would begin them
takes two changes of threads, as long as the turn itself.

They are begun again and again, and the loop sleeps on, until one ends in a way that it has to look at. Nothing depends
on it. Who is woken takes its turns back, and begins them itself. Where one waits alone, its turn is a part of the
transaction in which the log grows: a second one would take as long again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from redrive.context import Again
from redrive.errors import CommitUnknown, StoreError
from redrive.runner.handed import Landed
from redrive.store.groups import run_here
from redrive.store.port import StoreTx

T = TypeVar("T")

Join = Callable[[StoreTx, Landed], Callable[[], T] | None]  # see Stand.join; what it gives is called after the commit


class Apart(Exception):
    """A turn in the transaction of who lands went otherwise than nearly all do: land alone, the turn comes after it."""


class Stand(Generic[T]):
    """The turns of one loop for as long as it rests. Begun from wherever writing happens, one at a time."""

    def __init__(
        self,
        turn: Callable[[], T],
        is_nothing: Callable[[T], bool],
        answer: Callable[[Any, BaseException | None], None],
        join: Join[T] | None = None,
    ) -> None:
        """`is_nothing`: is the loop not needed after such a turn? `answer` is told of one after which it is.

        `join` takes a turn in the transaction in which the log grows, if it is one like nearly all.
        """
        self._turn, self._is_nothing, self._answer, self._join = turn, is_nothing, answer, join
        self._learn: Callable[[], T] | None = None  # what is to be done once the turn is committed
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

    def join(self, tx: StoreTx, landed: Landed) -> bool:
        """Take a turn in this transaction. True: `ended` is to follow, whatever becomes of it.

        False: it was not to be, and nothing was written. Apart: nothing of the transaction may be committed.
        """
        with self._lock:
            if self._is_over or self._join is None:
                return False
            self._runs = True
        try:
            self._learn = self._join(tx, landed)
        except Exception as error:  # it is raised again, for whom it concerns, when the turn is taken by itself
            raise Apart from error
        finally:
            if self._learn is None:
                self.let_go()
        return self._learn is not None

    def ended(self, error: BaseException | None) -> bool:
        """The transaction that it took its turn in is over. True: the loop need not know."""
        learn, self._learn = self._learn, None
        if error is not None or learn is None:
            self._done(None, error)
        else:
            run_here(lambda: self._look_at(learn()), self._done)
        return not self._is_over

    def let_go(self) -> None:
        """No turn was taken, and nothing has changed."""
        self._learn = None
        with self._lock:
            self._runs = False
            is_over = self._is_over = self._is_wanted
        if is_over:
            self._answer(None, None)

    def _take(self) -> tuple[T, bool]:
        return self._look_at(self._turn())

    def _look_at(self, turn: T) -> tuple[T, bool]:
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

    def only(self, log: str) -> Stand[Any] | None:
        """Who waits for this log to grow, if nobody else reads it here."""
        with self._lock:
            waiting = self._waiting.get(log)
            return waiting[0] if waiting and len(waiting) == 1 == self._readers.get(log) else None

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

    def begin_all(self) -> set[str]:
        """Any log may have grown. Those of which this holds are given: nobody who reads them here is to be woken."""
        return {log for log in self._readers if self.begin(log)}


class Together:
    """Around a transaction in which a log grows: who waits for that takes its turn in it, and is told how it ended."""

    __slots__ = ("_stand", "has_turn", "is_quiet")

    def __init__(self, stand: Stand[Any] | None) -> None:
        self._stand = stand
        self.has_turn = self.is_quiet = False  # was a turn taken? if so, need nobody be woken?

    def join(self, tx: StoreTx, landed: Landed) -> None:
        """The last thing before the commit."""
        self.has_turn = self._stand is not None and self._stand.join(tx, landed)

    def __enter__(self) -> Together:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        stand = self._stand
        if stand is None or not self.has_turn:
            return
        is_void = isinstance(error, StoreError | Again) and not isinstance(error, CommitUnknown)
        if is_void:  # nothing is written, for certain
            stand.let_go()
            raise Apart from error
        self.is_quiet = stand.ended(error)
