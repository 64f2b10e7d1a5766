"""What a mirror is: a copy of the letters somewhere else, that follows what happens to them.

The letters in the store are the letters; a mirror is never the only copy. It is written by one owner, in order,
at least once: after a crash the last entries come again, and are recognised by `Entry.key`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from redrive.errors import UsageError
from redrive.event import check_type

if TYPE_CHECKING:
    from redrive.mirrors.entry import Entry

LETTERS = "(all letters)"  # what mirrors read, where others name a log; no log can be called so


class Mirror(ABC):
    """Somewhere letters are mirrored. `name` is its identity, for good. Methods may block; one is called at a time."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise UsageError("a mirror needs a name, which it keeps when its place changes: name='dead-files'")
        self.name = check_type(name)

    @property
    def place(self) -> object:
        """Where it writes and no other mirror may; None: beside others, there is room for it."""
        return None

    def resume(self) -> int | None:
        """Before the first `write` of an owner: the number up to which nothing is missing here; None: no idea."""
        return None

    @abstractmethod
    def write(self, entries: Sequence[Entry], now: float) -> None:
        """Hold all of them for good, in this order. MirrorDown if that is not possible now; it is tried again."""

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """After the last `write` of an owner."""
