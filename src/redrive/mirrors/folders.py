"""Letters as lines of JSON, in a folder for each day: FOLDER/2026/11/16/letters.jsonl.

A line that a crash tore is cut off and written again. What was lost or damaged at the end, be it by a power cut or by
somebody's editor, is noticed when an owner begins, and written again as well.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from os import PathLike
from pathlib import Path

from redrive.errors import EventError, MirrorDown, UsageError
from redrive.failpoints import hit
from redrive.files import PRIVATE, create_folders, mode_of
from redrive.mirrors.entry import Entry, decode, encode
from redrive.mirrors.lines import BEGINNING, Damage, frame, scan
from redrive.mirrors.port import Mirror
from redrive.options import named_options
from redrive.sinks.rotation import BySize, LineFile
from redrive.units import duration, size

NAME = "letters.jsonl"
ROTATE = "10MiB"
_DAY = re.compile(r"[0-9]{4}/[0-9]{2}/[0-9]{2}")
_FILE = re.compile(re.escape(NAME) + r"(?:\.([0-9]{6,9}))?")


class LetterFiles(Mirror):
    """See `files`."""

    def __init__(
        self,
        folder: str | PathLike[str],
        name: str,
        rotate: str = ROTATE,
        keep: str | None = None,
        fsync: bool = True,
        file_mode: str = PRIVATE,
    ) -> None:
        super().__init__(name)
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder} is not a folder")
        try:
            self._bytes_max = size(rotate)
            self._keep = None if keep is None else duration(keep)
            self._file_mode, self._mode = file_mode, mode_of(file_mode)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None
        if self._bytes_max < 1 or (self._keep is not None and self._keep < 86_400):
            raise UsageError(f'{name}: rotate= is a size like "10MiB", keep= a time like "30d", of a day or more')
        self._fsync = fsync
        self._day: date | None = None
        self._file: LineFile | None = None

    @property
    def place(self) -> object:
        """Two would cut off each other's lines."""
        return self.folder.resolve()

    def __repr__(self) -> str:
        return f"files({os.fspath(self.folder)!r}, name={self.name!r})"

    def resume(self) -> int | None:
        """The last entry before anything that is damaged, in the newest file; a torn line at its end is cut off."""
        with self._down():
            files = paths(self.folder)
            for place, path in enumerate(reversed(files)):
                if place == 0:
                    self._mend(path)
                whole, is_damaged = _last_whole(path)
                if is_damaged and place == 0:  # what follows goes into another file: this one would be read again
                    self._set_aside(path)
                if whole is not None:
                    return whole
            return 0 if files else None

    def write(self, entries: Sequence[Entry], now: float) -> None:
        """Append them; on the disk when it returns."""
        with self._down():
            file = self._at(datetime.fromtimestamp(now, UTC).date())
            for block in _blocks([frame(encode(entry)) for entry in entries], self._bytes_max):
                file.write(block)
                hit("mirror.block")

    def close(self) -> None:
        """Let go of the file."""
        file, self._file, self._day = self._file, None, None
        if file is not None:
            file.close()

    @contextlib.contextmanager
    def _down(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MirrorDown(f"{self.name}: {error}") from error

    def _at(self, day: date) -> LineFile:
        if self._file is None or self._day != day:
            self.close()
            folder = self.folder / f"{day:%Y/%m/%d}"
            _make(folder, self._fsync, self._mode)
            self._file, self._day = self._open(folder / NAME), day
            if self._keep is not None:
                _forget(self.folder, day - timedelta(seconds=self._keep))
        return self._file

    def _open(self, path: Path) -> LineFile:
        return LineFile(
            path, BySize(self._bytes_max), fsync=self._fsync, beginning=BEGINNING, file_mode=self._file_mode
        )

    def _mend(self, path: Path) -> None:
        file = self._open(path)
        try:
            file.mend()
        finally:
            file.close()

    def _set_aside(self, path: Path) -> None:
        if path.name == NAME:
            numbers = [int(found[1] or 0) for one in path.parent.iterdir() if (found := _FILE.fullmatch(one.name))]
            path.rename(path.with_name(f"{NAME}.{max(numbers) + 1:06d}"))


@named_options("files")
def files(
    folder: str | PathLike[str],
    *,
    name: str,
    rotate: str = ROTATE,
    keep: str | None = None,
    fsync: bool = True,
    file_mode: str = PRIVATE,
) -> LetterFiles:
    """A mirror of letters in a folder, with a folder for each day; files of `rotate` bytes at most.

    `keep="30d"` removes the folders of days that lie longer ago. New files have the mode `file_mode`, and new folders
    one that lets the same people enter.

    >>> files("dead", name="dead-files", keep="30d")
    files('dead', name='dead-files')
    """
    return LetterFiles(folder, name, rotate, keep, fsync, file_mode)


def paths(folder: Path) -> list[Path]:
    """The files of a mirror, in the order in which they were written."""
    found: list[tuple[str, int, Path]] = []
    for path in folder.glob("*/*/*/" + NAME + "*"):
        day, name = path.parent.relative_to(folder).as_posix(), _FILE.fullmatch(path.name)
        if name is not None and _DAY.fullmatch(day) and path.is_file():
            found.append((day, int(name[1]) if name[1] else 10**9, path))  # the one without a number is the newest
    return [path for _, _, path in sorted(found)]


def read(place: str | PathLike[str]) -> Iterator[Entry | Damage]:
    """What a file or a folder of a mirror says, in order and as often as it says it, and what is damaged of it."""
    path = Path(place)
    for one in paths(path) if path.is_dir() else [path]:
        for found in scan(one.read_bytes()):
            yield found if isinstance(found, Damage) else decode(found)


def _last_whole(path: Path) -> tuple[int | None, bool]:
    """The number of the last entry before anything that is damaged, and whether anything is."""
    last = None
    for found in scan(path.read_bytes()):
        if isinstance(found, Damage):
            return last, True
        with contextlib.suppress(EventError):  # somebody else's line, or one of a later version: whole, and not ours
            last = decode(found).seq
    return last, False


def _blocks(lines: Sequence[bytes], bytes_max: int) -> Iterator[bytes]:
    """Lines together, but no more than fit into a file."""
    block: list[bytes] = []
    length = 0
    for line in lines:
        if block and length + len(line) > bytes_max:
            yield b"".join(block)
            block, length = [], 0
        block.append(line)
        length += len(line)
    if block:
        yield b"".join(block)


def _make(folder: Path, fsync: bool, mode: int) -> None:
    """The folder and those above it; their names are on the disk."""
    made = create_folders(folder, mode)
    for one in made if fsync else ():
        fd = os.open(one.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _forget(folder: Path, before: date) -> None:
    """Remove our files of earlier days, and the folders that are empty then."""
    for path in paths(folder):
        day = path.parent
        if day.relative_to(folder).as_posix() < f"{before:%Y/%m/%d}":
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty
                for one in (day, day.parent, day.parent.parent):
                    one.rmdir()
