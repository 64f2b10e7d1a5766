"""Who holds the lock that we wait for? If this thread itself does, waiting never helps.

A program that writes with a connection of its own and appends before it commits waits for itself. Linux tells which
locks a process has; which thread holds one can only be concluded.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from redrive.errors import StoreBusy
from redrive.store import forking

log = logging.getLogger("redrive")

FIRST_LOOK_SECONDS = 0.05  # as long as a batch holds the write lock: ordinary waiting pays nothing
WARN_SECONDS = 1.0
WRITE_LOCK = "120"  # this byte of NAME-shm is locked by whoever writes to a file in WAL mode
FILE_LOCKS_MIN = 1 << 30  # from this byte of the file on are the locks of all other modes
FRAMES_MAX = 200

ADVICE = (
    "this process itself holds the write lock: another of its connections has an open transaction. Commit it before "
    "you append, or write inside `with app.transaction() as tx:` and append with tx=tx"
)
ADVICE_TO_OPEN = (
    "this process itself holds a lock on the file: another of its connections has an open transaction. Commit it "
    "before you open the store"
)


class Waiting:
    """One wait for a lock of the file."""

    def __init__(self, path: str, now: float, give_up: float, waiter: object = None, *, to_open: bool = False) -> None:
        """`waiter`: the store that waits, if it is open."""
        self._waiter = waiter
        self.path = os.path.realpath(path)
        self._give_up, self._next, self._warn_at = give_up, now + FIRST_LOOK_SECONDS, now + WARN_SECONDS
        self._advice = ADVICE_TO_OPEN if to_open else ADVICE
        self._shown = f"cannot open the store {path}" if to_open else path
        self._is_ours = holds_file if to_open else holds_write_lock

    def look(self, now: float) -> None:
        """Raise `StoreBusy` if the lock is this thread's own, or the time is over; warn if it may be its own."""
        is_over = now >= self._give_up
        if now < self._next and not is_over:
            return
        if not self._is_ours(self.path):
            self._next = self._give_up
            return
        if is_over or waits_for_itself(self.path, self._waiter):
            raise StoreBusy(f"{self._shown}: {self._advice}")
        if now >= self._warn_at:
            log.warning(
                "%s: still waiting: %s. If that is in the thread that waits now, it waits for itself",
                self._shown, self._advice,
            )  # fmt: skip
            self._next = self._give_up
        else:
            self._next = self._warn_at


def holds_write_lock(path: str) -> bool:
    """Does this process write to the file, in WAL mode?"""
    return any(lock[3] == "WRITE" and lock[-2] == WRITE_LOCK for lock in _locks(f"{path}-shm"))


def holds_file(path: str) -> bool:
    """Does this process read or write the file, in another mode?"""
    return any(lock[-2].isdecimal() and int(lock[-2]) >= FILE_LOCKS_MIN for lock in _locks(path))


def _locks(path: str) -> Iterator[list[str]]:
    """The locks that this process has on a file. Not by opening the file: to close it would drop them all."""
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError:  # not on this system
        return
    for descriptor in descriptors:
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") != path:
                continue
            with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii", errors="replace") as file:
                lines = [line.split()[1:] for line in file if line.startswith("lock:")]
        except OSError:  # closed meanwhile
            continue
        # lock:   1: POSIX  ADVISORY  WRITE 20915 fe:00:2179281 120 120
        yield from (lock for lock in lines if len(lock) >= 8)


def waits_for_itself(path: str, waiter: object) -> bool:
    """This process holds the lock: is it this thread? Sure if it is the only one, or has the connection at hand."""
    me = threading.get_ident()
    stores = [one for one in forking.stores() if one is not waiter and os.path.realpath(one.path) == path]
    if any(store.inside_transaction() for store in stores):
        return True
    others = [
        thread for thread in threading.enumerate() if thread.ident != me and not thread.name.startswith("redrive-")
    ]
    is_alone = not others and not stores and not threading.current_thread().name.startswith("redrive-")
    return is_alone or _has_transaction(path)


def _has_transaction(path: str) -> bool:
    """Does a function that waits for us have a connection with an open transaction on the file?"""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        values = dict(frame.f_locals)
        of_self = getattr(values.get("self"), "__dict__", {})
        if any(_is_in_transaction(value, path) for value in (*values.values(), *of_self.values())):
            return True
        frame = frame.f_back
    return False


def _is_in_transaction(value: Any, path: str) -> bool:
    """Is it a connection of the user's, of sqlite3 or SQLAlchemy, with an open transaction on the file?"""
    from redrive.store.sqlite.connection import Lent  # which waits here, too

    try:
        connection = value if isinstance(value, sqlite3.Connection) else _of_sqlalchemy(value)
        if not isinstance(connection, sqlite3.Connection) or isinstance(connection, Lent):
            return False
        if not connection.in_transaction:
            return False
        cursor = connection.cursor()
        cursor.row_factory = None
        files = [row[2] for row in cursor.execute("PRAGMA database_list")]
    except Exception:  # a strange object, or the connection of another thread
        return False
    return any(file and os.path.realpath(file) == path for file in files)


def _of_sqlalchemy(value: Any) -> Any:
    """The driver's connection of a Session or Connection that has begun."""
    if not any(cls.__module__.startswith("sqlalchemy.") for cls in type(value).__mro__):
        return None
    in_transaction: Callable[[], bool] | None = getattr(value, "in_transaction", None)
    if in_transaction is None or not in_transaction():
        return None
    connection = value.connection
    pooled = connection().connection if callable(connection) else connection
    return pooled.dbapi_connection
