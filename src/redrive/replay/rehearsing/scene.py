"""A scene: the letters of one subscription, played on the stage of a rehearsal.

The same calls as the runner makes, with the same arguments, so that a failure has the same fingerprint; but
nothing is settled. The write lock is held for `batch_time_max`, and never in the middle of a lane unless that lane
alone takes longer; then for `HOLD_MAX` at most.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from redrive.clock import Env
from redrive.context import Emission, Emitter
from redrive.errors import StoreError, UsageError
from redrive.event import WITHDRAWN, Event, from_row
from redrive.policy import outcome as out
from redrive.policy.outcome import Failure, Outcome
from redrive.replay.rehearsal import Rehearsed, Result
from redrive.replay.rehearsing.cast import Lane, Run, cannot
from redrive.runner.call import attempt, describe, find_key, outcome_of
from redrive.runner.enroll import check_declared, check_tables
from redrive.settings import Settings
from redrive.store.heard import Heard, heard_of
from redrive.store.identity import identity
from redrive.store.port import Counts, LetterRow, Stage, Store, StoreTx, Subscribed
from redrive.store.rehearsing import OffScript
from redrive.subscription import Subscription
from redrive.types import EventTypes

Emitted = Counter[tuple[str, str]]  # events by log and type

HOLD_MAX = 1.0  # seconds; a lane that takes longer is cut off, because live workers need the write lock, too
TOO_LONG = (
    f"what is ahead of it in its lane took longer than {HOLD_MAX:g} s; a rehearsal holds the write lock no longer"
)


@dataclass(frozen=True, slots=True)
class House:
    """What all scenes of one rehearsal share."""

    store: Store
    stage: Stage
    env: Env
    settings: Settings
    types: EventTypes
    deps: Any
    stopping: threading.Event = field(default_factory=threading.Event)


class PlayAgain(Exception):
    """A letter spoils the slice for the others: it ended the transaction, or met a state that nobody left."""

    def __init__(self, letter: LetterRow, error: BaseException | None) -> None:
        super().__init__(letter.id)
        self.letter, self.error = letter, error


class Report:
    """What is known so far."""

    def __init__(self) -> None:
        self.letters: list[Rehearsed] = []
        self.tables: dict[str, Counts] = {}
        self.emitted = Emitted()

    def add(self, letters: Iterable[Rehearsed], tables: dict[str, Counts], emitted: Emitted) -> None:
        """One slice more."""
        self.letters += letters
        for name, counts in tables.items():
            before = self.tables.get(name, Counts(0, 0, 0))
            self.tables[name] = Counts(*(one + more for one, more in zip(before, counts, strict=True)))
        self.emitted += emitted


class Scene:
    """What is the same for projections and handlers."""

    def __init__(
        self, house: House, subscription: Subscription, row: Subscribed, lanes: Iterable[Lane], report: Report
    ) -> None:
        self.house, self.subscription, self.row = house, subscription, row
        self.lanes, self.report = deque(lanes), report
        self.known: dict[int, Failure] = {}  # letters that need not be tried again, when a slice is played again
        with house.store.reading() as tx:
            progress = tx.progress.get(row.id)
            self.epoch, self._quiet_until = progress.epoch, progress.quiet_until
            self.emitter = Emitter(
                identity(tx, row), house.types, house.env, subscription.outboxes, subscription.runtime
            )
            self._heard = heard_of(tx, row.id) if self._quiet_until else Heard()

    @property
    def waits(self) -> bool:
        """Is anybody left to play?"""
        return bool(self.lanes)

    async def play(self, in_thread: Callable[[Callable[[], float]], Any]) -> float:
        """One slice; how long it held the write lock."""
        raise AssertionError

    def slice(self, play: Callable[[StoreTx, Callable[[], float]], tuple[list[Run], Emitted]]) -> float:
        """One transaction, rolled back: what came of it is kept, and how long it took."""
        clock, stage = self.house.env.clock, self.house.stage
        started = clock.monotonic()
        try:
            with stage.acting() as tx:
                started = clock.monotonic()
                why = self._disagreement(tx)
                stage.watch()
                runs, emitted = (
                    (self._refuse_all(why), Emitted()) if why else play(tx, lambda: clock.monotonic() - started)
                )
                tables = stage.touched()
                seconds = clock.monotonic() - started
        except PlayAgain as spoilt:
            self.learn(spoilt)
            return clock.monotonic() - started
        with self.house.store.reading() as tx:
            self.report.add([one for run in runs for one in run.finished(tx)], tables, emitted)
        return seconds

    def learn(self, spoilt: PlayAgain) -> None:
        """The slice is played again, as it was, without the one that spoilt it."""
        error = spoilt.error or UsageError("it ended the transaction by itself")
        self.known[spoilt.letter.id] = describe(error, self.house.settings.error_text_max)

    def _disagreement(self, tx: StoreTx) -> str:
        """Why a worker with this program would refuse to start, if it would."""
        try:
            check_declared(tx, self.subscription, self.row)
            check_tables(tx, self.subscription, self.row)
        except UsageError as error:
            return str(error)
        return ""

    def _refuse_all(self, why: str) -> list[Run]:
        runs = []
        while self.lanes:
            run = Run(lane := self.lanes.popleft())
            run.results = [cannot(letter, why) for letter in lane.chosen.values()]
            runs.append(run)
        return runs

    # ------------------------------------------------------------ one letter

    def event(self, tx: StoreTx, letter: LetterRow) -> tuple[Event[Any] | None, str | None, Rehearsed | None]:
        """The event with its latest edit, and its key; or what is to be said instead of calling the function."""
        row = tx.letters.event(letter.id)
        if row is None:
            return None, None, cannot(letter, "its event is no longer in the log")
        event = from_row(row, self.house.types)
        key, outcome = find_key(self.subscription.key_of, event)
        if outcome is not None:
            return event, key, self.judge(letter, outcome)
        if letter.lane is not None and self.subscription.lane_of(key) != letter.lane:
            why = f"it waits in lane {letter.lane!r}, but its key is {key!r} now: `redrive rekey` moves it"
            return event, key, cannot(letter, why)
        if letter.id in self.known:
            return event, key, self.failed(letter, self.known[letter.id])
        return event, key, None

    def outcome(self, error: BaseException, is_the_world: Callable[[BaseException], bool]) -> Outcome:
        """What an exception means; a store that is down ends the rehearsal."""
        outcome = outcome_of(error, is_the_world, limit=self.house.settings.error_text_max)
        if isinstance(outcome, out.StoreDown):
            raise (
                error if isinstance(error, StoreError) else StoreError(f"{self.subscription.name}: {error}")
            ) from error
        if isinstance(outcome, out.Stopped):  # a worker would stop, give the attempt back, and meet it again
            return out.Failed(error, describe(error))
        return outcome

    def judge(self, letter: LetterRow, outcome: Outcome) -> Rehearsed:
        """An outcome as a result."""
        match outcome:
            case out.Applied():
                return Rehearsed(letter, "would succeed")
            case out.Ignored(reason):
                return Rehearsed(letter, "would succeed", f"the function ignores it: {reason}")
            case out.Failed(OffScript() as error):
                return cannot(letter, f"{self.subscription.kind} {self.subscription.name!r}: {error}")
            case (
                out.Rejected(failure)
                | out.Postponed(failure)
                | out.Unreadable(failure)
                | out.Unkeyed(failure)
                | out.Failed(_, failure)
                | out.Conflicted(_, failure)
            ):
                return self.failed(letter, failure)
        raise AssertionError(outcome)

    def failed(self, letter: LetterRow, failure: Failure) -> Rehearsed:
        """As the letter says, or otherwise?"""
        same = failure.fingerprint == letter.fingerprint
        result: Result = "would fail the same way" if same else "would fail differently"
        return Rehearsed(letter, result, failure.message, failure.error_type, failure.fingerprint)

    def emit(self, tx: StoreTx, of: Event[Any] | LetterRow, emission: Emission) -> bool:
        """Append, as the settling transaction would; False if that event is there already, or is not to be heard."""
        if self.is_quiet(of):
            return False
        repeated = tx.logs.append(emission.log, [emission.event])[1]
        return not repeated and emission.event.due is not WITHDRAWN

    def is_quiet(self, of: Event[Any] | LetterRow) -> bool:
        """Were this event's emissions made before a rebuild?"""
        return of.position <= self._quiet_until and self._heard.has(of.position, of.type)

    def keep(self, tx: StoreTx, letter: LetterRow, error: BaseException | None) -> None:
        """Close the letter's savepoint: what it did stays for those behind it, or is undone."""
        stage = self.house.stage
        lost = None if stage.has_ended or error is None else attempt(tx.undo)
        lost = lost or (None if stage.has_ended else attempt(tx.keep))
        if stage.has_ended or lost is not None:
            if error is not None and stage.is_the_world(error):
                raise StoreError(f"{self.subscription.name}: {error}") from error
            raise PlayAgain(letter, error or lost)
        if error is None:
            stage.notice()
