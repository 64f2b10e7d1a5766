"""Reading a mirror back, wherever it is: a file, a folder, or what a broker holds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from redrive.errors import UsageError
from redrive.mirrors.entry import Entry
from redrive.mirrors.folders import paths
from redrive.mirrors.folders import read as read_files
from redrive.mirrors.lines import BEGINNING, Damage

_LOOK = 65_536  # bytes
_BROKERS = {"redis": "redrive.redis.letters", "rediss": "redrive.redis.letters"}


def is_mirror(place: str) -> bool:
    """Is this a mirror's, or something else's?"""
    if _broker(place) is not None:
        return True
    path = Path(place)
    if path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return b"\n" + BEGINNING in b"\n" + file.read(_LOOK)  # also where the first line is damaged
    except (OSError, ValueError):
        return False


def read(place: str) -> Iterator[Entry | Damage]:
    """What it says, in order and as often as it says it."""
    broker = _broker(place)
    if broker is None:
        if Path(place).is_dir() and not paths(Path(place)):
            raise UsageError(f"{place!r} holds no letters: name the folder in which the years are, or a file")
        yield from read_files(place)
    else:
        try:
            module = importlib.import_module(broker)
        except ModuleNotFoundError as error:
            raise UsageError(f"a mirror on Redis needs {error.name}: pip install 'redrive[redis]'") from error
        yield from module.read(place)


def _broker(place: str) -> str | None:
    scheme, separator, _ = place.partition("://")
    return _BROKERS.get(scheme) if separator else None
