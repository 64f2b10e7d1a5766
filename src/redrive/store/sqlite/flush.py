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

WAL_HEADER_BYTES, WAL_FRAME_BYTES = 32, 24  # in front of the file, in front of every page in it

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


def wal_holds(path: str, pages: int) -> bool:
    """Does the WAL hold so many or more? Its size does not tell: it is overwritten, not cut.

    Every frame repeats the salt of the header, and a WAL that starts over has another one. SQLite never
    locks this file, so that opening and closing it is harmless (it would not be for the other two).
    """
    try:
        with open(f"{path}-wal", "rb", buffering=0) as wal:
            header = wal.read(WAL_HEADER_BYTES)
            frame = WAL_FRAME_BYTES + int.from_bytes(header[8:12])
            wal.seek(WAL_HEADER_BYTES + max(pages - 1, 0) * frame)
            return wal.read(16)[8:] == header[16:24] != b""
    except OSError:
        return False
