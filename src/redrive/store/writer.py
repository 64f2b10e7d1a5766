"""The writer thread: one per store and process. Jobs run in order; waiting appends are committed together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from redrive.errors import StoreError
from redrive.store.groups import run_here
from redrive.store.port import Appending

APPEND_GROUP_MAX = 1000  # events per commit, but for one call that has more: bounds the time the write lock is held
IDLE_SECONDS = 1.0  # without work this long, there is time for what can wait


class Writing(Protocol):
    """What the thread needs of its store."""

    url: str

    def append_group(self, group: list[Appending]) -> None: ...
    def checkpoint(self, *, idle: bool = False, last: bool = False) -> None:
        """Called after each piece of work, when there is none, and at the end."""


class Job(Struct, frozen=True):
    """Something the engine runs where writing happens."""

    run: Callable[[], Any]
    done: Callable[[Any, BaseException | None], None]


class Writer:
    """Owns the thread on which the engine writes."""

    def __init__(self, store: Writing) -> None:
        self._store = store
        self._queue: queue.SimpleQueue[Appending | Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=f"redrive-writer {store.url}", daemon=True)
        self._place = threading.Lock()  # held by a job: there is one at a time, on whatever thread
        self._here: int | None = None  # the thread that holds it, if that is not ours
        self._stopped = False
        self._busy = False
        self._thread.start()

    def submit(
        self, run: Callable[[], Any], done: Callable[[Any, BaseException | None], None], *, here: bool = False
    ) -> None:
        """Queue a job. `here`: if nobody is before it, it may be done by who asks; a change of threads takes time."""
        if not (here and not self.is_busy and self._place.acquire(blocking=False)):
            self._put(Job(run, done))
            return
        try:
            self._check_open()
            self._here = threading.get_ident()
            run_here(run, done)
        finally:
            self._here = None
            self._place.release()

    def append(self, appending: Appending) -> None:
        """Queue an append for the next group."""
        self._check_open()
        self._busy = True
        self._queue.put(appending)

    def nudge(self) -> None:
        """Somebody wrote without us: look what there is to be done after that."""
        if not self._stopped:
            self._queue.put(_NOTHING)

    def _check_open(self) -> None:
        if self._stopped:
            raise StoreError("the store is closed").of(self._store)

    def _put(self, item: Appending | Job) -> None:
        self._check_open()
        self._busy = True
        self._queue.put(item)

    @property
    def is_busy(self) -> bool:
        """Does the thread work, or is there something for it to do, or has it ended?"""
        return self._busy or self._stopped or not self._queue.empty()

    @property
    def is_stopped(self) -> bool:
        """Is the store being closed?"""
        return self._stopped

    @property
    def is_here(self) -> bool:
        """Is it the thread that asks?"""
        return threading.current_thread() is self._thread

    def is_wanted(self) -> bool:
        """Does anybody wait for the thread, or the thread itself, with what it was given, for a job elsewhere?"""
        return not self._queue.empty() or (self._here is not None and self._busy)

    def stop(self) -> None:
        """Do what is queued or being done elsewhere, then end. Who stops it from within a job does not wait."""
        if not self._stopped:
            self._stopped = True
            self._queue.put(None)
        if threading.get_ident() not in (self._thread.ident, self._here):
            self._thread.join()

    def _loop(self) -> None:
        item: Appending | Job | None
        while True:
            self._busy = not self._queue.empty()
            try:
                item = self._queue.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                self._store.checkpoint(idle=True)
                continue
            self._busy = True  # again: it was put before we said that we are not
            while isinstance(item, Appending):
                item = self._append_waiting(item)
            if item is None:
                with self._place:
                    self._store.checkpoint(last=True)
                return
            if isinstance(item, Job):
                with self._place:
                    run_here(item.run, item.done)
            item = None  # what it was about is not to wait in memory for the next one
            self._store.checkpoint()

    def _append_waiting(self, first: Appending) -> Appending | Job | None:
        """Commit everything that waits together; returns the next item, an empty job if there is none."""
        group: list[Appending] = [first]
        count = len(first.events)
        following: Appending | Job | None = _NOTHING
        while count < APPEND_GROUP_MAX:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                following = _NOTHING
                break
            if not isinstance(following, Appending):
                break
            group.append(following)
            count += len(following.events)
            following = _NOTHING
        self._store.append_group(group)
        return following


_NOTHING = Job(lambda: None, lambda result, error: None)
