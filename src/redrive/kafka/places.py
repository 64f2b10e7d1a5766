"""How far a partition was read, in the words that the store keeps."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple


class Place(NamedTuple):
    """The next offset, and what the message before it was."""

    next: int
    anchor: str = ""  # empty: nothing of it was read yet
    generation: int = 1

    @classmethod
    def of(cls, text: str) -> Place:
        """As the store has it.

        >>> Place.of("1;42;1794837328684;0badcafe").next
        42
        """
        generation, offset, anchor = text.split(";", 2)
        return cls(int(offset), anchor, int(generation))

    def __str__(self) -> str:
        return f"{self.generation};{self.next};{self.anchor}"


def anchor_of(message: Any) -> str:
    """By what a message is known again."""
    check = zlib.crc32(message.value() or b"", zlib.crc32(message.key() or b""))
    return f"{message.timestamp()[1]};{check:08x}"
