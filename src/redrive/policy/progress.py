"""Progress: the position below which everything is settled, and the settled ones above it.

Plan first, commit after: `plan` says what a transaction must write, `commit` changes the window
once that transaction is known to be committed. Positions may have gaps (other logs, compaction).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

OPEN, SKIPPED, STORED = 0, 1, 2  # taken in · not asked for by the filter · settled, with a done row


class Plan(NamedTuple):
    """What settling some positions means for the store."""

    prefix: int
    add: list[int]  # done rows to write, all above the prefix
    pruned: int  # done rows that the prefix passes: the store must find exactly so many
    passed: int  # entries of the window that the prefix passes


class Window:
    """Positions taken in and not yet below the prefix, in order."""

    __slots__ = ("_done", "_order", "_state", "cursor", "position")

    def __init__(self, position: int, done: Iterable[int] = ()) -> None:
        self.position = position  # the prefix, as stored
        self.cursor = position  # everything up to here has been read
        self._order: deque[int] = deque()
        self._state: dict[int, int] = {}
        self._done = set(done)

    def __len__(self) -> int:
        return len(self._order)

    def take(self, position: int) -> bool:
        """Read this position; False if it is settled already (a done row from before)."""
        self.cursor = position
        self._order.append(position)
        settled = position in self._done
        self._state[position] = STORED if settled else OPEN
        if settled:
            self._done.discard(position)
        return not settled

    def take_all(self, positions: list[int]) -> None:
        """Read these positions, in order, none of them settled."""
        self._order.extend(positions)
        self._state.update(dict.fromkeys(positions, OPEN))
        self.cursor = positions[-1]

    def skip(self, position: int) -> None:
        """Read this position; the filter does not ask for it. Only the last of a run needs remembering."""
        self.cursor = position
        if position in self._done:  # asked for under an older filter
            self.take(position)
            return
        if self._order and self._state[self._order[-1]] == SKIPPED:
            del self._state[self._order.pop()]
        self._order.append(position)
        self._state[position] = SKIPPED

    def rewind(self, position: int) -> None:
        """Forget what was read above a position: it will be read again."""
        while self._order and self._order[-1] > position:
            last = self._order.pop()
            if self._state.pop(last) == STORED:
                self._done.add(last)
        self.cursor = position

    def is_open(self, position: int) -> bool:
        """Is this position taken in and not settled?"""
        return self._state.get(position) == OPEN

    def plan(self, settled: Collection[int]) -> Plan:
        """What to write so that these positions are settled."""
        prefix, pruned, passed = self.position, 0, 0
        state = self._state
        for position in self._order:
            kind = state[position]
            if kind == OPEN and position not in settled:
                break
            pruned += kind == STORED
            passed += 1
            prefix = position
        return Plan(prefix, sorted(position for position in settled if position > prefix), pruned, passed)

    def pass_to(self, prefix: int) -> Plan:
        """What to write when everything up to `prefix` is settled in order: projections, which have no window."""
        return Plan(prefix, [], sum(1 for position in self._done if position <= prefix) if self._done else 0, 0)

    def has_done(self) -> bool:
        """Is anything above the prefix settled?"""
        return bool(self._done)

    def is_done(self, position: int) -> bool:
        """Was this position settled before its turn?"""
        return position in self._done

    def commit(self, plan: Plan) -> None:
        """The plan is in the store now."""
        for _ in range(plan.passed):
            del self._state[self._order.popleft()]
        self.position = plan.prefix
        self.cursor = max(self.cursor, plan.prefix)
        if self._done:
            self._done = {position for position in self._done if position > plan.prefix}
        for position in plan.add:
            self._state[position] = STORED

    def unsettled(self) -> int:
        """How many positions are taken in and not settled."""
        return sum(1 for kind in self._state.values() if kind == OPEN)
