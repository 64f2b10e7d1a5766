"""A file of lines that several processes may append to: whole blocks, no torn line, and rotation.

Whoever writes holds a lock on the file (`flock`) and first looks whether it is still the one at the path, so that a
file rotated by another process, or by logrotate, is left alone. A line that a crash cut short was never acknowledged:
it is cut off before the next one is written. What is not ours is never cut.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from os import PathLike

from msgspec import Struct

from redrive.clock import SystemClock
from redrive.codec import NOT_JSON, from_json
from redrive.errors import UsageError
from redrive.files import PRIVATE, mode_of
from redrive.units import duration, size

KEEP_MAX = 100_000
LOCK_WAIT_MAX = 5.0  # seconds for another process to write its block; beyond it, it hangs, and the attempt has failed
_LOCK_POLL = 0.005
_TAIL = 65_536  # bytes looked at a time, from the end, for the last whole line
_BEGINNING = b'{"specversion":"1.0",'  # of every line of ours; a torn one is a part of it or begins with it

_clock = SystemClock()


class BySize(Struct, frozen=True):
    """A new file before this many bytes are exceeded."""

    bytes_max: int

    def is_due(self, now: os.stat_result, coming: int, at: float) -> bool:
        """Would the file be too large with what comes?"""
        return now.st_size + coming > self.bytes_max


class ByTime(Struct, frozen=True):
    """A new file in each period, counted from 1970 in UTC: with one day, at midnight."""

    seconds: float

    def is_due(self, now: os.stat_result, coming: int, at: float) -> bool:
        """Was it last written in an earlier period?"""
        return now.st_mtime // self.seconds < at // self.seconds


Rotation = BySize | ByTime


def rotation(text: str | None) -> Rotation | None:
    """What "100MiB" or "1d" means.

    >>> rotation("1MiB"), rotation("1h")
    (BySize(bytes_max=1048576), ByTime(seconds=3600.0))
    """
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        if (bytes_max := size(text)) >= 1:
            return BySize(bytes_max)
    with contextlib.suppress(ValueError):
        if (seconds := duration(text)) >= 1:
            return ByTime(seconds)
    raise UsageError(f'rotate={text!r}: write a size like "100MiB" or a time like "1d" (at least "1s")')


class LineFile:
    """The file. Not for several threads at once."""

    def __init__(
        self,
        path: str | PathLike[str],
        rotate: Rotation | None = None,
        keep: int | None = None,
        fsync: bool = True,
        *,
        beginning: bytes = _BEGINNING,
        file_mode: str = PRIVATE,
    ) -> None:
        self.path = os.fspath(path)
        if keep is not None and (rotate is None or not 1 <= keep <= KEEP_MAX):
            raise UsageError(f"keep={keep}: how many rotated files stay, 1 to {KEEP_MAX:,}; it needs rotate=")
        if os.path.lexists(self.path) and not os.path.isfile(self.path):
            raise UsageError(f"{self.path} is not a file")
        self._rotate, self._keep, self._fsync = rotate, keep, fsync
        try:
            self._mode = mode_of(file_mode)
        except ValueError as error:
            raise UsageError(f"file_mode: {error}") from None
        self._beginning = beginning
        self._fd: int | None = None
        self._pid = os.getpid()

    def write(self, block: bytes) -> None:
        """Append whole lines: all of them, on the disk when it returns if `fsync`, or none."""
        fd = self._take()
        try:
            found = os.fstat(fd)
            if self._rotate is not None and found.st_size and self._rotate.is_due(found, len(block), _clock.now()):
                fd = self._begin_another(fd)
            start = _repair(fd, self._beginning)
            try:
                _write_all(fd, block)
                if self._fsync:
                    os.fsync(fd)
            except OSError:
                with contextlib.suppress(OSError):  # then the next writer does it
                    os.ftruncate(fd, start)
                raise
        finally:
            if self._fd is not None:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def mend(self) -> None:
        """Cut off a line that a crash has torn, as the next write would."""
        try:
            _repair(self._take(), self._beginning)
        finally:
            if self._fd is not None:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of it; the next write opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _take(self) -> int:
        """The file at the path, open and locked."""
        if self._pid != os.getpid():  # a lock is shared with the parent, and so is none
            self.close()
            self._pid = os.getpid()
        while True:
            if self._fd is None:
                self._fd = self._open()
            fd = self._fd
            _lock(fd, self.path)
            if _is_at(fd, self.path):
                return fd
            self.close()  # and with it the lock

    def _open(self) -> int:
        is_new = not os.path.exists(self.path)
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, self._mode)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise UsageError(f"{self.path} is not a file")
        if is_new:
            os.fchmod(fd, self._mode)  # whatever the umask
        if is_new and self._fsync:
            _sync_folder(self.path)
        return fd

    def _begin_another(self, fd: int) -> int:
        """Move the file away, under the lock that is held on it, and take a new one."""
        numbers = self._rotated()
        self._mode = stat.S_IMODE(os.fstat(fd).st_mode)  # who may read the former file may read the next
        os.rename(self.path, self._name(max(numbers, default=0) + 1))
        if self._keep is not None:
            for number in sorted(numbers)[: max(0, len(numbers) + 1 - self._keep)]:
                with contextlib.suppress(FileNotFoundError):  # somebody else tidied up
                    os.unlink(self._name(number))
        self.close()
        return self._take()

    def _name(self, number: int) -> str:
        return f"{self.path}.{number:06d}"

    def _rotated(self) -> list[int]:
        folder, name = os.path.split(self.path)
        ours = re.compile(re.escape(name) + r"\.([0-9]{6,9})")
        return [int(found[1]) for entry in os.listdir(folder or ".") if (found := ours.fullmatch(entry))]


def _lock(fd: int, path: str) -> None:
    until = _clock.monotonic() + LOCK_WAIT_MAX
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _clock.monotonic() > until:
                raise TimeoutError(f"{path} has been locked by another process for {LOCK_WAIT_MAX:g} s") from None
            time.sleep(_LOCK_POLL)
        else:
            return


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _write_all(fd: int, block: bytes) -> None:
    left = memoryview(block)
    while left:
        left = left[os.write(fd, left) :]


def _repair(fd: int, beginning: bytes) -> int:
    """Make the file end with a whole line; its length then."""
    length = os.fstat(fd).st_size
    if not length or os.pread(fd, 1, length - 1) == b"\n":
        return length
    start = _last_line(fd, length)
    line = os.pread(fd, length - start, start)
    if _is_torn(line, beginning):
        os.ftruncate(fd, start)
        return start
    _write_all(fd, b"\n")
    return length + 1


def _last_line(fd: int, end: int) -> int:
    while end > 0:
        begin = max(0, end - _TAIL)
        found = os.pread(fd, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _is_torn(line: bytes, beginning: bytes) -> bool:
    """The beginning of a line of ours and no more; or zeros, which a file system leaves where nothing was written."""
    rest = line.rstrip(b"\0")
    if rest[: len(beginning)] != beginning[: len(rest)]:
        return False
    try:
        from_json(line)
    except NOT_JSON:
        return True
    return False


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
