"""Bulk operations: one deed for many letters, with a receipt that outlives the command.

The selection is frozen first, in one transaction. Then the letters are asked for a chunk at a time, each chunk's
results in the transaction that made them; a command that dies in between is resumed where it was. What came
of a replay is written by the store itself, in the transaction that settles the letter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from redrive.errors import StoreError, UsageError
from redrive.policy.lanes import ONCE, PACED
from redrive.replay.deed import Operator, Receipt, Refusal, Ticket
from redrive.replay.letters import CHUNK_TIME_MAX, LetterDesk
from redrive.store.port import LetterRow, StoreTx

CHUNK_MAX = 200  # letters asked for at a time
LOOKED_AT_MAX = 400  # letters of one look whether an operation is over: 4 ms
FROZEN_MAX = 5_000  # letters of a selection written in one transaction: 20 ms
AUTOMATIC = "auto-replay"  # who replays without being asked: its letters are asked for one after the other
CANCELLED = "the operation was cancelled"
BAD = ("failed", "skipped")  # results that have an index of their own

Deed = Callable[[Sequence[LetterRow], Ticket], Receipt]


@dataclass(frozen=True, slots=True)
class Operation:
    """One bulk operation and its receipt: selected = applied + failed + skipped + waiting + unasked."""

    id: int
    action: str
    who: str
    reason: str
    at: float
    selected: int
    rate: float | None
    ended_at: float | None
    cancelled: bool
    applied: int
    failed: int
    skipped: int
    waiting: int  # asked for, and not run yet
    unasked: int  # the command ended before it came to them

    @property
    def state(self) -> str:
        """In one word."""
        if self.cancelled:
            return "cancelled"
        if self.unasked and self.who != AUTOMATIC:
            return "interrupted"
        return "running" if self.waiting or self.unasked else "done"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one letter."""

    letter: int
    result: str | None
    why: str


class Part(Ticket):
    """The letters of one operation, each in its turn."""

    def __init__(self, operation: int, rate: float | None = None, waiting: int = 0) -> None:
        """`waiting`: letters that were asked for and have not run; the turns of others come behind theirs."""
        self.operation = operation
        self._rate, self._turn = rate, waiting
        self._since: float | None = None  # when the first of them was asked for: turns count from there
        self.pace = ONCE if rate is None else PACED

    def left(self, tx: StoreTx, letters: Collection[int]) -> Collection[int]:
        tx.sql.run("operation_lock", {"id": self.operation})  # who cancels it, or asks as well, comes before or after
        where = {"id": self.operation, "first": min(letters), "last": max(letters)}
        return {letter for (letter,) in tx.sql.all("operation_unasked_among", where)}.intersection(letters)

    def due_at(self, now: float) -> float:
        if self._rate is None:
            return now
        if self._since is None:
            self._since = now
        self._turn += 1
        return max(now, self._since + (self._turn - 1) / self._rate)

    def record(self, tx: StoreTx, action: str, done: Sequence[int], refused: Sequence[Refusal]) -> None:
        result = None if action == "replay" else "applied"
        rows = [(result, "", self.operation, letter) for letter in done]
        rows += [("skipped", one.why, self.operation, one.letter) for one in refused]
        tx.sql.many("operation_asked", rows)


class Unfinished:
    """Does anything that an operation asked for still run, or what waited behind it?

    A look reads a limited number of letters, behind those that are known to be done: nothing of the operation runs
    there any more.
    """

    def __init__(
        self, operator: Operator, number: int, subscriptions: Collection[int], besides: Collection[int]
    ) -> None:
        self._operator, self._number, self._subscriptions = operator, number, subscriptions
        self._besides = besides
        self._done = 0  # letters up to this one are finished, and nothing that waited behind them is due

    def look(self) -> bool:
        """True while something runs, or while there is more to look at."""
        values = {"id": self._number, "after": self._done, "now": self._operator.now(), "limit": LOOKED_AT_MAX}
        with self._operator.store.reading() as tx:
            rows = tx.sql.all("operation_unfinished", values)
        for letter, subscription, is_open in rows:
            if is_open and subscription in self._subscriptions and letter not in self._besides:
                return True
            self._done = letter
        return len(rows) == LOOKED_AT_MAX


class BulkDesk:
    """Begin, resume, cancel and look at bulk operations."""

    def __init__(self, operator: Operator, letters: LetterDesk) -> None:
        self._operator, self._letters, self._store = operator, letters, operator.store

    def begin(self, action: str, letters: Sequence[LetterRow], reason: str, rate: float | None = None) -> int:
        """Freeze a selection; returns the operation's number. Nothing has happened to the letters yet.

        A large selection is written in several transactions; the operation has as many letters as were written.
        """
        now = self._operator.now()
        values = {"action": action, "who": self._operator.who, "reason": reason, "now": now, "rate": rate}
        number = 0
        for start in range(0, max(1, len(letters)), FROZEN_MAX):
            chunk = letters[start : start + FROZEN_MAX]
            with self._operator.transaction() as tx:
                if not number:
                    number = tx.sql.add("operation_add", {**values, "selected": len(chunk)})
                else:
                    tx.sql.run("operation_grow", {"id": number, "more": len(chunk)})
                tx.sql.many("operation_letter_add", [(number, letter.id, letter.rev) for letter in chunk])
            self._operator.give_way()
        return number

    def ask(self, number: int, deed: Deed) -> None:
        """Do the deed to what was not asked for yet, a chunk at a time; a step that others prevented is done again."""
        operation, tries = self.get(number), self._operator.tries()
        part = Part(number, operation.rate, operation.waiting)
        ask = partial(self._ask_some, number, operation.action, deed, part)
        after: int | None = None
        is_over = False
        while not is_over:
            try:
                after = ask(after)
                is_over = after is None
                tries.went_well()
            except StoreError as error:
                if not tries.may_go_on(error):
                    raise
                after = None  # what was asked for is looked up again
            self._operator.give_way()
        with self._operator.transaction() as tx:
            tx.sql.run("operation_end", {"id": number, "now": self._operator.now(), "cancelled": 0})

    def _ask_some(self, number: int, action: str, deed: Deed, part: Part, after: int | None) -> int | None:
        """The next chunk: how far it went; None if there was nothing left."""
        rows = self._unasked(number, action, after)
        if not rows:
            return None
        letters = [letter for letter in rows.values() if letter is not None]
        refused = deed(letters, part).refused if letters else ()
        gone = [Refusal(id, "it is gone") for id, letter in rows.items() if letter is None]
        if refused or gone:
            with self._operator.transaction() as tx:  # what could not even be looked at is answered here
                tx.sql.many("operation_refused", [(one.why, number, one.letter) for one in [*refused, *gone]])
        return list(rows)[-1]

    def cancel(self, number: int) -> Operation:
        """Take back what has not run; what has run stays."""
        self.get(number)
        now = self._operator.now()
        with self._operator.transaction() as tx:
            tx.sql.run("operation_cancel", {"id": number, "now": now})  # first: whoever asks is done, or sees it
        while self._skip_unasked(number):
            self._operator.give_way()
        while rows := self._waiting(number):
            for subscription in sorted({subscription for _, subscription, _ in rows}):
                self._take_back(number, [row for row in rows if row[1] == subscription], now)
                self._operator.give_way()
        return self.get(number)

    def _skip_unasked(self, number: int) -> bool:
        """Some of what was not asked for; False if nothing is left."""
        with self._operator.transaction() as tx:
            values = {"id": number, "why": CANCELLED, "limit": FROZEN_MAX}
            return tx.sql.run("operation_skip_unasked", values) > 0

    def _take_back(self, number: int, rows: Sequence[tuple[int, int, str | None]], now: float) -> None:
        """Letters of one subscription that wait are dead again, as many as there is time for."""
        monotonic = self._operator.env.clock.monotonic
        with self._operator.acting(rows[0][1]) as tx:
            until, taken = monotonic() + CHUNK_TIME_MAX, list[tuple[int, str | None]]()
            for letter, _, lane in rows:
                if taken and monotonic() >= until:
                    break
                tx.sql.run("operation_asked", ("skipped", CANCELLED, number, letter))
                tx.sql.run("letter_unreplay", {"id": letter, "operation": number, "now": now})
                taken.append((letter, lane))
            tx.letters.changes.add(rows[0][1], taken)

    def get(self, number: int) -> Operation:
        """One operation with its receipt so far."""
        with self._store.reading() as tx:
            return operation_of(tx, number)

    def unfinished(self, number: int, of: Collection[str] | None = None, besides: Collection[int] = ()) -> Unfinished:
        """Something to ask again and again whether letters of an operation, in these subscriptions, still run.

        Letters in `besides` are left out, such as those whose key is held.
        """
        with self._store.reading() as tx:
            wanted = {row.id for row in tx.progress.all() if of is None or row.name in of}
        return Unfinished(self._operator, number, wanted, besides)

    def waiting(self, limit: int = 5) -> list[Operation]:
        """Operations with letters that have not run yet, the newest first."""
        with self._store.reading() as tx:
            return [_operation(row) for row in tx.sql.all("operations_waiting", {"limit": limit})]

    def recent(self, before: int = 2**62, limit: int = 50) -> list[Operation]:
        """Operations, the newest first."""
        with self._store.reading() as tx:
            rows = tx.sql.all("operation_page", {"before": before, "limit": limit})
            return [_operation(row) for row in rows]

    def results(self, number: int, result: str | None = None, after: int = 0, limit: int = 1000) -> list[Result]:
        """What came of each letter, a page at a time."""
        values = {"id": number, "result": result, "after": after, "limit": limit}
        query = "operation_bad" if result in BAD else "operation_results"
        with self._store.reading() as tx:
            return [Result(*row) for row in tx.sql.all(query, values)]

    def open_letters(self, number: int) -> list[LetterRow]:
        """Letters of an operation that wait for their turn, at most 200 of them."""
        with self._store.reading() as tx:
            found = [
                tx.letters.get(row[0]) for row in tx.sql.all("operation_waiting", {"id": number, "limit": CHUNK_MAX})
            ]
        return [letter for letter in found if letter is not None]

    def _unasked(self, number: int, action: str, after: int | None) -> dict[int, LetterRow | None]:
        """The next letters, each at the revision that was selected; of a lane that is closed the last one first."""
        is_last_first = action in ("discard", "resolve")
        query = "operation_unasked_last" if is_last_first else "operation_unasked"
        start = (2**62 if is_last_first else 0) if after is None else after
        with self._store.reading() as tx:
            rows = tx.sql.all(query, {"id": number, "after": start, "limit": CHUNK_MAX})
            found = {letter: (tx.letters.get(letter), rev) for letter, rev in rows}
        return {number: letter and letter._replace(rev=rev) for number, (letter, rev) in found.items()}

    def _waiting(self, number: int) -> list[tuple[int, int, str | None]]:
        with self._store.reading() as tx:
            rows = tx.sql.all("operation_waiting", {"id": number, "limit": CHUNK_MAX})
        return [(row[0], row[1], row[2]) for row in rows]


def operation_of(tx: StoreTx, number: int) -> Operation:
    """One operation with its receipt so far."""
    row = tx.sql.one("operation_get", {"id": number})
    if row is None:
        raise UsageError(f"there is no operation {number}; `redrive ops` lists those there are")
    return _operation(row)


def _operation(row: Sequence[Any]) -> Operation:
    number, action, who, reason, at, selected, rate, ended_at, cancelled, *receipt = row
    return Operation(number, action, who, reason, at, selected, rate, ended_at, bool(cancelled), *receipt)
