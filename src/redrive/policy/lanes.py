"""Lanes: which keys are held back, by which letter, and what is due when.

The owner's cache of the open letters. A head is computed (the open letter with the lowest
position of its lane), never stored. It must change only after the commit that changed the store.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from redrive.policy.lease import rebase

# What `replaying` says of a letter that an operator sent round again: one attempt, then it is dead again.
ONCE, PACED = 1, 2  # PACED: its operation has a rate of its own


class Head(NamedTuple):
    """The letter a lane waits for."""

    position: int
    letter: int
    state: str
    due_at: float
    due_set_at: float
    delay: float
    rev: int
    attempts: int
    replaying: int
    edits: int


def rebased(head: Head, now: float, delay_max: float) -> Head:
    """The head as it counts now: one that was set in what is the future again starts its delay over."""
    if head.state != "retrying" or head.due_set_at <= now:
        return head
    return head._replace(due_at=rebase(head.due_at, head.due_set_at, head.delay, now, delay_max))


def draws_on_budget(head: Head) -> bool:
    """Does an attempt of this letter count against the retry budget?

    It does if the letter was called before or is replayed; not if it only queued behind another one, nor if an operator
    gave its replay a rate: that rate alone bounds it.
    """
    return head.replaying != PACED and bool(head.attempts or head.replaying)


class Lanes:
    """Open letters of one subscription, by lane; letters without a lane wait for nobody."""

    __slots__ = ("_due", "_heads", "_held", "_loose", "_noticed", "_sizes")

    def __init__(self, rows: Iterable[tuple[str | None, Head, int]] = (), *, now: float = 0.0, delay_max: float = 0.0):
        self._heads: dict[str, Head] = {}
        self._loose: dict[int, Head] = {}
        self._sizes: dict[str, int] = {}
        self._due: list[tuple[float, int, str | None]] = []
        self._held: dict[int, tuple[str | None, Head]] = {}  # heads that a hold keeps back, as they were before
        self._noticed = now
        for lane, head, size in rows:
            self.put(lane, rebased(head, now, delay_max), size)

    def __bool__(self) -> bool:
        return bool(self._heads)

    def parked(self, lane: str | None) -> bool:
        """Does the lane have a head, so that later events must queue behind it?"""
        return lane is not None and lane in self._heads

    @property
    def names(self) -> dict[str, Head]:
        """The parked lanes; read only, for a fast membership test."""
        return self._heads

    def size(self, lane: str | None) -> int:
        """How many open letters the lane holds."""
        return 0 if lane is None else self._sizes.get(lane, 0)

    def head(self, lane: str | None, letter: int) -> Head | None:
        """The current head, if it still is this letter."""
        found = self._loose.get(letter) if lane is None else self._heads.get(lane)
        return found if found is not None and found.letter == letter else None

    def put(self, lane: str | None, head: Head | None, grown: int = 0) -> None:
        """The lane's head is this one now (None: the lane is free), and its size changed by `grown`."""
        if lane is not None:
            size = self._sizes.get(lane, 0) + grown
            if head is None:
                self._heads.pop(lane, None)
                self._sizes.pop(lane, None)
                return
            self._heads[lane] = head
            self._sizes[lane] = max(size, 1)
        elif head is not None and head.state == "retrying":
            self._loose[head.letter] = head
        if head is not None and head.state == "retrying":
            heapq.heappush(self._due, (head.due_at, head.letter, lane))

    def notice(self, now: float, delay_max: float, *, is_set_back: bool = False) -> None:
        """Look at the wall clock: if it ran backwards, nothing may stay due in a future that was the present."""
        if is_set_back or now < self._noticed:
            for letter, (lane, before) in self._held.items():
                self._held[letter] = (lane, rebased(before, now, delay_max))
            for lane, head in list(self._heads.items()):
                self.put(lane, rebased(head, now, delay_max))
            for head in list(self._loose.values()):
                self.put(None, rebased(head, now, delay_max))
        self._noticed = now

    def learn(self, lane: str | None, letter: int, head: Head | None, size: int) -> None:
        """The store says this of a lane, or of a letter in a lane of its own: its head, and how many are open.

        Without a head the lane is free, and the letter waits for no due time.
        """
        if lane is None and head is None:
            self.drop_loose(letter)
        elif head is None or not self._is_known(lane, head):
            if lane is not None:
                self._sizes.pop(lane, None)
            self.put(lane, head, size)
        elif lane is not None:
            self._sizes[lane] = max(size, 1)

    def _is_known(self, lane: str | None, head: Head) -> bool:
        """Is this the head already, as the store has it? One that a hold keeps back has another due time here."""
        current, held = self.head(lane, head.letter), self._held.get(head.letter)
        if held is not None and held[1] == head and current is not None and current.rev == head.rev:
            return True
        self._held.pop(head.letter, None)
        return current == head

    def hold(self, lane: str | None, head: Head, until: float) -> None:
        """A hold keeps this head back: it is due when the hold ends, or as before once it is released."""
        if self.head(lane, head.letter) == head:
            before = self._held.get(head.letter)
            if before is None or before[1].rev != head.rev:  # else a hold has set this due time
                self._held[head.letter] = lane, head
            self.put(lane, head._replace(due_at=until))

    def release(self) -> None:
        """The holds have changed: heads that one kept back are due as before."""
        held, self._held = self._held, {}
        for lane, before in held.values():
            head = self.head(lane, before.letter)
            if head is not None and head.rev == before.rev:
                self.put(lane, before)

    def drop_loose(self, letter: int) -> None:
        """A letter in a lane of its own is settled or dead: nothing waits for it."""
        self._loose.pop(letter, None)

    def grow(self, lane: str, followers: int) -> None:
        """More letters queued behind the head."""
        self._sizes[lane] = self._sizes.get(lane, 0) + followers

    def take_due(self, now: float, limit: int) -> list[tuple[str | None, Head]]:
        """Heads whose time has come, the longest overdue first. Give back by `put` what was not run."""
        due: list[tuple[str | None, Head]] = []
        taken = set[int]()
        while self._due and len(due) < limit and self._due[0][0] <= now:
            due_at, letter, lane = heapq.heappop(self._due)
            head = self.head(lane, letter)
            is_due = head is not None and head.state == "retrying" and head.due_at == due_at
            if head is not None and is_due and letter not in taken:  # two looks may have found the same time
                taken.add(letter)
                due.append((lane, head))
        return due

    def next_due(self) -> float | None:
        """When the next head is due; None if nothing has a due time."""
        while self._due:
            due_at, letter, lane = self._due[0]
            head = self.head(lane, letter)
            if head is not None and head.state == "retrying" and head.due_at == due_at:
                return due_at
            heapq.heappop(self._due)  # superseded by a later put
        return None
