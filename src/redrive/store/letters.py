"""The letters facet: events held out of the flow, their history, and the heads of lanes.

Every change names the letter's `rev` and reports whether it found it: the caller must look.
Counts and the journal are kept by the database itself (triggers).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from redrive.policy.action import BEHIND_HEAD
from redrive.policy.lanes import Head
from redrive.policy.letters import OPEN
from redrive.policy.outcome import NO_FAILURE, Failure
from redrive.store.changes import Changes
from redrive.store.port import LetterRow
from redrive.store.sieve import Sieve
from redrive.store.sql import Row, Sql

Retried = tuple[Head, str, dict[str, Any], Failure]  # the letter, its state now, what else changes, and why
Attempted = tuple[int, int, str, Failure]  # the letter, the attempt's number, what came of it, and why


class NewLetter(Struct, frozen=True):
    """An event `(position, id, type, key)` to be held: a follower unless a failure is given."""

    event: Row
    lane: str | None
    state: str
    reason: str = BEHIND_HEAD
    failure: Failure = NO_FAILURE
    attempts: int = 0
    due_at: float = 0.0
    delay: float = 0.0
    resolved_by: str | None = None
    dependency: str | None = None


# How a letter was superseded: progress was taken back below it. One that was open had not emitted anything yet.
WAS_OPEN, WAS_SETTLED = "rewind: open", "rewind"


class Letters:
    """Park, bury and settle letters; find heads."""

    __slots__ = ("_sql", "changes", "sieve")

    def __init__(self, sql: Sql, sieve: Sieve | None = None) -> None:
        self._sql, self.changes = sql, Changes(sql)
        self.sieve = sieve or Sieve(sql)

    def add(self, subscription: int, new: Sequence[NewLetter], now: float) -> list[int]:
        """Hold events; the numbers of their letters."""
        rows = []
        for one in new:
            failure = one.failure
            failed_at = now if failure is not NO_FAILURE else None
            position, event_id, kind, key = one.event
            rows.append((
                subscription, position, one.lane, event_id, kind, key, one.state, one.reason, one.attempts, one.due_at,
                now, one.delay, now, failed_at, failed_at, failure.error_type, failure.message, failure.fingerprint,
                now, one.resolved_by, one.dependency,
            ))  # fmt: skip
        letters = self._sql.add_all("letter_add", rows)
        self.sieve.add(
            (letter, one.failure.error_type, one.failure.message)
            for letter, one in zip(letters, new, strict=True)
            if one.state == "dead"
        )
        return letters

    def retry(self, retries: Sequence[Retried], now: float) -> bool:
        """Attempts failed: schedule the next (`retrying`), bury (`dead`) or drop by rule (`discarded`).

        False: not all were found. Of several, nothing tells which: undo, and take each by itself.
        """
        rows: dict[str, list[dict[str, Any]]] = {}
        self.sieve.add((head.letter, why.error_type, why.message) for head, state, _, why in retries if state == "dead")
        for head, state, change, failure in retries:
            values = {
                "id": head.letter, "rev": head.rev, "state": state, "now": now, "error_type": failure.error_type,
                "error_message": failure.message, "fingerprint": failure.fingerprint, "due_at": 0.0, "delay": 0.0,
                "resolved_by": None, "dependency": None, **change,
            }  # fmt: skip
            rows.setdefault("letter_again" if state == "retrying" else "letter_retry", []).append(values)
        return sum(self._sql.many(name, of_name) for name, of_name in rows.items()) == len(retries)

    def settle(self, head: Head, state: str, attempts: int, now: float, resolved_by: str) -> bool:
        """The attempt ended the letter: `applied`, or `discarded` by an Ignore verdict."""
        values = {
            "id": head.letter, "rev": head.rev, "state": state, "attempts": attempts, "now": now,
            "resolved_by": resolved_by,
        }  # fmt: skip
        return self._sql.run("letter_settle", values) == 1

    def log_attempts(self, attempts: Iterable[Attempted], now: float, worker: str) -> None:
        """Append to the letters' histories."""
        rows = [
            (letter, number, now, outcome, why.error_type, why.message, why.traceback, why.fingerprint, worker)
            for letter, number, outcome, why in attempts
        ]
        self._sql.insert("attempt_add", rows)

    # ------------------------------------------------------------ lanes

    def heads(
        self, subscription: int, is_mine: Callable[[str], bool] = lambda route: True
    ) -> list[tuple[str | None, Head, int]]:
        """(lane, head, open letters) of every lane the owner must know: those of its partition."""
        rows = self._sql.all("lane_heads", (subscription,)) + self._sql.all("loose_letters", (subscription,))
        return [(row[0], Head(*row[1:11]), row[11]) for row in rows if is_mine(row[12])]

    def head(self, subscription: int, lane: str) -> Head | None:
        """The open letter with the lowest position of a lane."""
        row = self._sql.one("lane_head", (subscription, lane))
        return None if row is None else Head(*row[1:11])

    def event(self, letter: int) -> Row | None:
        """The event a letter refers to, with the latest edit in place of its data."""
        return self._sql.one("letter_event", (letter,))

    def events(self, letters: Sequence[int]) -> dict[int, Row]:
        """The same for many letters; one without an event is left out."""
        rows = self._sql.all("letter_events", (json.dumps(letters),))
        return {row[0]: row[1:] for row in rows}

    # ------------------------------------------------------------ looking

    def get(self, letter: int) -> LetterRow | None:
        """One letter."""
        row = self._sql.one("letter_get", {"id": letter})
        return None if row is None else LetterRow(*row)

    def page(self, state: str, subscription: int | None, after: int, limit: int) -> list[LetterRow]:
        """Letters of one state by ascending id, above `after`."""
        values = {"state": state, "subscription": subscription, "after": after, "limit": limit}
        name = "letters_page" if subscription is None else "letters_page_of"
        if subscription is None:
            del values["subscription"]
        return [LetterRow(*row) for row in self._sql.all(name, values)]

    def waiting(self, letter: LetterRow) -> int:
        """How many open letters wait behind this one; behind one that is settled nobody waits."""
        if letter.lane is None or letter.state not in OPEN:
            return 0
        where = {"subscription": letter.subscription_id, "lane": letter.lane, "position": letter.position}
        return int(self._sql.value("letters_waiting", where))

    def counts(self, subscription: int) -> dict[str, int]:
        """Letters per shown state, from the counters: open ones are `retrying`, `waiting` or `dead`."""
        return dict(self._sql.all("letter_counts_of", {"subscription": subscription}))
