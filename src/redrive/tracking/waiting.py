"""The queue in memory between `track` and the thread that hands events to the store. Bounded by bytes; nobody waits.

Callers take no lock: appending to a deque is one step, and a lock that several threads want is handed from one to the
next together with the interpreter, which costs several times what they do with it. What their events weigh is added up
by whoever comes when a few hundred have come; those who take hold the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from redrive.event import NewEvent
from redrive.tracking.spool import Entry

ENTRY_BYTES = 500  # what an event takes besides its data: its own fields, and what Python adds to them
LARGE_BYTES = 16_384  # an event that is weighed at once
UNWEIGHED_MAX = 256
UNWEIGHED_SHARE = 16  # by so much, at most, the bound may be passed: a sixteenth


class Closed(Exception):
    """This queue takes nothing any more; its successor does."""


class Waiting:
    """First in, first out."""

    def __init__(self, bytes_max: int) -> None:
        self._entries: deque[Entry] = deque()
        self._sizes: deque[int] = deque()  # of those that are not in `_bytes` yet
        self._bytes, self._bytes_max = 0, bytes_max
        self._sizes_max = min(UNWEIGHED_MAX, bytes_max // (UNWEIGHED_SHARE * LARGE_BYTES))
        self._lock = threading.Lock()
        self._closed = False
        self._taken = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def put_count(self) -> int:
        """How many events ever came."""
        with self._lock:
            return self._taken + len(self._entries)

    def put(self, log: str, event: NewEvent, *, force: bool = False) -> bool:
        """False if there is no room. `force` is for whoever empties the queue: it is never closed or full for that."""
        size = len(event.data_raw) + ENTRY_BYTES
        entry = tuple.__new__(Entry, (log, event))  # half as long as by its name, and every caller waits for it
        if not force:
            if self._closed:
                raise Closed
            if (
                len(self._sizes) >= self._sizes_max or size > LARGE_BYTES or self._bytes + size > self._bytes_max
            ) and not self._has_room(size):
                return False
        self._sizes.append(size)  # first: whoever takes the event finds it
        self._entries.append(entry)
        if self._closed and not force:
            self._withdraw(entry)
        return True

    def take(self, count: int, bytes_max: int) -> list[Entry]:
        """The oldest: at most so many, and no more once so many bytes are reached."""
        entries: list[Entry] = []
        size = 0
        with self._lock:
            while self._entries and len(entries) < count and size < bytes_max:
                entry = self._entries.popleft()
                entries.append(entry)
                size += len(entry.event.data_raw) + ENTRY_BYTES
            self._taken += len(entries)
            self._weigh()
            self._bytes -= size
        return entries

    def put_back(self, entries: Sequence[Entry]) -> None:
        """They come first again, in their order, whether there is room or not: they were taken on already."""
        size = sum(len(entry.event.data_raw) + ENTRY_BYTES for entry in entries)
        with self._lock:
            self._bytes += size
            self._taken -= len(entries)
            self._entries.extendleft(reversed(entries))

    def close(self) -> None:
        """From here on `put` raises Closed, so that what was put before can be rescued and nothing is left behind."""
        with self._lock:
            self._closed = True

    def _has_room(self, size: int) -> bool:
        with self._lock:
            self._weigh()
            return self._bytes + size <= self._bytes_max

    def _weigh(self) -> None:
        for _ in range(len(self._sizes)):
            self._bytes += self._sizes.popleft()

    def _withdraw(self, entry: Entry) -> None:
        """It came while the queue was closed: unless it was rescued with the others, its successor is to have it."""
        while True:
            try:
                self._entries.remove(entry)
            except ValueError:
                return
            except IndexError:  # others were taken meanwhile
                continue
            raise Closed
