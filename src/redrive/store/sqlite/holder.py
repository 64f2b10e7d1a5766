"""Who holds the write lock of a file, as far as the system tells (Linux: /proc/locks)."""

from __future__ import annotations

import os
from pathlib import Path

from redrive.errors import StoreBusy, StoreError

WRITE_LOCK = 120  # the byte of the -shm file that whoever writes has locked


def holder_of(path: str) -> str:
    """`process 4711 (python)`, or "" if it is not known. It opens no file of the store: to close it would unlock it."""
    try:
        found = Path(f"{path}-shm").stat()
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return ""
    file = (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)
    for lock in locks:
        fields = lock.split()  # 1: POSIX  ADVISORY  WRITE 4711 08:01:123456 120 120
        if len(fields) == 8 and fields[3] == "WRITE" and _file(fields[5]) == file and _covers(fields[6], fields[7]):
            return f"process {fields[4]} ({_name(fields[4])})"
    return ""


def named(error: StoreError, path: str) -> StoreError:
    """The same error, with the process that holds the lock if it is about that."""
    holder = holder_of(path) if isinstance(error, StoreBusy) else ""
    return StoreBusy(f"{error}: it is {holder}") if holder else error


def _file(text: str) -> tuple[int, ...]:
    major, minor, inode = text.split(":")
    return int(major, 16), int(minor, 16), int(inode)


def _covers(first: str, last: str) -> bool:
    return int(first) <= WRITE_LOCK and (last == "EOF" or int(last) >= WRITE_LOCK)


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "it has ended"
