"""The place of a store's file: a process must not go on with a file that was deleted or replaced.

SQLite works on the file that it has opened, whatever lies at its path now. Commits to a deleted file are lost when the
last process closes it, and a WAL that lies beside another file than its own damages that one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from redrive.errors import StoreGone

LOCKS = "/proc/locks"
# SQLite holds a shared lock on this byte of NAME-shm for as long as a connection in WAL mode is open.
WAL_IN_USE = ["128", "128"]
# SQLite deletes NAME-wal and NAME-shm a moment before the last connection closes them. A process that has them open for
# longer works on a removed file.
CLOSING_SECONDS, CLOSING_LOOKS = 0.05, 20
BESIDE_SECONDS = 1.0  # between two looks at NAME-wal and NAME-shm: they would double what a check costs


class Place:
    """A path, and the file that was found there when the store was opened."""

    __slots__ = ("_beside", "_found", "_look_beside_at", "path")

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)  # the program may change its folder
        self._found: tuple[int, int] | None = None
        self._beside: dict[str, tuple[int, int]] = {}  # what was found of NAME-wal and NAME-shm
        self._look_beside_at = 0.0

    def note(self) -> None:
        """Remember the file that lies here now."""
        found = os.stat(self.path)
        self._found = found.st_dev, found.st_ino

    def check(self) -> None:
        """Raise `StoreGone` if the file that was noted does not lie here now. Called for each transaction: 4 µs."""
        if self._found is None:
            return
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise StoreGone(
                f"{self.path} is gone: it was deleted or moved while this process has it open. Nothing was written. "
                "Put it back, or restart this process"
            ) from None
        except OSError:  # we may not look, which says nothing about the file
            return
        if (found.st_dev, found.st_ino) != self._found:
            raise StoreGone(
                f"{self.path} is another file than the one that this process has open: it was replaced. Nothing was "
                "written. Put the former file back, or restart this process to work on the new one"
            )
        if not found.st_size:
            raise StoreGone(
                f"{self.path} is empty: something has overwritten it while this process has it open. Stop all "
                "processes that use it, then restore a backup"
            )
        now = time.monotonic()
        if now >= self._look_beside_at:
            self._check_beside()
            self._look_beside_at = now + BESIDE_SECONDS  # not before: what is wrong is looked at again

    def _check_beside(self) -> None:
        """The same for the WAL and its index. SQLite deletes them only when the last process closes the file."""
        for file in (f"{self.path}-wal", f"{self.path}-shm"):
            try:
                stat = os.stat(file)
                found = stat.st_dev, stat.st_ino
            except FileNotFoundError:
                found = None
            except OSError:
                continue
            if found is not None and self._beside.setdefault(file, found) == found:
                continue
            if file in self._beside:
                raise StoreGone(
                    f"{file} is gone: it was deleted, moved or replaced while this process has it open. Nothing was "
                    f"written. Put nothing in its place and stop all processes that use {self.path}: the last one "
                    "saves the commits that it holds"
                )


def check_free(path: str, pause: Callable[[float], object] = time.sleep) -> None:
    """Raise `StoreGone` if opening this path would work beside, or destroy, what is left of a removed file.

    Other processes are seen on Linux, if they run under this user and in this container.
    """
    path = os.path.realpath(path)
    looks = 0
    while (pids := list(_with_removed(path))) and looks < CLOSING_LOOKS:
        looks += 1
        pause(CLOSING_SECONDS)
    if pids:
        others = [pid for pid in pids if pid != os.getpid()]
        who = f"process {', '.join(map(str, others))}" if others else "this process"
        raise StoreGone(
            f"cannot open the store {path}: {who} still has the file open that was here before and was deleted or "
            "replaced (or its -wal or -shm). Stop it first; if you need that file, copy it before"
        )
    wal = f"{path}-wal"
    # In this order: a process that makes the store at this moment makes the file before the WAL.
    if os.path.exists(wal) and not _is_filled(path):
        raise StoreGone(
            f"cannot open the store {path}: the file is missing or empty, and {wal} belongs to it, perhaps with "
            f"commits that are nowhere else. Stop all processes that use it, and put {path} back, or remove {wal} and "
            f"{path}-shm to start with an empty store"
        )


def _is_filled(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _with_removed(path: str) -> Iterator[int]:
    """The processes that have a file open that was at this path, or the WAL of that file, or its index."""
    removed = {f"{path}{suffix} (deleted)" for suffix in ("", "-wal", "-shm")}
    for pid in sorted(_users_of_wal()):
        folder = f"/proc/{pid}/fd"
        try:
            descriptors = os.listdir(folder)
        except OSError:  # it has ended, or belongs to another user
            continue
        if any(_target(f"{folder}/{descriptor}") in removed for descriptor in descriptors):
            yield pid


def _users_of_wal() -> set[int]:
    """The processes that have some SQLite file open in WAL mode."""
    try:
        with open(LOCKS, encoding="ascii", errors="replace") as file:
            locks = [line.split() for line in file]
    except OSError:  # not on this system
        return set()
    # 5: POSIX  ADVISORY  READ 20915 fe:00:2179281 128 128
    return {int(lock[4]) for lock in locks if lock[-2:] == WAL_IN_USE and lock[4].isdecimal()}


def _target(descriptor: str) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:  # closed meanwhile
        return ""
