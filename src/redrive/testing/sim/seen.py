"""What the database says about the simulated subscription, and what the producer knows about its events."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from redrive.policy.partitions import place
from redrive.testing.sim.disk import Disk

OPEN = ("retrying", "dead")
NAME = "work"
PROGRESS = """SELECT member, subscription, position, epoch, owner, lease_until, applied, ignored, started_from
FROM redrive_progress JOIN redrive_subscriptions s ON s.id = subscription WHERE s.name = ? ORDER BY member"""
MARKS = """SELECT member, position FROM redrive_done
WHERE subscription = ?1 AND position > (SELECT min(position) FROM redrive_progress WHERE subscription = ?1)"""
LETTERS = """SELECT event_id, state, reason, attempts, rev, edits, replaying FROM redrive_letters
WHERE subscription = ? AND state <> 'superseded'"""
EFFECTS = "SELECT seq, event, key, edits FROM effects ORDER BY seq"
STATES = "SELECT key, data FROM redrive_state"
SKIPPED = "SELECT from_position, to_position FROM redrive_ranges"
ECHOES = "SELECT key, data FROM redrive_events WHERE type = 'echo' ORDER BY position"
WAITING = "SELECT key, data FROM redrive_scheduled ORDER BY due_at, seq"


@dataclass(slots=True)
class Planned:
    """One event of the producer's list."""

    index: int
    id: str
    key: str | None
    type: str
    fate: str
    times: int
    position: int | None = None  # known once the append is acknowledged

    @property
    def lane(self) -> str | None:
        """In whose order it stands: without a usable key it is in a lane of its own."""
        return None if self.fate == "badkey" else self.key


class Letter(NamedTuple):
    """A letter that is not superseded."""

    event: str
    state: str
    reason: str
    attempts: int
    rev: int
    edits: int
    replaying: int


class Member(NamedTuple):
    """What it says about one partition."""

    position: int
    epoch: int
    owner: str | None
    until: float
    applied: int
    ignored: int
    done: frozenset[int]

    def fates(self) -> tuple[Any, ...]:
        """What only the owner, or an operator, may change."""
        return self.position, self.applied, self.ignored


class Seen(NamedTuple):
    """What the database says about the subscription."""

    number: int
    members: tuple[Member, ...]
    position: int
    epoch: int
    applied: int
    ignored: int
    start: int  # the counters begin above this position
    effects: tuple[tuple[str, str | None, int], ...]
    done: frozenset[int]
    letters: dict[str, Letter]
    states: tuple[tuple[str, bytes], ...]
    echoes: tuple[tuple[str | None, bytes], ...]
    waiting: tuple[tuple[str | None, bytes], ...]  # echoes that are scheduled
    skipped: tuple[tuple[int, int], ...]  # ranges that an operator gave up: above, up to

    def fates(self) -> tuple[Any, ...]:
        """What only an owner, or an operator, may change."""
        return self.effects, self.letters, self.states

    @property
    def owners(self) -> set[str | None]:
        """Who owns a part of it."""
        return {member.owner for member in self.members}

    def member_of(self, planned: Planned) -> Member:
        """The partition that an event belongs to."""
        return self.members[place(planned.key or planned.id, len(self.members))]

    def state_of(self, planned: Planned) -> str:
        """The state of the event's letter; empty if it has none."""
        letter = self.letters.get(planned.id)
        return "" if letter is None else letter.state

    def has_passed(self, planned: Planned) -> bool:
        """Is it settled, according to progress?"""
        return planned.position is not None and (planned.position <= self.position or planned.position in self.done)

    def skips(self, planned: Planned) -> bool:
        """Did an operator give up the range it lies in?"""
        position = planned.position
        return position is not None and any(above < position <= upto for above, upto in self.skipped)

    def has_given_up(self, planned: Planned) -> bool:
        """Does nobody wait for it any more? A planned Ignore leaves no trace when it is settled at intake."""
        state = self.state_of(planned)
        if state:
            return state == "discarded"
        return self.has_passed(planned) and (planned.fate == "ignore" or self.skips(planned))


NOTHING = Seen(0, (), 0, 0, 0, 0, 0, (), frozenset(), {}, (), (), (), ())


PROGRESS_TABLES = {"redrive_progress", "redrive_subscriptions", "redrive_done_chunks"}
TABLES = PROGRESS_TABLES | {
    "redrive_letters", "effects", "redrive_state", "redrive_events", "redrive_scheduled", "redrive_ranges",
}  # fmt: skip


@cache
def written(statement: str) -> frozenset[str]:
    """Which of the tables that are looked at it may write to: if it writes at all, those that it names.

    Triggers write to others. What they do is not looked at; a test sees to that.
    """
    words = re.findall(r"\w+", statement.lower())
    return frozenset() if words[:1] == ["select"] else frozenset(TABLES.intersection(words))


class Sight:
    """Looks at the database after every commit, of which most write to a table or two: the others are not read again.

    What has not changed is the same object as before.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._forgotten: set[int] = set()  # effects that an operator's seek has taken back
        self._seen = NOTHING

    def forget(self, effects: Iterable[int]) -> None:
        """These are left out from now on."""
        self._forgotten.update(effects)
        self._seen = NOTHING

    def start_over(self) -> None:
        """The database is another."""
        self._seen = NOTHING

    def look(self) -> Seen:
        """Everything there is to see."""
        stale = frozenset[str]().union(*map(written, self._disk.asked()))
        if self._seen is NOTHING:
            stale = frozenset(TABLES)
        if stale:
            self._seen = self._look_again(self._seen, stale)
        return self._seen

    def _look_again(self, seen: Seen, stale: frozenset[str]) -> Seen:
        rows = self._disk.rows
        if not stale.isdisjoint(PROGRESS_TABLES):
            progress = rows(PROGRESS, NAME)
            if not progress:
                return NOTHING
            seen = _progressed(seen, progress, rows(MARKS, progress[0][1]))

        def found(table: str, former: Any, make: Callable[[list[Any]], Any], query: str, *parameters: Any) -> Any:
            if table not in stale:
                return former
            now = make(rows(query, *parameters))
            return former if now == former else now

        return seen._replace(
            effects=found("effects", seen.effects, self._effects, EFFECTS),
            letters=found("redrive_letters", seen.letters, _letters, LETTERS, seen.number),
            states=found("redrive_state", seen.states, tuple, STATES),
            echoes=found("redrive_events", seen.echoes, tuple, ECHOES),
            waiting=found("redrive_scheduled", seen.waiting, tuple, WAITING),
            skipped=found("redrive_ranges", seen.skipped, tuple, SKIPPED),
        )

    def _effects(self, rows: list[Any]) -> tuple[Any, ...]:
        return tuple((event, key, edits) for seq, event, key, edits in rows if seq not in self._forgotten)


def _progressed(seen: Seen, progress: list[Any], marks: list[Any]) -> Seen:
    members = tuple(
        Member._make((*row[2:8], frozenset([position for member, position in marks if member == row[0]])))
        for row in progress
    )
    return seen._replace(
        number=progress[0][1],
        members=members,
        position=min([member.position for member in members]),
        epoch=max([member.epoch for member in members]),
        applied=sum([member.applied for member in members]),
        ignored=sum([member.ignored for member in members]),
        start=progress[0][-1],
        done=frozenset([position for _, position in marks]),
    )


def _letters(rows: list[Any]) -> dict[str, Letter]:
    return {row[0]: Letter(*row) for row in rows}
