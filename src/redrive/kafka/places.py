"""How far a partition was read, in the words that the store keeps."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple


class Place(NamedTuple):
    """The last offset that has landed, what the message was, and of which topic of that name."""

    last: int
    anchor: str = ""  # empty: nothing of it was read yet
    generation: int = 1

    @classmethod
    def before(cls, offset: int, generation: int) -> Place:
        """Where reading begins with this offset."""
        return cls(offset - 1, "", generation)

    @classmethod
    def of(cls, text: str) -> Place:
        """As the store has it.

        >>> Place.of("41;1;1794837328684;0badcafe").next
        42
        """
        offset, generation, anchor = text.split(";", 2)
        return cls(int(offset), anchor, int(generation))

    def __str__(self) -> str:
        return f"{self.last};{self.generation};{self.anchor}"

    @property
    def next(self) -> int:
        """The offset to go on with."""
        return self.last + 1


def anchor_of(message: Any) -> str:
    """By what a message is known again."""
    check = zlib.crc32(message.value() or b"", zlib.crc32(message.key() or b""))
    return f"{message.timestamp()[1]};{check:08x}"
