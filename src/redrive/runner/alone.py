"""Which subscription of this process may run an event alone after a crash.

A death of the process is charged to every event behind a mark. With two marks at a time, of two subscriptions or of two
partitions of one, an innocent event would be charged for its neighbour.
"""

from __future__ import annotations

from threading import Lock

AGAIN_SECONDS = 0.05  # until one that was refused asks again; nothing is held meanwhile


class NotAlone(Exception):
    """Another subscription of this process runs an event alone: nothing was marked."""


class Alone:
    """A turn that one owner has at a time. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holder: object = None

    def take(self, owner: object) -> bool:
        """Is it the turn of this one, from now until it leaves?"""
        with self._lock:
            if self._holder is None:
                self._holder = owner
            return self._holder is owner

    def leave(self, owner: object) -> None:
        """What ran alone is settled, or will not run; nothing happens if it is not the turn of this one."""
        if self._holder is owner:
            self._holder = None
