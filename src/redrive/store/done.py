"""What is settled above the prefix, stored as marks: one character for each of CHUNK neighbouring positions.

Every change reads the marks first, so a position that was settled already, or other ones than we knew of
below the prefix, are noticed: somebody else was here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from redrive.errors import Fenced
from redrive.store.sql import Row, Sql

CHUNK = 512  # part of the storage format
_NO_CHUNK = 2**62  # above all of them
_UNMARKED, _SETTLED = b"0" * CHUNK, ord("1")


class Done:
    """The settled positions above the prefix of each member: of a subscription, or of a partition of it."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def all(self, member: int) -> list[int]:
        """The positions of one member, in order."""
        return [
            chunk * CHUNK + place
            for chunk, marks in self._chunks(member)
            for place, mark in enumerate(marks)
            if mark == "1"
        ]

    def of(self, subscription: int, above: int = 0) -> list[int]:
        """The positions above one that any member of a subscription has marked, in order."""
        return sorted(one for member in self._members(subscription) for one in self.all(member) if one > above)

    def has(self, subscription: int, position: int) -> bool:
        """Has any member of a subscription marked this position?"""
        found = (self._sql.value("done_chunk", (member, position // CHUNK)) for member in self._members(subscription))
        return any(marks is not None and marks[position % CHUNK] == "1" for marks in found)

    def add(self, member: int, positions: Sequence[int]) -> None:
        """Mark positions, given in order; one that is marked already was settled by somebody else."""
        if not positions:
            return
        changed, begin = [], 0
        # All of them at once: what lies between is little, and each question would let other threads go first.
        known: dict[int, str] = dict(self._chunks(member, positions[0] // CHUNK, positions[-1] // CHUNK))
        while begin < len(positions):
            chunk = positions[begin] // CHUNK
            low, end = chunk * CHUNK, bisect_left(positions, (chunk + 1) * CHUNK, begin)
            found = known.get(chunk)
            marks = bytearray(_UNMARKED if found is None else found.encode())
            before = marks.count(_SETTLED)
            for position in positions[begin:end]:
                marks[position - low] = _SETTLED
            if marks.count(_SETTLED) != before + end - begin:
                raise Fenced(f"member {member}: a position was settled by somebody else")
            changed.append((member, chunk, marks.decode()))
            begin = end
        self._sql.many("done_put", changed)

    def prune(self, member: int, prefix: int) -> int:
        """Drop the marks that the prefix has passed; how many there were."""
        boundary, kept = divmod(prefix + 1, CHUNK)
        passed = 0
        chunks = self._chunks(member, 0, boundary)
        for chunk, marks in chunks:
            here = marks.count("1") if chunk < boundary else marks.count("1", 0, kept)
            passed += here
            if chunk == boundary and here:
                self._sql.run("done_put", (member, chunk, "0" * kept + marks[kept:]))
        if chunks and chunks[0][0] < boundary:
            self._sql.run("done_drop", (member, boundary))
        return passed

    def move(self, member: int, add: Sequence[int], floor: int, expected: int) -> None:
        """Mark settled positions above the floor, given in order; drop the marks that it has passed.

        A repeated one, or another number passed than we knew of, means: somebody else settled here, look again.
        """
        otherwise = Fenced(f"subscription {member}: what is done below {floor} is not what we know of")
        if self._sql.is_far and not (add or expected):  # the server can see for itself
            boundary, kept = divmod(floor + 1, CHUNK)
            self._sql.run("pg_done_none", (member, boundary, kept), otherwise)
            return
        if add:
            self.add(member, add)
        if self.prune(member, floor) != expected:
            raise otherwise

    def prune_all(self, subscription: int, prefix: int) -> None:
        """Drop the marks of all members that a new prefix of the subscription has passed."""
        for member in self._members(subscription):
            self.prune(member, prefix)

    def clear(self, subscription: int) -> None:
        """Forget all of a subscription's."""
        for member in self._members(subscription):
            self._sql.run("done_drop", (member, _NO_CHUNK))

    def _members(self, subscription: int) -> list[int]:
        return [member for (member,) in self._sql.all("done_members", (subscription,))]

    def _chunks(self, member: int, first: int = 0, last: int = _NO_CHUNK) -> list[Row]:
        return self._sql.all("done_chunks", (member, first, last))
