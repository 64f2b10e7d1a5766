"""Projections: whole batches inside one transaction, the failing event isolated by re-running its stride.

Functions touch nothing but the transaction, so running them again is harmless: a savepoint every
STRIDE events bounds what one failure costs. All of it runs where writing happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from redrive.context import SAME_KEY, Escalate, Tx
from redrive.errors import StoreError
from redrive.event import Event, from_row
from redrive.failpoints import hit
from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.lanes import Head
from redrive.policy.outcome import Outcome
from redrive.runner.call import attempt, outcome_of
from redrive.runner.duty import Duty, Work
from redrive.runner.settle import Settling, decision
from redrive.store.port import StoreTx

STRIDE = 16  # a savepoint costs ~1.7 µs, re-running half a stride ~40 µs per failure: measured, bench/stride.py


LETTERS_MAX = 100  # lanes retried per transaction


class Parked(NamedTuple):
    """Lanes whose events must queue: the cached ones, and those that failed in this very batch."""

    lanes: dict[str, Head]
    failed: set[str]


@dataclass(slots=True)
class Turn:
    """What one turn did, so that the loop knows when to come back."""

    settled: int = 0
    rerun_after: float = 0.0  # a version conflict: wait this long before the same event runs again
    stopped: bool = False
    halt: str = ""
    lane_full: str = ""


class Projector:
    """Runs one projection's turns; the writer thread calls it."""

    def __init__(self, duty: Duty) -> None:
        self.duty = duty
        self._reruns: dict[int, int] = {}
        self._event: Event[Any] | None = None
        self._key: str | None = None
        self._ordinal = 0
        self._settling: Settling | None = None
        function, arguments = duty.subscription.function, duty.subscription.arguments
        self._function: Callable[..., Any] = function if arguments == 2 else lambda event, tx: function(event)

    def turn(self) -> Turn:
        """Due letters first, then the next batch."""
        turn = Turn()
        duty = self.duty
        with duty.engine.store.reading() as tx:
            duty.refresh(tx)
        if duty.paused:
            return turn
        due = duty.lanes.take_due(duty.engine.env.clock.now(), 1 if duty.suspects else LETTERS_MAX)
        if due:
            try:
                self._with_escalation(lambda: self._letters(due, turn))
            finally:  # what was not run, or not committed, is still due; a settled one is not the head any more
                for lane, head in due:
                    if duty.lanes.head(lane, head.letter) == head:
                        duty.lanes.put(lane, head)
        blocked = duty.subscription.order == "total" and duty.lanes
        if not (turn.stopped or turn.halt or turn.rerun_after or duty.paused or blocked):
            self._with_escalation(lambda: self._batch(turn))
        return turn

    def _with_escalation(self, run: Callable[[], None]) -> None:
        """An emission on the connection that may lose its last commits: once more, durably, and so from now on."""
        try:
            run()
        except Escalate:
            self.duty.durable = True
            run()

    # ------------------------------------------------------------ intake

    def _batch(self, turn: Turn) -> None:
        duty = self.duty
        duty.window.rewind(duty.window.position)  # nothing is in flight between turns
        works = self._read(turn)
        if not works and duty.window.plan(()).prefix == duty.window.position:
            return
        hit("batch.read")
        if works and duty.needs_care(works[0]):
            works = works[:1]
            duty.window.rewind(works[0].position)
            duty.mark_alone(works[0])
        started = duty.engine.env.clock.monotonic()
        with duty.engine.store.transaction(durable=duty.durable) as tx:
            settling = self._settling = Settling(tx, duty)
            hit("batch.fenced")
            if settling.paused:
                duty.paused = True
                return
            if settling.stale:
                duty.load_lanes(tx, settling.fresh_version)
            ran = self._apply(tx, settling, works, turn, started)
            hit("batch.called")
            if ran < len(works):  # cut short: what follows is read again
                duty.window.rewind(works[ran].position - 1)
            settling.finish()
            hit("batch.before_commit")
        hit("batch.committed")
        self._after(settling, started)
        turn.settled += len(settling.settled)

    def _read(self, turn: Turn) -> list[Work]:
        duty = self.duty
        window, subscription, settings = duty.window, duty.subscription, duty.engine.settings
        with duty.engine.store.reading() as tx:
            duty.log_id = duty.log_id or tx.logs.id_of(subscription.source)
            rows = tx.logs.after(duty.log_id, window.cursor, settings.batch_max)
        plain, lanes, wants = (
            subscription.key_by is None and subscription.order == "key",
            duty.lanes,
            subscription.wants,
        )
        works: list[Work] = []
        for row in rows:
            if not wants(row[2]):
                window.skip(row[0])
                continue
            event = duty.event(row)
            work = Work(event, row[0], row[3], row[3], None) if plain else duty.work(event)
            if lanes and lanes.size(work.lane) >= settings.lane_max:
                turn.lane_full = work.lane or ""
                break
            if window.take(row[0]):
                works.append(work)
        return works

    def _apply(self, tx: StoreTx, settling: Settling, works: list[Work], turn: Turn, started: float) -> int:
        """Run the functions; returns how many works have their fate written."""
        if self.duty.subscription.batch and self._apply_list(tx, settling, works):
            return len(works)
        clock, limit = self.duty.engine.env.clock, self.duty.engine.settings.batch_time_max
        user, parked = Tx(tx.connection, self._emit), Parked(self.duty.lanes.names, set())
        done = 0
        while done < len(works):
            stride = works[done : done + STRIDE]
            tx.savepoint()
            failed = None
            while (index := self._run_stride(user, stride, parked)) is not None:  # what succeeded once may fail now
                tx.undo()
                failed, stride = stride[index], stride[:index]
            tx.keep()
            for work in stride:
                if work.lane in parked.lanes or work.lane in parked.failed:
                    settling.follow(work)
                else:
                    settling.commit(work)
            done += len(stride)
            if failed is not None:
                if not self._settle_bad(settling, failed, turn):
                    return done
                done += 1
                if failed.lane is not None and failed.lane in settling.parking:
                    parked.failed.add(failed.lane)
                    if self.duty.subscription.order == "total":
                        return done
            if clock.monotonic() - started > limit:
                return done
        return done

    def _run_stride(self, user: Tx, stride: list[Work], parked: Parked) -> int | None:
        """Call the function for each; the index of the first that failed."""
        lanes, failed = parked
        for index, work in enumerate(stride):
            if (work.lane in lanes or work.lane in failed) and work.lane is not None:
                continue
            if not self._call(user, work):
                return index
        return None

    def _call(self, user: Tx, work: Work) -> bool:
        """One call of the function; its outcome is in the work."""
        if work.outcome is not None and work.outcome is not out.APPLIED:
            return False  # no key, or its crashes are over
        self._event, self._key, self._ordinal = work.event, work.key, 0
        error = attempt(self._function, [work.event] if self.duty.subscription.batch else work.event, user)
        work.outcome = out.APPLIED if error is None else self._outcome(work, error)
        return error is None

    def _outcome(self, work: Work, error: BaseException) -> Outcome:
        engine = self.duty.engine
        if isinstance(error, SystemExit | KeyboardInterrupt):
            engine.request_stop(f"{self.duty.subscription.name} raised {type(error).__name__}")
        reruns, limit = self._reruns.get(work.position, 0), engine.settings.error_text_max
        outcome = outcome_of(error, engine.store.is_the_world, reruns=reruns, limit=limit)
        if isinstance(outcome, out.StoreDown):  # SQLite may have ended the transaction: nothing of it can be kept
            raise StoreError(f"{self.duty.subscription.name}: {error}") from error
        return outcome

    def _settle_bad(self, settling: Settling, work: Work, turn: Turn) -> bool:
        """Write a failed event's fate; False if it must be run again later, with nothing written."""
        action = decision(self.duty, work)
        match action:
            case act.Rerun(wait):
                self._reruns[work.position] = self._reruns.get(work.position, 0) + 1
                turn.rerun_after = max(wait, 0.001)
                return False
            case act.Defer():
                turn.stopped = True
                return False
            case act.Halt(reason):
                turn.halt = reason
                return False
        self._reruns.pop(work.position, None)
        return settling.write(work, action)

    def _apply_list(self, tx: StoreTx, settling: Settling, works: list[Work]) -> bool:
        """batch=True: the whole list at once. False: it failed, and each event must run by itself."""
        parked = self.duty.lanes.names
        if any(work.outcome is not None for work in works) or not works:
            return not works
        runnable = [work for work in works if work.lane not in parked]
        tx.savepoint()
        self._event, self._key, self._ordinal = works[0].event, works[0].key, 0
        error = None
        if runnable:
            error = attempt(self._function, [work.event for work in runnable], Tx(tx.connection, self._emit))
        if error is not None:
            self._outcome(works[0], error)  # the world's fault ends the transaction here
            tx.undo()
        tx.keep()
        if error is not None:
            return False
        for work in works:
            if work.lane in parked:
                settling.follow(work)
            else:
                settling.commit(work)
        return True

    # ------------------------------------------------------------ letters

    def _letters(self, due: list[tuple[str | None, Head]], turn: Turn) -> None:
        """Retries and replays, head first; a lane that is free again drains its followers in the same transaction."""
        duty = self.duty
        alone = None
        if due[0][1].letter in duty.suspects:
            alone = Work(None, due[0][1].position, None, *due[0])
            duty.mark_alone(alone)
        started = duty.engine.env.clock.monotonic()
        with duty.engine.store.transaction(durable=duty.durable) as tx:
            settling = self._settling = Settling(tx, duty)
            hit("letter.fenced")
            if settling.paused:
                duty.paused = True
                return
            if settling.stale:
                duty.load_lanes(tx, settling.fresh_version)
            for lane, head in due:
                self._drain(tx, settling, lane, duty.lanes.head(lane, head.letter), turn, started, alone)
            settling.finish()
            hit("letter.before_commit")
        hit("letter.committed")
        duty.suspects -= {head.letter for _, head in due}
        self._after(settling, started)

    def _drain(
        self, tx: StoreTx, settling: Settling, lane: str | None, head: Head | None, turn: Turn, started: float,
        alone: Work | None,
    ) -> None:  # fmt: skip
        engine, user = self.duty.engine, Tx(tx.connection, self._emit)
        while head is not None and head.state == "retrying" and head.due_at <= settling.now:
            if engine.env.clock.monotonic() - started > engine.settings.batch_time_max:
                return
            row = tx.letters.event(head.letter)
            if row is None:
                turn.halt = f"letter {head.letter}: its event at {head.position} is no longer in the log"
                return
            work = self.duty.work(from_row(row, engine.types))
            work.lane, work.head, work.attempt = lane, head, head.attempts + 1
            if alone is not None:
                work.alone, work.outcome = True, alone.outcome
            tx.savepoint()
            good = self._call(user, work)
            if not good:
                tx.undo()
            tx.keep()
            settled = settling.commit(work) if good else self._settle_bad(settling, work, turn)
            turn.settled += 1
            if not (settled and good) or lane is None or alone is not None:
                return
            head = tx.letters.head(self.duty.id, lane)

    # ------------------------------------------------------------ helpers

    def _emit(self, log: Any, type: Any, data: Any, key: Any, headers: Any, expected_version: int | None) -> None:
        duty, event = self.duty, self._event
        if not duty.durable:
            raise Escalate
        assert event is not None and self._settling is not None
        chosen = self._key if key is SAME_KEY else key
        emission = duty.emitter.make(
            event, self._ordinal, log, type, data, key=chosen, headers=headers, expected_version=expected_version
        )
        self._ordinal += 1
        self._settling.emit(event.position, emission)

    def _after(self, settling: Settling, started: float) -> None:
        """Committed. A dead letter is announced only when it survives a power cut."""
        if settling.buried and not self.duty.durable:
            self.duty.engine.store.sync()
        settling.learn(self.duty.engine.env.clock.monotonic() - started)
