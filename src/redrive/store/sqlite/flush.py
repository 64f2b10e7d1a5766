"""The disk gets the WAL while it is written, and not all of it when a checkpoint waits for that.

What need not survive a power cut is synced by nobody before the next checkpoint, which holds the write lock until the
disk has everything: at 500 events a second two thirds of a pause of 20 ms. Nothing depends on what is done here. SQLite
syncs what it must, and finds that there is less to do.
"""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress

_sync = getattr(os, "fdatasync", os.fsync)


class Flush:
    """Who syncs the WAL of a file: a thread, from when it is first wanted. It ends with the process or when stopped."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Once more, when it has done what it was asked for. From one thread only, the writer's."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=f"redrive-flush {self._path}", daemon=True)
            self._thread.start()
        if self._asked.empty():
            self._asked.put(True)

    def stop(self) -> None:
        """Do what is asked for, then end."""
        if self._thread is not None:
            self._asked.put(False)
            self._thread.join()

    def _loop(self) -> None:
        """SQLite never locks this file: to open and to close it is harmless."""
        while self._asked.get():
            with suppress(OSError), open(f"{self._path}-wal", "rb", buffering=0) as wal:
                _sync(wal.fileno())
