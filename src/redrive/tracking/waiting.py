"""The queue in memory between `track` and the thread that hands events to the store. Bounded by bytes; nobody waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from redrive.event import NewEvent
from redrive.tracking.spool import Entry

ENTRY_BYTES = 500  # what an event takes besides its data: its own fields, and what Python adds to them


class Closed(Exception):
    """This queue takes nothing any more; its successor does."""


class Waiting:
    """First in, first out."""

    def __init__(self, bytes_max: int) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes, self._bytes_max = 0, bytes_max
        self._lock = threading.Lock()
        self._closed = False
        self.put_count = 0  # events that ever came

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, log: str, event: NewEvent, *, force: bool = False) -> bool:
        """False if there is no room. `force` is for whoever empties the queue: it is never closed or full for that."""
        size = len(event.data_raw) + ENTRY_BYTES
        entry = tuple.__new__(Entry, (log, event))  # half as long as by its name, and every caller waits for it
        with self._lock:
            if self._closed and not force:
                raise Closed
            if self._bytes + size > self._bytes_max and not force:
                return False
            self._bytes += size
            self.put_count += 1
            self._entries.append(entry)
        return True

    def take(self, count: int, bytes_max: int) -> list[Entry]:
        """The oldest: at most so many, and no more once so many bytes are reached."""
        entries: list[Entry] = []
        size = 0
        while self._entries and len(entries) < count and size < bytes_max:
            entry = self._entries.popleft()
            entries.append(entry)
            size += len(entry.event.data_raw) + ENTRY_BYTES
        with self._lock:
            self._bytes -= size
        return entries

    def put_back(self, entries: Sequence[Entry]) -> None:
        """They come first again, in their order, whether there is room or not: they were taken on already."""
        size = sum(len(entry.event.data_raw) + ENTRY_BYTES for entry in entries)
        with self._lock:
            self._bytes += size
            self._entries.extendleft(reversed(entries))

    def close(self) -> None:
        """From here on `put` raises Closed, so that what was put before can be rescued and nothing is left behind."""
        with self._lock:
            self._closed = True
