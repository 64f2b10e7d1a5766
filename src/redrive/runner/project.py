"""Projections: whole batches inside one transaction, the failing event isolated by re-running its stride.

Functions touch nothing but the transaction, so running them again is harmless: a savepoint every
STRIDE events bounds what one failure costs. All of it runs where writing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redrive.context import SAME_KEY, Escalate, Tx
from redrive.errors import StoreError, UsageError
from redrive.event import Event, from_row
from redrive.failpoints import hit
from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.lanes import Head
from redrive.policy.outcome import Outcome
from redrive.runner.call import attempt, attempt_each, outcome_of
from redrive.runner.controls import perform
from redrive.runner.duty import Duty, Work
from redrive.runner.settle import Settling, decision
from redrive.store.port import StoreTx
from redrive.store.sql import Row

STRIDE = 16  # a savepoint costs ~1.7 µs, re-running half a stride ~40 µs per failure: measured, bench/stride.py
LETTERS_MAX = 100  # lanes retried per transaction


@dataclass(slots=True)
class Turn:
    """What one turn did, so that the loop knows when to come back."""

    settled: int = 0
    rerun_after: float = 0.0  # a version conflict: wait this long before the same event runs again
    stopped: bool = False
    halt: str = ""
    lane_full: str = ""


@dataclass(slots=True)
class Batch:
    """Events to apply in order. `works` has those that are more than an event: a computed key, a known fate."""

    events: list[Event[Any]]
    works: dict[int, Work]
    last: int  # everything read up to this position is in the batch, settled, or not asked for

    def work(self, event: Event[Any], duty: Duty) -> Work:
        """The work of one event."""
        found = self.works.get(event.position)
        return found or Work(event, event.position, event.key, duty.subscription.lane_of(event.key), None)


class Projector:
    """Runs one projection's turns; the writer thread calls it."""

    def __init__(self, duty: Duty) -> None:
        self.duty = duty
        self._reruns: dict[int, int] = {}
        self._batch: Batch | None = None
        self._ordinal = 0  # emissions of the event being applied
        self._settling: Settling | None = None
        function, arguments = duty.subscription.function, duty.subscription.arguments
        self._function: Callable[..., Any] = function if arguments == 2 else lambda event, tx: function(event)

    def turn(self) -> Turn:
        """Due letters first, then the next batch."""
        turn = Turn()
        duty = self.duty
        with duty.engine.store.reading() as tx:
            duty.refresh(tx)
        if duty.controls:
            perform(duty, lambda lane, letter: False)  # between two turns every lane is idle
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
            self._with_escalation(lambda: self._take_in(turn))
        return turn

    def _with_escalation(self, run: Callable[[], None]) -> None:
        """An emission on the connection that may lose its last commits: once more, durably, and so from now on."""
        try:
            run()
        except Escalate:
            self.duty.durable = True
            run()

    # ------------------------------------------------------------ intake

    def _take_in(self, turn: Turn) -> None:
        duty = self.duty
        batch = self._batch = self._read(turn)
        if batch.last == duty.window.position:
            return
        hit("batch.read")
        if batch.events:
            self._take_care(batch)
        started = duty.engine.env.clock.monotonic()
        with duty.engine.store.transaction(durable=duty.durable) as tx:
            settling = self._settling = Settling(tx, duty)
            hit("batch.fenced")
            if settling.paused:
                duty.paused = True
                return
            if settling.stale:
                duty.load_lanes(tx, settling.fresh_version)
            ran = self._apply(tx, settling, batch, turn, started)
            hit("batch.called")
            if ran < len(batch.events):  # cut short: what follows is read again
                batch.last = batch.events[ran - 1].position if ran else duty.window.position
            settling.finish(duty.window.pass_to(batch.last))
            hit("batch.before_commit")
        hit("batch.committed")
        self._after(settling, started)
        turn.settled += ran

    def _read(self, turn: Turn) -> Batch:
        """The next events, as far as the filter asks for them and their lanes have room."""
        duty = self.duty
        subscription, settings, position = duty.subscription, duty.engine.settings, duty.window.position
        with duty.engine.store.reading() as tx:
            duty.log_id = duty.log_id or tx.logs.id_of(subscription.source)
            rows: list[Row] = tx.logs.after(duty.log_id, position, settings.batch_max)
        batch = Batch([], {}, rows[-1][0] if rows else position)
        if duty.subscription.types or duty.window.has_done():
            wants, is_done = subscription.wants, duty.window.is_done
            rows = [row for row in rows if wants(row[2]) and not is_done(row[0])]
        batch.events = events = [duty.event(row) for row in rows]
        if subscription.key_by is not None:
            batch.works = {event.position: duty.work(event) for event in events}
        if duty.lanes:
            for index, event in enumerate(events):
                lane = batch.work(event, duty).lane
                if duty.lanes.size(lane) >= settings.lane_max:
                    turn.lane_full = lane or ""
                    del events[index:]
                    batch.last = events[-1].position if events else position
                    break
        return batch

    def _take_care(self, batch: Batch) -> None:
        """After a crash what may have caused it runs alone, behind a mark."""
        duty, first = self.duty, batch.events[0]
        work = batch.work(first, duty)
        if duty.needs_care(work):
            duty.mark_alone(work)
            del batch.events[1:]
            batch.works, batch.last = {first.position: work}, first.position

    def _apply(self, tx: StoreTx, settling: Settling, batch: Batch, turn: Turn, started: float) -> int:
        """Run the functions; returns how many events have their fate written."""
        if self.duty.subscription.batch and self._apply_list(tx, settling, batch):
            return len(batch.events)
        duty, events = self.duty, batch.events
        clock, limit = duty.engine.env.clock, duty.engine.settings.batch_time_max
        user, done = Tx(tx.connection, self._emit), 0
        while done < len(events):
            if duty.lanes or batch.works or settling.parking:  # somebody is not to be called: one at a time
                if not self._apply_one(tx, settling, user, batch.work(events[done], duty), turn):
                    return done
                done += 1
            else:
                stride = events[done : done + STRIDE]
                tx.savepoint()
                good, error = attempt_each(self._one, stride, user)
                failed = error
                while error is not None:  # what succeeded once may fail the second time
                    self._unless_the_world(error)
                    tx.undo()
                    failed, stride = error, stride[:good]
                    for event in stride:  # the function must not see its own changes
                        event.forget()
                    good, error = attempt_each(self._one, stride, user)
                tx.keep()
                settling.commit_all(stride)
                done += len(stride)
                if failed is not None:
                    work = batch.work(events[done], duty)
                    work.outcome = self._outcome(work, failed)
                    if not self._settle_bad(settling, work, turn):
                        return done
                    done += 1
            if duty.subscription.order == "total" and settling.parking:
                return done
            if clock.monotonic() - started > limit:
                return done
        return done

    def _one(self, event: Event[Any], user: Tx) -> None:
        self._ordinal = 0
        self._function([event] if self.duty.subscription.batch else event, user)

    def _apply_one(self, tx: StoreTx, settling: Settling, user: Tx, work: Work, turn: Turn) -> bool:
        """One event by itself: it may have to queue, its fate may be known already, or its neighbours failed."""
        if work.lane in self.duty.lanes.names or work.lane in settling.parking:
            settling.follow(work)
            return True
        tx.savepoint()
        good = self._call(user, work)
        if not good:
            tx.undo()
        tx.keep()
        return settling.commit(work) if good else self._settle_bad(settling, work, turn)

    def _call(self, user: Tx, work: Work) -> bool:
        """One call of the function; its outcome is in the work."""
        if work.outcome is not None:
            return False  # no key, or its crashes are over
        user.event = work.event
        error = attempt(self._one, work.event, user)
        work.outcome = out.APPLIED if error is None else self._outcome(work, error)
        return error is None

    def _outcome(self, work: Work, error: BaseException) -> Outcome:
        engine = self.duty.engine
        if isinstance(error, SystemExit | KeyboardInterrupt):
            engine.request_stop(f"{self.duty.subscription.name} raised {type(error).__name__}")
        reruns, limit = self._reruns.get(work.position, 0), engine.settings.error_text_max
        outcome = outcome_of(error, engine.store.is_the_world, reruns=reruns, limit=limit)
        self._unless_the_world(error)
        return outcome

    def _unless_the_world(self, error: BaseException) -> None:
        """SQLite may have ended the transaction, savepoints and all: nothing of it can be kept."""
        if self.duty.engine.store.is_the_world(error):
            raise StoreError(f"{self.duty.subscription.name}: {error}") from error

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

    def _apply_list(self, tx: StoreTx, settling: Settling, batch: Batch) -> bool:
        """batch=True: the whole list at once. False: it failed, and each event must run by itself."""
        events, parked = batch.events, self.duty.lanes.names
        if not events or any(work.outcome is not None for work in batch.works.values()):
            return not events
        if events[0].position <= settling.quiet_until and not all(settling.is_quiet(one.position) for one in events):
            return False  # a rebuild: the emissions of some are to be left out, those of others not
        held = self._held(batch, parked)
        runnable = [event for event in events if event.position not in held] if held else events
        tx.savepoint()
        error = None
        if runnable:
            user = Tx(tx.connection, self._emit)
            user.event, self._ordinal = runnable[0], 0
            error = attempt(self._function, runnable, user)
        if error is not None:
            self._outcome(batch.work(events[0], self.duty), error)  # the world's fault ends the transaction here
            tx.undo()
            tx.keep()
            for event in runnable:
                event.forget()
            return False
        tx.keep()
        settling.commit_all(runnable)
        for work in held.values():
            settling.follow(work)
        return True

    def _held(self, batch: Batch, parked: Mapping[str, Head]) -> dict[int, Work]:
        """Events whose lane has a head, by position."""
        if not parked:
            return {}
        works = (batch.work(event, self.duty) for event in batch.events)
        return {work.position: work for work in works if work.lane in parked}

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
            settling.finish(duty.window.pass_to(duty.window.position))
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
                work.alone, work.outcome = True, alone.outcome or work.outcome
            tx.savepoint()
            good = self._call(user, work)
            if not good:
                tx.undo()
            settled = settling.commit(work) if good else self._settle_bad(settling, work, turn)
            if good and not settled:  # an operator was faster: the effects are dropped
                tx.undo()
            tx.keep()
            turn.settled += 1
            if not (settled and good) or lane is None or alone is not None:
                return
            head = tx.letters.head(self.duty.id, lane)

    # ------------------------------------------------------------ helpers

    def _emit(
        self, event: Event[Any], log: Any, type: Any, data: Any, key: Any, headers: Any, expected_version: int | None
    ) -> None:
        duty = self.duty
        if not duty.durable:
            raise Escalate
        assert self._settling is not None
        if key is SAME_KEY and duty.subscription.batch:
            raise UsageError("emit in a batch=True projection needs key=: a list of events has no key of its own")
        chosen = duty.work(event).key if key is SAME_KEY else key
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
