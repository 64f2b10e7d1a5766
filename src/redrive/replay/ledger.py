"""The ledger: does every event that a subscription asked for have exactly one fate?

Recomputed from the log, the filters, the progress, the letters and their journal, in one snapshot. It only
reads, and it trusts nothing: what the engine keeps as counters is counted again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from redrive.policy.letters import TRANSITIONS, State
from redrive.replay.deed import Told, untold
from redrive.replay.rewind import Range, ranges
from redrive.store.filters import EVERYWHERE, Asked
from redrive.store.port import ProgressRow, Store, StoreTx, Subscribed
from redrive.store.pruned import pruned_of
from redrive.store.sql import Params

POSITIONS_MAX = 100  # named per violation; their number is always exact
PAGE = 10_000  # letters read at a time
CHECKS = 5  # of a subscription, each about as long as the others

_STEPS = {(before.value, after.value) for (before, _), after in TRANSITIONS.items()}
_EDITS = {(State.RETRYING.value, State.RETRYING.value), (State.DEAD.value, State.DEAD.value)}
_BIRTHS = {(None, State.RETRYING.value), (None, State.DEAD.value), (None, State.DISCARDED.value)}


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be, with the positions it concerns where they can be told."""

    rule: str
    message: str
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The account of one subscription: where every event it asked for is."""

    subscription: str
    position: int = 0
    pending: int = 0
    applied: int = 0
    retrying: int = 0
    waiting: int = 0  # letters behind another of their lane
    dead: int = 0
    discarded: int = 0
    ignored: int = 0
    violations: tuple[Violation, ...] = ()

    @property
    def sound(self) -> bool:
        """Is everything accounted for, once?"""
        return not self.violations


def verify(store: Store, plain: Collection[str] = (), told: Told = untold) -> list[Verdict]:
    """The account of every subscription in the store.

    `plain` names subscriptions whose lanes are the events' own keys (no `key_by`), as the program knows; for them
    overtaking is also found where no letter tells of it. `told` is called with how many checks are done, of how many.
    """
    with store.reading() as tx:
        rows = tx.progress.all()
        total, verdicts = CHECKS * len(rows), []
        for number, row in enumerate(rows):

            def checked(done: int, before: int = number * CHECKS) -> None:
                told(before + done, total)

            verdicts.append(_account(tx, row, row.name in plain, checked))
        for (orphan,) in tx.sql.all("ledger_orphans"):
            message = "rows of a subscription that is not registered: its name is lost"
            verdicts.append(Verdict(f"#{orphan}", violations=(Violation("orphan", message),)))
        for (operation,) in tx.sql.all("ledger_receipts"):
            message = "its receipt is not what came of its letters"
            verdicts.append(Verdict(f"operation {operation}", violations=(Violation("receipt", message),)))
        for (id,) in tx.sql.all("ledger_scheduled"):
            message = "it waits for a log that there is not: nobody will append it"
            verdicts.append(Verdict(f"scheduled {id}", violations=(Violation("scheduled", message),)))
    return verdicts


def _account(tx: StoreTx, row: Subscribed, plain: bool, checked: Callable[[int], None]) -> Verdict:
    if not tx.progress.members(row.id):
        return Verdict(row.name, violations=(Violation("no_progress", "its progress row is missing"),))
    filters = tx.progress.filters(row.id)
    if not filters:
        return Verdict(row.name, violations=(Violation("no_filter", "nobody knows which events it asked for"),))
    return Account(tx, row, tx.progress.get(row.id), Asked(filters)).verdict(plain, checked)


class Account:
    """One subscription's books, open on the desk."""

    def __init__(self, tx: StoreTx, row: Subscribed, progress: ProgressRow, asked: Asked) -> None:
        self.tx, self.row, self.progress, self.asked = tx, row, progress, asked
        self.log = tx.logs.id_of(row.source)
        self.last = tx.logs.last(self.log) if self.log else 0
        self.pruned = pruned_of(tx, row.id, progress.started_from)
        self.ranges = [one for one in ranges(tx, row.id) if one.above >= progress.started_from]
        above = {"subscription": row.id, "log": self.log, "above": progress.position}
        self.done: dict[int, str] = dict(tx.sql.all("ledger_done_events", above))
        self.fates: dict[str, int] = {}  # letters above the start by state
        self.unasked: list[tuple[str, tuple[int, ...]]] = []  # letters that the filter cannot explain

    def verdict(self, plain: bool, checked: Callable[[int], None]) -> Verdict:
        """Count, compare, and say where everything is; `checked` is called with the number of checks that are done."""
        self._sort_letters()
        checked(1)
        asked_done = sum(1 for position, kind in self.done.items() if self.asked.wants(position, kind))
        pending = self.asked.count(self.tx, self.log, self.progress.position, self.last) - asked_done
        if self.row.kind == "intake":
            pending = 0  # what is above the last that it landed was appended by somebody else
        opened = self.tx.letters.counts(self.row.id)
        violations: list[Violation] = []
        checks = (self._balance(asked_done), self._positions(), self._letters(), self._order(plain))
        for number, check in enumerate(checks, 2):
            violations += check
            checked(number)
        return Verdict(
            self.row.name, self.progress.position, pending, self.progress.applied + self.fates.get("applied", 0),
            opened.get("retrying", 0), opened.get("waiting", 0), opened.get("dead", 0),
            self.fates.get("discarded", 0) + self._skipped(), self.progress.ignored,
            tuple(violations),
        )  # fmt: skip

    def _sort_letters(self) -> None:
        for low, high, _ in self.asked.spans(self.progress.started_from, EVERYWHERE):
            span = {"subscription": self.row.id, "above": low, "upto": high}
            for state, kind, count in self.tx.sql.all("ledger_letters", span):
                if self.asked.wants(high, kind):
                    self.fates[state] = self.fates.get(state, 0) + count
                else:
                    where = {**span, "state": state, "type": kind}
                    self.unasked.append((state, self._find("ledger_letters_of_type", where)))

    # ------------------------------------------------------------ the equation

    def _balance(self, asked_done: int) -> Iterator[Violation]:
        """Settled events and fates are equally many: each has one, none has two."""
        progress = self.progress
        settled = self.asked.count(self.tx, self.log, progress.started_from, progress.position) + asked_done
        settled += self.pruned.settled
        skipped = self._skipped()
        fates = progress.applied + progress.ignored + sum(self.fates.values()) + skipped
        if self.row.kind == "intake":  # who lands messages is not alone: others may append to the log by hand
            settled = min(settled, fates)
        if settled != fates:
            difference = f"{settled - fates} have none" if settled > fates else f"{fates - settled} have two"
            yield Violation(
                "balance",
                f"{settled} events it asked for are settled, {fates} fates are in the books: {difference} "
                f"(applied {progress.applied}, ignored {progress.ignored}, letters {sum(self.fates.values())}, "
                f"skipped {skipped})",
            )
        if progress.applied < 0 or progress.ignored < 0:
            yield Violation("counters", f"applied {progress.applied}, ignored {progress.ignored}: less than nothing")

    def _skipped(self) -> int:
        """Given up in ranges; and of what was pruned, all that was discarded."""
        return sum(one.discarded for one in self.ranges) + self.pruned.discarded

    def _positions(self) -> Iterator[Violation]:
        progress, tx = self.progress, self.tx
        if progress.position > self.last:
            yield Violation("beyond_log", f"progress {progress.position} is beyond the log, which ends at {self.last}")
        if progress.started_from > progress.position:
            yield Violation("before_start", f"progress {progress.position} is below its start {progress.started_from}")
        found = tx.logs.anchor(self.log, progress.position) if progress.position else None
        if progress.anchor is not None and found != progress.anchor:
            message = f"progress refers to event {progress.anchor}, the log has {found or 'nothing'} there"
            yield Violation("anchor", message, (progress.position,))
        yield from self._none("stale_done", "ledger_stale_done", "done rows at or below the progress")
        yield from self._none("empty_done", "ledger_empty_done", "done rows without an event")
        unasked = [position for position, kind in self.done.items() if not self.asked.wants(position, kind)]
        explained = {position for state, where in self.unasked if state == "discarded" for position in where}
        yield from _all("unasked_done", "done rows of events that its filter does not ask for",
                        [position for position in unasked if position not in explained])  # fmt: skip
        yield from self._none("log_holes", "ledger_log_holes", "the log has lost an event of the key before these")
        yield from _all("strays", "events that a listing by type or time would miss", tx.logs.spans.strays(self.log))
        yield from self._ranges()

    def _ranges(self) -> Iterator[Violation]:
        before = Range(0, 0, 0)
        for one in self.ranges:
            counted = self.asked.count(self.tx, self.log, one.above, one.upto)
            if one.above < before.upto:
                yield Violation("ranges", f"skipped ranges overlap above {one.above}", (one.above + 1,))
            if counted != one.discarded:
                yield Violation("ranges", f"a skipped range says {one.discarded} events, it holds {counted}",
                                (one.above + 1, one.upto))  # fmt: skip
            where = {"subscription": self.row.id, "above": one.above, "upto": one.upto}
            yield from _all("two_fates", "letters inside a skipped range", self._find("ledger_letters_in", where))
            before = one

    # ------------------------------------------------------------ letters

    def _letters(self) -> Iterator[Violation]:
        for rule, query, message in (
            ("unsettled_letters", "ledger_unsettled_letters", "letters at positions that are not settled"),
            ("doubled_letters", "ledger_doubled_letters", "more than one letter for one event"),
            ("lost_events", "ledger_lost_events", "letters whose event is not in the log"),
            ("missing_letters", "ledger_missing_letters", "letters that the journal knows are gone"),
            ("journal", "ledger_journal_gaps", "letters whose state is not what the journal says"),
            ("unexplained", "ledger_unexplained", "dead letters without a single attempt in their history"),
            ("unsigned", "ledger_unsigned_discards", "discards that say neither who nor which rule"),
            ("lost_edits", "ledger_lost_edits", "letters whose edited data is not there"),
            ("unaudited", "ledger_unaudited", "edits or skipped ranges without an audit row"),
            ("misfiled", "ledger_misfiled", "letters in a lane that its order does not have"),
            ("lanes", "ledger_lanes", "lanes that hold another number of letters, or another head, than is kept"),
        ):
            yield from self._none(rule, query, message)
        for state, positions in self.unasked:
            if state != "discarded":  # a discard stays, also when a rebuild's filter no longer asks for the type
                yield from _all("unasked_letters", "letters of events that its filter does not ask for", positions)
        for (fingerprint,) in self.tx.sql.all("ledger_causes", {"subscription": self.row.id}):
            message = f"cause {fingerprint}: not as many lanes are held back, or events waiting, as is kept"
            yield Violation("causes", message)
        yield from _all("sieve", "dead letters that a search for their error would miss", self._unsaid())
        yield from self._steps()
        mine = {"subscription": self.row.id}
        counted = {tuple(row[:4]): row[4] for row in self.tx.sql.all("ledger_counts", mine)}
        kept = {tuple(row[:4]): row[4] for row in self.tx.sql.all("ledger_kept_counts", mine)}
        for group in sorted(counted.keys() | kept.keys()):
            if counted.get(group, 0) != kept.get(group, 0):
                state, reason, kind, _ = group
                numbers = f"the counters say {kept.get(group, 0)}, the store has {counted.get(group, 0)}"
                yield Violation("counters", f"letters {state}, {reason}, of type {kind}: {numbers}")

    def _unsaid(self) -> list[int]:
        found, after = [], 0
        while page := self.tx.sql.all("ledger_said", {"subscription": self.row.id, "after": after, "limit": PAGE}):
            found += [position for letter, position, *said in page if not self.tx.letters.sieve.has(letter, *said)]
            after = page[-1][0]
        return sorted(found)

    def _steps(self) -> Iterator[Violation]:
        """The journal tells no story that the table of a letter's life does not know."""
        mine = {"subscription": self.row.id}
        for before, state, _ in self.tx.sql.all("ledger_steps", mine):
            if (before, state) not in _STEPS | _BIRTHS | _EDITS:
                where = self._find("ledger_step_positions", {**mine, "before": before, "state": state})
                yield from _all("steps", f"letters that went from {before or 'nothing'} to {state}", where)

    # ------------------------------------------------------------ order

    def _order(self, plain: bool) -> Iterator[Violation]:
        """Nothing of a lane is applied above its head."""
        yield from self._none("overtaken", "ledger_overtaken", "applied although an earlier event of the lane is open")
        total = self.row.ordering == "total"
        if not total and not (plain and self.row.ordering == "key"):
            return
        where = {"subscription": self.row.id, "log": self.log, "progress": self.progress.position}
        found = self.tx.sql.all("ledger_passed_total" if total else "ledger_overtaken_at_intake", where)
        passed = [
            position
            for position, kind in found
            if position > self.progress.started_from
            and self.asked.wants(position, kind)
            and not any(one.above < position <= one.upto for one in self.ranges)
        ]
        yield from _all("overtaken", "settled although an earlier event of the lane is open", passed)

    def _find(self, query: str, values: Params) -> tuple[int, ...]:
        return tuple(position for (position,) in self.tx.sql.all(query, values))

    def _none(self, rule: str, query: str, message: str) -> Iterator[Violation]:
        yield from _all(rule, message, self._find(query, {"subscription": self.row.id, "log": self.log}))


def _all(rule: str, message: str, positions: Collection[int]) -> Iterator[Violation]:
    if positions:
        yield Violation(rule, f"{len(positions)} {message}", tuple(positions)[:POSITIONS_MAX])
