"""What is settled above the prefix, stored as marks: one character for each of CHUNK neighbouring positions.

Every change reads the marks first, so a position that was settled already, or other ones than we knew of
below the prefix, are noticed: somebody else was here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from redrive.errors import Fenced
from redrive.store.sql import Row, Sql

CHUNK = 512  # part of the storage format
_NO_CHUNK = 2**62  # above all of them
_UNMARKED, _SETTLED = b"0" * CHUNK, ord("1")


class Done:
    """The settled positions above the prefix of each subscription."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def all(self, subscription: int) -> list[int]:
        """The positions in order."""
        return [
            chunk * CHUNK + place
            for chunk, marks in self._chunks(subscription)
            for place, mark in enumerate(marks)
            if mark == "1"
        ]

    def has(self, subscription: int, position: int) -> bool:
        """Is this position marked?"""
        marks = self._sql.value("done_chunk", (subscription, position // CHUNK))
        return marks is not None and marks[position % CHUNK] == "1"

    def below(self, subscription: int, position: int) -> int:
        """How many positions below this one are marked."""
        last, place = divmod(position, CHUNK)
        return sum(
            marks.count("1") if chunk < last else marks.count("1", 0, place)
            for chunk, marks in self._chunks(subscription, last)
        )

    def add(self, subscription: int, positions: Sequence[int]) -> None:
        """Mark positions, given in order; one that is marked already was settled by somebody else."""
        changed = []
        for chunk, members in groupby(positions, _chunk_of):
            found = self._sql.value("done_chunk", (subscription, chunk))
            marks = bytearray(_UNMARKED if found is None else found.encode())
            before, count = marks.count(_SETTLED), 0
            for position in members:
                marks[position % CHUNK] = _SETTLED
                count += 1
            if marks.count(_SETTLED) != before + count:
                raise Fenced(f"subscription {subscription}: a position was settled by somebody else")
            changed.append((subscription, chunk, marks.decode()))
        self._sql.many("done_put", changed)

    def prune(self, subscription: int, prefix: int) -> int:
        """Drop the marks that the prefix has passed; how many there were."""
        boundary, kept = divmod(prefix + 1, CHUNK)
        passed = 0
        chunks = self._chunks(subscription, boundary)
        for chunk, marks in chunks:
            here = marks.count("1") if chunk < boundary else marks.count("1", 0, kept)
            passed += here
            if chunk == boundary and here:
                self._sql.run("done_put", (subscription, chunk, "0" * kept + marks[kept:]))
        if chunks and chunks[0][0] < boundary:
            self._sql.run("done_drop", (subscription, boundary))
        return passed

    def clear(self, subscription: int) -> None:
        """Forget all of them."""
        self._sql.run("done_drop", (subscription, _NO_CHUNK))

    def _chunks(self, subscription: int, upto: int = _NO_CHUNK) -> list[Row]:
        return self._sql.all("done_chunks", (subscription, upto))


def _chunk_of(position: int) -> int:
    return position // CHUNK
