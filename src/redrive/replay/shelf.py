"""Looking at letters: pages, heads of lanes, history, edits, totals. Nothing here writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redrive.errors import UsageError
from redrive.event import Event, from_row
from redrive.policy.letters import OPEN, State, shown_state
from redrive.replay.deed import find
from redrive.store.port import LetterRow, Store, StoreTx
from redrive.store.sql import Row
from redrive.types import EventTypes

PAGE_MAX = 10_000  # letters per page: a page is read into memory


class Attempt(NamedTuple):
    """One entry of a letter's history, which only ever grows."""

    attempt: int
    at: float
    outcome: str
    error_type: str
    error_message: str
    traceback: str
    fingerprint: str
    worker: str


class Revision(NamedTuple):
    """One edit of a letter's data; the log keeps the original."""

    rev: int
    data: bytes
    audit: int


class Deed(NamedTuple):
    """Something an operator did."""

    id: int
    at: float
    who: str
    action: str
    reason: str
    details: str


class Count(NamedTuple):
    """How many letters share these."""

    subscription: str
    state: str
    reason: str
    type: str
    fingerprint: str
    n: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Letters by subscription, state, reason, type and fingerprint."""

    counts: tuple[Count, ...]
    exact: bool = True  # False: only the first that match were counted

    def by(self, field: str) -> dict[str, int]:
        """Totals per value of one field."""
        totals: dict[str, int] = {}
        for count in self.counts:
            value = getattr(count, field)
            totals[value] = totals.get(value, 0) + count.n
        return totals


# Named here because a method called `list` hides the type of that name.
Letters = list[LetterRow]
Heads = list[tuple[LetterRow, int]]
Attempts = list[Attempt]
Revisions = list[Revision]
Deeds = list[Deed]


class LetterShelf:
    """Everything there is to see about letters."""

    def __init__(self, store: Store, types: EventTypes | None = None) -> None:
        self._store = store
        self._types = types or EventTypes()

    def list(self, state: str = "dead", subscription: str | None = None, after: int = 0, limit: int = 50) -> Letters:
        """A page of letters of one state by ascending id; the next page begins after the last id of this one."""
        if state not in set(State):
            raise UsageError(f"{state!r} is no state of a letter; states are {', '.join(State)}")
        _check_page(after, limit)
        with self._store.reading() as tx:
            chosen = None if subscription is None else find(tx, subscription).id
            return tx.letters.page(state, chosen, after, limit)

    def heads(self, subscription: str | None = None, after: int = 0, limit: int = 50) -> Heads:
        """A page of dead letters that hold their lane back, each with how many wait behind it."""
        _check_page(after, limit)
        found: Heads = []
        with self._store.reading() as tx:
            chosen = None if subscription is None else find(tx, subscription).id
            while len(found) < limit:
                page = tx.letters.page("dead", chosen, after, limit)
                for letter in page:
                    if len(found) < limit and is_head(tx, letter):
                        found.append((letter, tx.letters.waiting(letter)))
                if len(page) < limit:
                    break
                after = page[-1].id
        return found

    def get(self, letter: int) -> LetterRow | None:
        """One letter, or None."""
        with self._store.reading() as tx:
            return tx.letters.get(letter)

    def history(self, letter: int) -> Attempts:
        """Every attempt, oldest first, also those that lost to an operator."""
        with self._store.reading() as tx:
            return [Attempt(*row) for row in tx.sql.all("attempts_of", {"letter": letter})]

    def event(self, letter: int) -> Event[Any] | None:
        """The event a letter holds, with its latest edit; None if the log no longer has it."""
        with self._store.reading() as tx:
            row = tx.letters.event(letter)
        return None if row is None else from_row(row, self._types)

    def original(self, letter: LetterRow) -> bytes | None:
        """The event's data as the log has it, whatever was edited; None if the log no longer has it."""
        with self._store.reading() as tx:
            row = tx.sql.one("event_by_position", (letter.position, tx.logs.id_of(letter.source)))
        return None if row is None else bytes(row[-1])

    def edits(self, letter: LetterRow) -> Revisions:
        """Every edit of the letter's data, oldest first."""
        where = {"subscription": letter.subscription_id, "position": letter.position}
        with self._store.reading() as tx:
            return [Revision(*row) for row in tx.sql.all("edits_of", where)]

    def audit(self, letter: LetterRow) -> Deeds:
        """What operators did to the letter, oldest first."""
        where = {"subscription": letter.subscription, "target": f"letter {letter.id}"}
        with self._store.reading() as tx:
            return [Deed(*row) for row in tx.sql.all("audit_of_target", where)]

    def behind(self, letter: LetterRow, limit: int = 50) -> Letters:
        """The open letters that wait behind this one, in order; behind one that is settled nobody waits."""
        if letter.lane is None or letter.state not in OPEN:
            return []
        where = {"subscription": letter.subscription_id, "lane": letter.lane, "above": letter.position, "limit": limit}
        with self._store.reading() as tx:
            return [LetterRow(*row) for row in tx.sql.all("lane_letters", where)]

    def waiting(self, letter: LetterRow) -> int:
        """How many open letters wait behind this one."""
        with self._store.reading() as tx:
            return tx.letters.waiting(letter)

    def behind_whom(self, letters: Sequence[LetterRow]) -> dict[int, int]:
        """By letter, the one that holds it back; only of those that wait behind another."""
        heads: dict[tuple[int, str], int | None] = {}
        found = {}
        with self._store.reading() as tx:
            for letter in letters:
                if letter.lane is None or letter.state not in OPEN:
                    continue
                place = (letter.subscription_id, letter.lane)
                if place not in heads:
                    head = tx.letters.head(*place)
                    heads[place] = None if head is None else head.letter
                blocker = heads[place]
                if blocker not in (None, letter.id):
                    found[letter.id] = blocker
        return found

    def stats(self) -> Stats:
        """Totals of all letters, also settled ones; read from counters, never by counting."""
        with self._store.reading() as tx:
            return Stats(tuple(counted(row) for row in tx.sql.all("letter_counts")))


def counted(row: Row) -> Count:
    """A row of the counters, with the state that is shown."""
    subscription, state, reason, *rest = row
    return Count(subscription, shown_state(state, reason), reason, *rest)


def is_head(tx: StoreTx, letter: LetterRow) -> bool:
    """Does it hold its lane back, rather than wait in it?"""
    if letter.lane is None:
        return True
    head = tx.letters.head(letter.subscription_id, letter.lane)
    return head is not None and head.letter == letter.id


def _check_page(after: int, limit: int) -> None:
    if not 1 <= limit <= PAGE_MAX or after < 0:
        raise UsageError(f"a page has 1 to {PAGE_MAX} letters and begins after a letter's id, 0 for the first")
