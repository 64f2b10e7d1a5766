"""Automatic replay, one step at a time: begin an operation when it is time, ask for its next letters, end it.

A step looks at the store and leaves everything there, so that whoever takes over goes on in the middle. It uses the
deeds that operators use, as somebody called "auto-replay": receipt, audit and `ops cancel` are the same. All it
writes is fenced by the owner of the first partition, so that only one worker does it at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from redrive.errors import Fenced
from redrive.observe import signals as sig
from redrive.policy import healing
from redrive.policy.auto_replay import AutoReplay
from redrive.policy.breaker import State as BreakerState
from redrive.policy.healing import Cause, DeadLetter, Ending, Run, Seen
from redrive.policy.limiter import Bucket
from redrive.replay.bulk import AUTOMATIC, Operation, Part, operation_of
from redrive.replay.deed import Operator, Refusal
from redrive.replay.letters import LetterDesk
from redrive.runner.duty import Duty, fence
from redrive.store.guards import recoveries as closings
from redrive.store.port import LetterRow, StoreTx

RELAPSED = "the dependency failed again"
OVER = "the run is over"
HELD_SECONDS = 60.0  # a letter that has been due for so long waits for the breaker of its key
LOOK_AGAIN = 0.1  # seconds, while an operation is under way
PAGE, PAGES = 1_000, 2  # dead letters looked at in one step: a hundredth of a second


class Next(NamedTuple):
    """When to look again, and whether there is nothing to do until then."""

    wait: float | None  # seconds; None: when something happens
    idle: bool


class Healer:
    """Automatic replay of one subscription, by the owner of its first partition."""

    def __init__(self, duty: Duty, rule: AutoReplay) -> None:
        engine = duty.engine
        self.duty, self.rule, self._store, self._clock = duty, rule, engine.store, engine.env.clock
        self._desk = LetterDesk(engine.store, engine.env, engine.signals, AUTOMATIC)
        self._operator = Operator(engine.store, engine.env, engine.signals, AUTOMATIC)
        self._name = f"auto-replay {duty.id}"
        self._above, self._found = 0, list[DeadLetter]()  # how far we have looked for letters, and which we found

    def step(self) -> Next:
        """Do what is to be done now. Runs where writing happens."""
        now = self._clock.now()
        with self._store.reading() as tx:
            seen, recoveries = self._seen(tx), closings(tx.sql, self.duty.subscription.dependency)
            is_well, owned = self._is_well(tx), tx.progress.member(self.duty.member)
        if owned.epoch != self.duty.epoch:
            raise Fenced(f"{self.duty.subscription.name}: epoch {self.duty.epoch} is over")
        if owned.paused:
            return Next(None, idle=True)
        if seen is None:  # declared just now: what was before is nobody's business
            self._save(Seen(now, recoveries))
            return Next(0.0, idle=False)
        if seen.operation is not None:
            return self._go_on(seen.operation, seen, is_well=is_well)
        if seen.cause is not None:  # a run whose next operation is not chosen yet
            return self._choose(seen) if is_well else self._forget(seen)
        found, cause = healing.look(self.rule, seen, now, recoveries, is_well=is_well)
        if found != seen:
            self._save(found)
        if cause is not None:
            return Next(0.0, idle=False)
        due_at = healing.next_time(self.rule, found.cron_at)
        return Next(None if due_at is None else max(0.0, due_at - now), idle=True)

    # ------------------------------------------------------------ an operation

    def _choose(self, seen: Seen) -> Next:
        """Look for the next letters, a few pages at a time: others want to write meanwhile."""
        rule, now = self.rule, self._clock.now()
        named = self._named(seen)
        with self._store.reading() as tx:
            for _ in range(PAGES):
                values = {"subscription": self.duty.id, "above": self._above, "limit": PAGE}
                page = [DeadLetter(*row) for row in tx.sql.all("letters_to_heal", values)]
                self._found += [one for one in page if not healing.why_not(rule, one, now, named, seen.first)]
                if len(page) < PAGE or len(self._found) >= rule.batch:
                    break
                self._above = page[-1].position
            else:
                return Next(0.0, idle=False)
        letters = healing.next_letters(self._found, rule.batch)
        self._found, self._above = [], max((one.position for one in letters), default=0)
        return self._begin(seen, letters) if letters else self._forget(seen)

    def _begin(self, seen: Seen, letters: list[DeadLetter]) -> Next:
        """Freeze the selection."""
        assert seen.cause is not None
        values = {"action": "replay", "who": AUTOMATIC, "reason": self._reason(seen.cause), "now": self._clock.now()}
        with self._operator.acting(self.duty.id) as tx:
            fence(self.duty, tx)
            number = tx.sql.add("operation_add", {**values, "rate": self.rule.rate, "selected": len(letters)})
            tx.sql.many("operation_letter_add", [(number, one.letter, one.rev) for one in letters])
            first = number if seen.first is None else seen.first
            self._write(tx, seen._replace(operation=number, first=first))
        return Next(0.0, idle=False)

    def _forget(self, seen: Seen) -> Next:
        """The run is over."""
        self._found, self._above = [], 0
        self._save(seen._replace(operation=None, cause=None, first=None))
        return Next(0.0, idle=False)

    def _go_on(self, number: int, seen: Seen, *, is_well: bool) -> Next:
        with self._store.reading() as tx:
            operation = operation_of(tx, number)
            relapsed = not is_well or tx.sql.one("operation_relapsed", {"id": number}) is not None
            waiting = operation.waiting - self._held(tx, number)
        run = Run(operation.applied, operation.failed, waiting, operation.unasked, operation.cancelled, relapsed)
        match healing.step(self.rule, run):
            case healing.Ask(room, pace):
                return self._ask(operation, seen, room, pace)
            case healing.End(how):
                return self._end(operation, seen, how)
        return Next(LOOK_AGAIN, idle=False)

    def _ask(self, operation: Operation, seen: Seen, room: int, pace: Bucket) -> Next:
        """Replay the next letters, as many as the pace allows."""
        with self._store.transaction(durable=False) as tx:
            fence(self.duty, tx)
            taken = tx.guards.take(self._name, pace, self._clock.now(), room)
            left = [DeadLetter(*row) for row in tx.sql.all("operation_left", {"id": operation.id})]
        if not taken.granted:
            return Next(min(taken.wait, LOOK_AGAIN), idle=False)
        chosen = healing.next_letters(left, taken.granted)
        if not chosen:  # what is left is gone
            return self._end(operation, seen, Ending.DONE)
        with self._store.reading() as tx:
            rows = [(tx.letters.get(one.letter), one.rev) for one in chosen]
        letters = [row._replace(rev=rev) for row, rev in rows if row is not None]
        turn = _Turn(self, operation.id, self._named(seen))
        done = self._desk.replay(letters, operation.reason, within=turn).done
        if done:
            cause = str(seen.cause)
            self.duty.engine.signals.tell(
                [sig.AutoReplayed(self.duty.subscription.name, operation.id, len(done), cause)]
            )
        return Next(0.0, idle=False)

    def _end(self, operation: Operation, seen: Seen, how: Ending) -> Next:
        """Write what was not asked for off; after a recovery what is left may follow, as long as all goes well."""
        goes_on = how is Ending.DONE and seen.cause is Cause.RECOVERY
        with self._operator.acting(self.duty.id) as tx:
            fence(self.duty, tx)
            tx.sql.run(
                "operation_skip_unasked",
                {"id": operation.id, "why": RELAPSED if how is Ending.RELAPSE else OVER, "limit": operation.selected},
            )
            tx.sql.run("operation_end", {"id": operation.id, "now": self._clock.now(), "cancelled": 0})
            over = seen._replace(operation=None)
            self._write(tx, over if goes_on else over._replace(cause=None, first=None))
        facts = (operation.applied, operation.failed)
        self.duty.engine.signals.tell(
            [sig.AutoReplayEnded(self.duty.subscription.name, operation.id, *facts, str(how))]
        )
        self._above = self._above if goes_on else 0
        return Next(0.0, idle=False)

    # ------------------------------------------------------------ what is known

    def fence(self, tx: StoreTx) -> None:
        """Go on only as the owner."""
        fence(self.duty, tx)

    def _named(self, seen: Seen) -> str | None:
        return self.duty.subscription.dependency if seen.cause is Cause.RECOVERY else None

    def _reason(self, cause: Cause) -> str:
        if cause is Cause.RECOVERY:
            return f"{self.duty.subscription.dependency} is well again"
        return f"cron {self.rule.cron}"

    def _is_well(self, tx: StoreTx) -> bool:
        subscription = self.duty.subscription
        return subscription.breaker is None or tx.guards.breaker(subscription.dependency).state is BreakerState.CLOSED

    def _held(self, tx: StoreTx, number: int) -> int:
        """Where each key has a breaker of its own, who waits for that holds up nobody else."""
        breaker, now = self.duty.subscription.breaker, self._clock.now()
        if breaker is None or breaker.per is None:
            return 0
        return int(tx.sql.value("operation_held", {"id": number, "now": now, "before": now - HELD_SECONDS}))

    def _seen(self, tx: StoreTx) -> Seen | None:
        text = tx.books.get(self._name)
        if text is None:
            return None
        cron_at, recoveries, operation, cause, first = json.loads(text)
        return Seen(cron_at, recoveries, operation, cause and Cause(cause), first)

    def _save(self, seen: Seen) -> None:
        with self._store.transaction() as tx:
            fence(self.duty, tx)
            self._write(tx, seen)

    def _write(self, tx: StoreTx, seen: Seen) -> None:
        tx.books.set(self._name, json.dumps(seen))


class _Turn(Part):
    """The next letters of an automatic replay: each is looked at again in the transaction that replays it."""

    automatic = True

    def __init__(self, healer: Healer, operation: int, dependency: str | None) -> None:
        super().__init__(operation)
        self._healer, self._dependency = healer, dependency

    def why_not(self, letter: LetterRow, now: float) -> str:
        died_at = letter.parked_at if letter.last_failed_at is None else letter.last_failed_at
        dead = DeadLetter(
            letter.id, letter.position, letter.lane, letter.reason, letter.dependency, letter.auto_replays, died_at,
            letter.rev,
        )  # fmt: skip
        return healing.why_not(self._healer.rule, dead, now, self._dependency)

    def record(self, tx: StoreTx, action: str, done: Sequence[int], refused: Sequence[Refusal]) -> None:
        self._healer.fence(tx)
        super().record(tx, action, done, refused)
