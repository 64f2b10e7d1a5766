"""Held keys in a simulated world: what an owner that has seen a hold must not do.

Only holds without an end are looked at: when the others end depends on the clock of each process.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from redrive.policy.partitions import place

if TYPE_CHECKING:
    from redrive.testing.sim.checker import Checker
    from redrive.testing.sim.process import Process
    from redrive.testing.sim.seen import Planned, Seen

HOLDS = """SELECT h.id, pattern, is_prefix FROM redrive_holds h
WHERE until IS NULL AND (subscription = 0 OR subscription = ?)"""
ROUNDS = 2  # an owner has seen a hold when it has settled something so often since: it looks after each time


class Held(NamedTuple):
    """A hold without an end."""

    id: int
    pattern: str
    is_prefix: int

    def covers(self, key: str | None) -> bool:
        """Does it hold this key?"""
        if key is None:
            return False
        return key.startswith(self.pattern) if self.is_prefix else key == self.pattern


class HoldChecker:
    """Looks at every committed state, and at every call of a handler."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._held: dict[Held, Counter[tuple[int, int]]] = {}  # with what was settled since, by partition and epoch

    def check(self, process: Process, before: Seen, now: Seen) -> None:
        """A projection applies nothing of a held key; a letter that exists because of a hold has made no attempt."""
        checker, held = self._checker, self._held
        if process.name.startswith("w") and len(before.members) == len(now.members):
            if not checker.options.handler and now.effects[: len(before.effects)] == before.effects:
                for event, key, _ in now.effects[len(before.effects) :]:
                    if any(hold.covers(key) for hold in held):
                        checker.world.fail(f"hold: {event} is applied while its key {key} is held")
            for partition, (was, member) in enumerate(zip(before.members, now.members, strict=True)):
                if was.fates() != member.fates():
                    for settled in held.values():
                        settled[partition, member.epoch] += 1
        for letter in now.letters.values():
            if letter.reason == "held" and letter.state == "retrying" and letter.attempts and not letter.replaying:
                checker.world.fail(f"hold: {letter.event} has spent {letter.attempts} attempts by being held")
        rows = checker.world.disk.rows(HOLDS, now.number)
        self._held = {(hold := Held(*row)): held.get(hold, Counter()) for row in rows}

    def check_start(self, planned: Planned, now: Seen) -> None:
        """The owner calls no handler for a held key, once it has seen the hold."""
        partition = place(planned.key or planned.id, len(now.members))
        seen = partition, now.members[partition].epoch
        for hold, settled in self._held.items():
            if hold.covers(planned.lane) and settled[seen] >= ROUNDS:
                self._checker.world.fail(f"hold: {planned.id} is called while its key {planned.lane} is held")
