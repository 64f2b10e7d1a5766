"""Reading ahead: what is read while the disk syncs a commit costs no time.

Only for what does not depend on that commit. Must never write.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from redrive.store.groups import run_here

T = TypeVar("T")

AHEAD_MIN = 100  # works in a group from which on a thread is called to read meanwhile: that takes a tenth of a commit


class Lookout:
    """Who reads ahead: a thread, from when it is first wanted. It ends with the process if nobody stops it."""

    def __init__(self, url: str) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._name = f"redrive-lookout {url}"
        self._thread: threading.Thread | None = None

    def ahead(self, job: Callable[[], T], count: int) -> Ahead[T] | None:
        """Something to be read while so many works are committed; None: they are too few, it is better read then."""
        return Ahead(self, job) if count >= AHEAD_MIN else None

    def ask(self, job: Callable[[], None]) -> None:
        """Queue a job, which says by itself what came of it. From one thread only, the writer's."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            self._thread.start()
        self._asked.put(job)

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
    """Something to be read by the lookout: begun when the writer is about to wait for the disk.

    Two threads that both have something to do would hand the interpreter to and fro with each row.
    """

    __slots__ = ("_answers", "_has_begun", "_job", "_lookout")

    def __init__(self, lookout: Lookout, job: Callable[[], T]) -> None:
        self._lookout, self._job, self._has_begun = lookout, job, False
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def begin(self) -> None:
        """Now there is time for it; once is enough."""
        if not self._has_begun:
            self._has_begun = True
            self._lookout.ask(lambda: run_here(self._job, self._hear))

    def _hear(self, result: Any, error: BaseException | None) -> None:
        self._answers.put((result, error))

    def result(self) -> T:
        """What was read, once; who never had to wait reads it now."""
        if not self._has_begun:
            return self._job()
        result, error = self._answers.get()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]


class AtOnce(Ahead[T]):
    """Without threads: read before anything is written, as a quick thread might have."""

    __slots__ = ("_result",)

    def __init__(self, job: Callable[[], T]) -> None:
        self._result = job()

    def begin(self) -> None:
        """It is done."""

    def result(self) -> T:
        """What was read."""
        return self._result


class NoLookout(Lookout):
    """Where there are no threads."""

    def ahead(self, job: Callable[[], T], count: int) -> Ahead[T]:
        """It is read now."""
        return AtOnce(job)
