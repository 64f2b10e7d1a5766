"""Following numbered rows that several write at a time: a number that is missing may still appear, or never will."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Gap(NamedTuple):
    """Numbers are missing after `number`; whoever has them is a transaction below `born_before`."""

    after: int
    born_before: int


NO_GAP = Gap(-1, 0)


def complete(after: int, numbers: Sequence[int], ended_below: int, begin_from: int, seen: Gap) -> tuple[int, Gap]:
    """How many of these rows nothing can appear between any more, and the gap that the others have to wait for.

    `ended_below`, `begin_from`: of the snapshot in which the rows were read, see `store.journal.horizon`.

    >>> complete(4, [5, 6, 8], 100, 103, NO_GAP)
    (2, Gap(after=6, born_before=103))
    >>> complete(6, [8], 103, 104, Gap(after=6, born_before=103))
    (1, Gap(after=-1, born_before=0))
    """
    expected = after + 1
    for count, number in enumerate(numbers):
        if number != expected:
            # Whoever took the missing number did so before the next one was taken, and had begun by then.
            gap = seen if seen.after == expected - 1 else Gap(expected - 1, begin_from)
            if ended_below < gap.born_before:
                return count, gap
        expected = number + 1
    return len(numbers), NO_GAP
