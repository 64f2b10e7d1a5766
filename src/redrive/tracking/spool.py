"""The spool: a file that keeps tracked events while the store cannot. Crash-safe, bounded, one per process.

A record is one line: length, checksum, JSON. What is torn or damaged is found, skipped and set aside; a record is taken
whole or not at all. The owner holds a lock on its file for as long as it lives, so whoever gets the lock may take the
file over. Every record has the id of its event: taking it twice stores it once.
"""

from __future__ import annotations

import fcntl
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from redrive.codec import DATA_BYTES_MAX
from redrive.event import HEADERS_BYTES_MAX, NewEvent

SUFFIX, DAMAGED = ".spool", ".damaged"
PIECE = 256 * 1024  # bytes read at a time
# Longer is no length but a damaged one. JSON that is written as a text has each byte escaped to two at most.
RECORD_BYTES_MAX = 2 * (DATA_BYTES_MAX + HEADERS_BYTES_MAX) + 16_384

_HEAD = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) ")
_HEAD_BYTES = 18


class Entry(NamedTuple):
    """An event and the log it is for."""

    log: str
    event: NewEvent


class Whole(NamedTuple):
    """A record that is as it was written; the next begins at `end`."""

    entry: Entry
    end: int


class Broken(NamedTuple):
    """Bytes that are no record."""

    raw: bytes
    end: int


_Body = tuple[str, str, str, str | None, int, int, msgspec.Raw, msgspec.Raw, bool, bool]
_decode = msgspec.json.Decoder(_Body).decode
_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode
_SPACE, _NULL = b" \t\r\n", b"null"


def encode(entry: Entry, salt: int) -> bytes:
    """The line of an event. `salt`, made of the file's name, keeps a payload from looking like a record."""
    log, (id, kind, key, schema, time_us, headers, data, _, may_repeat, *_) = entry
    # JSON in JSON stays as it is, unless it has line breaks, or space around it that would get lost: then as a text.
    as_text = 0x0A in data or data[:1] in _SPACE or data[-1:] in _SPACE
    raw = _encode(data.decode()) if as_text else data
    body = _encode(
        (log, id, kind, key, schema, time_us, msgspec.Raw(headers or _NULL), msgspec.Raw(raw), may_repeat, as_text)
    )  # fmt: skip
    return b"%08x %08x %b\n" % (len(body), zlib.crc32(body, salt), body)


def salt_of(name: str) -> int:
    """What the checksums of a file begin with."""
    return zlib.crc32(name.encode())


def records(handle: int, begin: int, salt: int, size: int | None = None) -> Iterator[Whole | Broken]:
    """What is in a file from an offset on, in order; damaged bytes that follow each other are one `Broken`.

    `size`: bytes of the file that count; the rest is of a write that was refused.
    """
    buffer, offset, at_end = b"", begin, False  # the buffer begins at this offset of the file
    at, broken = 0, b""
    while True:
        found = _parse(buffer, at, at_end, salt)
        if found is None:
            if at_end:
                break
            place = offset + len(buffer)
            piece = os.pread(handle, PIECE if size is None else min(PIECE, size - place), place)
            at_end = not piece
            buffer, offset, at = buffer[at:] + piece, offset + at, 0
            continue
        entry, end = found
        if entry is None:
            broken += buffer[at:end]
        else:
            if broken:
                yield Broken(broken, offset + at)
                broken = b""
            yield Whole(entry, offset + end)
        at = end
    if broken:
        yield Broken(broken, offset + at)


def _parse(buffer: bytes, at: int, at_end: bool, salt: int) -> tuple[Entry | None, int] | None:
    """The record there and its end, or None and the end of what is none; None if more must be read to tell."""
    if at == len(buffer):
        return None
    head = _HEAD.match(buffer, at)
    if head is None:
        return (None, _next_line(buffer, at)) if at_end or len(buffer) - at > _HEAD_BYTES else None
    length = int(head[1], 16)
    if length <= RECORD_BYTES_MAX:
        end = at + _HEAD_BYTES + length
        if len(buffer) <= end and not at_end:
            return None
        body = buffer[at + _HEAD_BYTES : end]
        if len(body) == length and zlib.crc32(body, salt) == int(head[2], 16):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                return _entry(_decode(body)), end + (buffer[end : end + 1] == b"\n")
    return None, _next_line(buffer, at)


def _next_line(buffer: bytes, at: int) -> int:
    if _HEAD.match(buffer, at + 1) is not None:  # only the line break in front of it was damaged
        return at + 1
    # A line break is never part of a body, so behind one a record may begin.
    return buffer.find(b"\n", at) + 1 or len(buffer)


def _entry(body: _Body) -> Entry:
    log, id, kind, key, schema, time_us, headers, data, may_repeat, as_text = body
    raw = _decode_text(data).encode() if as_text else bytes(data)
    headers_raw = bytes(headers)
    return Entry(
        log,
        NewEvent(id, kind, key, schema, time_us, None if headers_raw == _NULL else headers_raw, raw, None, may_repeat),
    )


class Chunk(msgspec.Struct, frozen=True):
    """Some of what is to be taken in, and how far the file is done with when it is."""

    entries: list[Entry]
    broken: list[bytes]
    upto: int


class SpoolFile:
    """A file that this process has locked."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle
        self._salt = salt_of(path.name)
        self._taken = 0
        self._size = os.fstat(handle).st_size
        self._tried = self._size  # below, an event may be in the store already: look before storing it
        self._torn = False  # are there bytes behind the end, of a write that was refused?
        self._kept = False  # it is done with and yet must stay

    @property
    def end(self) -> int:
        """Where the next record will be."""
        return self._size

    @property
    def untaken(self) -> int:
        """Bytes that are still to be taken in."""
        return self._size - self._taken

    def write(self, entries: Sequence[Entry], room: int) -> int:
        """Put down as many as there is room for, durably, and say how many that are; OSError: none of them."""
        if self._torn:  # else a reader would find records of a write that was refused behind a shorter one
            os.ftruncate(self._handle, self._size)
            self._torn = False
        lines: list[bytes] = []
        for entry in entries:
            lines.append(encode(entry, self._salt))
            room -= len(lines[-1])
            if room < 0:
                lines.pop()
                break
        if lines:
            self._append(b"".join(lines))
        return len(lines)

    def _append(self, raw: bytes) -> None:
        try:
            done = 0
            while done < len(raw):
                done += os.pwrite(self._handle, raw[done:], self._size + done)
            os.fdatasync(self._handle)
        except OSError:
            self._torn = True
            with suppress(OSError):
                os.ftruncate(self._handle, self._size)
                self._torn = False
            raise
        self._size += len(raw)

    def read(self, count: int, bytes_max: int) -> Chunk:
        """The next to be taken in: at most so many, and no more once so many bytes are reached."""
        entries: list[Entry] = []
        broken: list[bytes] = []
        upto = self._taken
        for found in records(self._handle, self._taken, self._salt, self._size):
            upto = found.end
            if isinstance(found, Broken):
                broken.append(found.raw)
                continue
            entry = found.entry
            if self._taken < self._tried:
                entry = Entry(entry.log, entry.event._replace(may_repeat=True))
            entries.append(entry)
            if len(entries) == count or upto - self._taken >= bytes_max:
                break
        return Chunk(entries, broken, upto)

    def advance(self, upto: int) -> None:
        """What is below is committed for good, or set aside; a file that is done with becomes empty."""
        self._taken = max(self._taken, upto)
        if self._taken >= self._size:
            os.ftruncate(self._handle, 0)
            self._taken = self._size = self._tried = 0
            self._torn = False

    def try_again(self) -> None:
        """Nobody knows which of the events there are in the store."""
        self._tried = self._size

    def give_up(self, upto: int) -> None:
        """As `advance`, for a file that cannot be changed: it stays, and who takes it again stores nothing twice."""
        self._taken, self._kept = max(self._taken, upto), True

    def set_aside(self, broken: Sequence[bytes]) -> None:
        """Keep what nobody can read, for people."""
        with open(self.path.with_suffix(DAMAGED), "ab", opener=_private) as file:
            file.writelines(raw if raw.endswith(b"\n") else raw + b"\n" for raw in broken)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Let go; a file with something in it stays for whoever comes next."""
        if not self.untaken and not self._kept:
            with suppress(OSError):
                self.path.unlink()
        os.close(self._handle)

    def leave(self) -> None:
        """In a forked child: it is the parent's, and so is the lock."""
        with suppress(OSError):
            os.close(self._handle)


class SpoolFolder:
    """The spool files of one store on this machine."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path, self._bytes_max = path, bytes_max

    def create(self, name: str) -> SpoolFile:
        """A new file of this process; OSError if there cannot be one."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in range(1, 1_000_000):
            path = self.path / f"{name}-{number}{SUFFIX}"
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            if _lock(handle):
                self._sync()
                return SpoolFile(path, handle)
            os.close(handle)  # somebody who looks for files of the dead was quicker, and will remove it
        raise OSError(f"there are a million spool files in {self.path}")

    def orphans(self, mine: Sequence[Path]) -> list[SpoolFile]:
        """Files whose process is gone, locked for us, oldest first."""
        found = []
        for path in self._files():
            if path.suffix == SUFFIX and path not in mine:
                with suppress(OSError):
                    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                    if _lock(handle):
                        found.append(SpoolFile(path, handle))
                    else:
                        os.close(handle)
        return found

    def room(self) -> int:
        """Bytes that may still be written, by anybody."""
        used = 0
        for path in self._files():
            with suppress(OSError):
                used += path.stat().st_size
        return self._bytes_max - used

    def _files(self) -> list[Path]:
        dated = []
        with suppress(OSError):
            for path in self.path.iterdir():
                with suppress(OSError):
                    dated.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(dated)]

    def _sync(self) -> None:
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _lock(handle: int) -> bool:
    """Is it ours now? Not if its owner lives, nor if somebody has removed it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return os.fstat(handle).st_nlink > 0


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
