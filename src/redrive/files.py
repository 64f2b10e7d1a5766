"""Create files and folders that others may not read: events, letters and edits are in them.

A file that exists keeps the mode it has.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

PRIVATE = "0600"
_MODE = re.compile(r"0?6[0246]{2}")


def mode_of(text: str) -> int:
    """A mode as chmod takes it; the owner may always read and write, and none of ours is a program.

    >>> oct(mode_of("0640"))
    '0o640'
    """
    if not isinstance(text, str) or not _MODE.fullmatch(text):
        raise ValueError(
            f'{text!r} is no mode of a file that its owner reads and writes: write "0600", "0640" or "0660"'
        )
    return int(text, 8)


def create(path: str | os.PathLike[str], mode: int) -> None:
    """Create an empty file with exactly this mode, whatever the umask. A file that exists is left alone.

    Errors are ignored: the code that opens the file next reports them better.
    """
    try:
        handle = os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError:
        return
    try:
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


def folder_mode(mode: int) -> int:
    """The mode of a folder for such files: users that may read the files may enter it."""
    return mode | (mode & 0o444) >> 2


def create_folders(folder: Path, mode: int) -> list[Path]:
    """Create a folder for files of this mode, and those above it that are missing: these, outermost first."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()][::-1]
    for one in missing:
        one.mkdir(mode=0o700, exist_ok=True)
        one.chmod(folder_mode(mode))
    folder.mkdir(parents=True, exist_ok=True)  # raises the error that names the obstacle
    return missing


def mode_to_keep(path: str | os.PathLike[str], mode: int) -> int:
    """The mode of the file that is about to be replaced; `mode` if no file exists."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return mode
