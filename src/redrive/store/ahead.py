"""Reading ahead: what is read by another thread before it is wanted, while those who want it have something to do.

Only what does not depend on what they write. Must never write.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from redrive.errors import RedriveError
from redrive.store.groups import run_here

T = TypeVar("T")

AHEAD_MIN = 100  # events from which on another thread is worth it: to call it takes as long as to read a few


class Lookout:
    """Who reads ahead: a thread, from when it is first wanted. It ends with the process if nobody stops it."""

    least = AHEAD_MIN
    is_beside = True  # whoever asks can be inside of a transaction: what it wrote is not seen

    def __init__(self, url: str) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._name = f"redrive-lookout {url}"
        self._thread: threading.Thread | None = None

    def ahead(self, job: Callable[[], T]) -> Ahead[T]:
        """Begin to read. From one thread only, the writer's."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            self._thread.start()
        ahead = Ahead[T]()
        self._asked.put(lambda: run_here(job, ahead.hear))
        return ahead

    def stop(self) -> None:
        """Do what is queued, then end."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()

    def _loop(self) -> None:
        while (job := self._asked.get()) is not None:
            job()
            del job  # what was read is not to wait in memory for the next question


class Ahead(Generic[T]):
    """Something that is being read, or was."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def hear(self, result: Any, error: BaseException | None) -> None:
        """This came of it."""
        self._answers.put((result, error))

    @property
    def is_there(self) -> bool:
        """Need nobody wait for the result?"""
        return not self._answers.empty()

    def result(self) -> T:
        """What was read, once."""
        result, error = self._answers.get()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]


class Offer(Ahead[T]):
    """A step that is done by whoever comes first: who was asked to, or who wants what comes of it.

    So nobody waits for one who is asked and has no time. Who was asked should not have to wait within it.
    """

    __slots__ = ("_job", "_left")

    def __init__(self, job: Callable[[], T]) -> None:
        super().__init__()
        self._job, self._left = job, [True]

    def take_up(self) -> None:
        """Do it, unless somebody has begun. From any thread."""
        try:
            self._left.pop()  # one of two threads gets it
        except IndexError:
            return
        run_here(self._job, self.hear)

    def result(self) -> T:
        """What came of it, once; if nobody has begun, it is done now."""
        self.take_up()
        return super().result()


class NoLookout(Lookout):
    """Where there are no threads: it is read at once, as a quick thread would, and so may be old when it is wanted."""

    least = 1
    is_beside = False

    def ahead(self, job: Callable[[], T]) -> Ahead[T]:
        """It is read now; what went wrong is told to who wants it."""
        ahead = Ahead[T]()
        try:
            ahead.hear(job(), None)
        except RedriveError as error:
            ahead.hear(None, error)
        return ahead
