"""Progress: the position below which everything is settled, and the settled ones above it.

Plan first, commit after: `plan` says what a transaction must write, `commit` changes the window
once that transaction is known to be committed. Positions may have gaps (other logs, compaction).

Where a subscription has several partitions, each has a window of its own. What all of them have settled is everything
up to the lowest prefix, the floor, and above it what is marked; so a partition keeps its marks until the floor passes
them. With one partition the floor is the prefix.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

NO_FLOOR = 2**62  # nobody else is behind


def stretches(above: int, upto: int, taken: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is free of the positions above one and up to another; each pair means: above the first, up to the second.

    >>> list(stretches(0, 9, [(1, 4), (6, 7)]))
    [(0, 1), (4, 6), (7, 9)]
    """
    for low, high in sorted(taken):
        if above < min(low, upto):
            yield above, min(low, upto)
        above = max(above, high)
    if above < upto:
        yield above, upto


class Plan(NamedTuple):
    """What settling some positions means for the store."""

    prefix: int
    add: list[int]  # marks to write, all above the floor
    pruned: int  # marks that the floor passes: the store must find exactly so many
    passed: int  # entries of the window that the prefix passes
    floor: int


class Window:
    """Positions taken in and not yet below the prefix, in order.

    A position is open, or stored (settled, with a mark), or neither: the filter did not ask for it. Thousands are here,
    and a handler waits while they are looked at: in sets, which are compared as a whole and not one by one.
    """

    __slots__ = ("_behind", "_done", "_elsewhere", "_open", "_order", "_stored", "cursor", "position")

    def __init__(self, position: int, done: Iterable[int] = (), elsewhere: Iterable[int] = ()) -> None:
        """`done`: our marks in the store. `elsewhere`: those of other partitions, some of which may have been ours."""
        self.position = position  # the prefix, as stored
        self.cursor = position  # everything up to here has been read
        self._order: list[int] = []  # all of them
        self._open: set[int] = set()
        self._stored: set[int] = set()
        self._done = {one for one in done if one > position}
        self._behind = sorted(one for one in done if one <= position)  # our marks between the floor and the prefix
        self._elsewhere = {one for one in elsewhere if one > position}

    def __len__(self) -> int:
        return len(self._order)

    def take(self, position: int) -> bool:
        """Read this position; False if it is settled already (a done row from before)."""
        if position in self._elsewhere:
            self.skip(position)
            return False
        self.cursor = position
        settled = position in self._done
        self._order.append(position)
        (self._stored if settled else self._open).add(position)
        if settled:
            self._done.discard(position)
        return not settled

    def take_all(self, positions: list[int]) -> None:
        """Read these positions, in order, none of them settled."""
        self._order += positions
        self._open.update(positions)
        self.cursor = positions[-1]

    def skip(self, position: int) -> None:
        """Read this position; the filter does not ask for it. Only the last of a run needs remembering."""
        self.cursor = position
        if position in self._done:  # asked for under an older filter
            self.take(position)
            return
        order = self._order
        if order and order[-1] not in self._open and order[-1] not in self._stored:
            order.pop()
        order.append(position)

    def rewind(self, position: int) -> None:
        """Forget what was read above a position: it will be read again."""
        kept = bisect_right(self._order, position)
        forgotten = self._order[kept:]
        del self._order[kept:]
        self._done.update(self._stored.intersection(forgotten))
        self._stored.difference_update(forgotten)
        self._open.difference_update(forgotten)
        self.cursor = position

    def is_open(self, position: int) -> bool:
        """Is this position taken in and not settled?"""
        return position in self._open

    def can_advance(self) -> bool:
        """Is something in front that nobody waits for? Then the prefix may pass it."""
        return bool(self._order) and self._order[0] not in self._open

    def plan(self, settled: Collection[int], others: int = NO_FLOOR) -> Plan:
        """What to write so that these positions are settled, while the slowest of the others is at `others`."""
        order = self._order
        first = min(self._open.difference(settled), default=NO_FLOOR)  # the first that is still to be waited for
        passed = bisect_left(order, first)
        prefix = order[passed - 1] if passed else self.position
        floor = min(prefix, others)
        pruned = len(self._stored.intersection(order[: bisect_right(order, floor, 0, passed)])) if self._stored else 0
        add = sorted(settled)
        return Plan(prefix, add[bisect_right(add, floor) :], pruned + self._behind_to(floor), passed, floor)

    def pass_to(self, prefix: int, settled: Iterable[int] = (), others: int = NO_FLOOR) -> Plan:
        """What to write when everything up to `prefix` is settled in order: projections, which have no window.

        `settled` is all that was not so before; who is alone need not say.
        """
        floor = min(prefix, others)
        pruned = sum(1 for position in self._done if position <= floor) if self._done else 0
        add = [] if floor == prefix else [position for position in settled if position > floor]
        return Plan(prefix, add, pruned + self._behind_to(floor), 0, floor)

    def _behind_to(self, floor: int) -> int:
        return bisect_right(self._behind, floor) if self._behind else 0

    def has_done(self) -> bool:
        """Is anything above the prefix settled?"""
        return bool(self._done or self._elsewhere)

    def is_done(self, position: int) -> bool:
        """Was this position settled before its turn?"""
        return position in self._done or position in self._elsewhere

    def commit(self, plan: Plan) -> None:
        """The plan is in the store now."""
        prefix, floor, stored = plan.prefix, plan.floor, self._stored
        passed, above = self._order[: plan.passed], plan.add
        if floor != prefix or self._behind:
            del self._behind[: self._behind_to(floor)]
            marks = {*stored.intersection(passed), *plan.add, *self._done}
            self._behind += sorted(position for position in marks if floor < position <= prefix)
            above = [position for position in plan.add if position > prefix]
        del self._order[: plan.passed]
        for gone in (passed, above):
            self._open.difference_update(gone)
        stored.difference_update(passed)
        stored.update(above)
        self.position = prefix
        self.cursor = max(self.cursor, prefix)
        if self._done:
            self._done = {position for position in self._done if position > prefix}
        if self._elsewhere:
            self._elsewhere = {position for position in self._elsewhere if position > prefix}

    def unsettled(self) -> int:
        """How many positions are taken in and not settled."""
        return len(self._open)
