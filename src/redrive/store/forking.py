"""A fork waits until none of our threads is inside SQLite: its locks would be held for ever in the child.

SQLite has a lock around its memory, for the whole process. A child that was forked while another thread held it
cannot open a connection of its own any more; it hangs at the first try.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any, Protocol

FORK_WAIT_MAX = 1.0  # seconds; a transaction of the user's own may last, and a fork must not wait for that


class Writes(Protocol):
    """A store whose threads use SQLite only while they hold this lock."""

    _mutex: threading.Lock
    path: str

    def inside_transaction(self) -> bool: ...


opening = threading.RLock()  # held while a connection is opened
_open: weakref.WeakSet[Writes] = weakref.WeakSet()
_held: list[Any] = []  # locks, by the thread that forks


def watch(store: Writes) -> None:
    """From now on forks wait for this store."""
    _open.add(store)


def forget(store: Writes) -> None:
    """The store is closed."""
    _open.discard(store)


def stores() -> list[Writes]:
    """The stores that are open in this process."""
    return list(_open)


def _before() -> None:
    until = time.monotonic() + FORK_WAIT_MAX
    locks: list[Any] = [opening, *(store._mutex for store in list(_open) if not store.inside_transaction())]
    _held.extend(lock for lock in locks if lock.acquire(timeout=max(0.0, until - time.monotonic())))


def _after_in_parent() -> None:
    while _held:
        _held.pop().release()


def _after_in_child() -> None:
    global opening
    opening = threading.RLock()
    _held.clear()
    _open.clear()  # they are the parent's


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
