"""Projections: whole batches inside one transaction, the failing event isolated by re-running its stride.

Functions touch nothing but the transaction, so running them again is harmless. A batch runs without
any savepoint first; after a failure, batches run in strides of a few events for a while, each behind a
savepoint, which bounds what the next failure costs. All of it runs where writing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redrive.context import SAME_KEY, Escalate, Tx
from redrive.errors import CommitRefused, RedriveError, StoreError, UsageError
from redrive.event import Event, from_row
from redrive.failpoints import hit
from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.action import Action
from redrive.policy.lanes import Head
from redrive.policy.outcome import Outcome
from redrive.runner.at_once import try_at_once
from redrive.runner.batch import Batch, Nothing, OneFailed, Span, Turn, next_batch
from redrive.runner.call import attempt, attempt_each, attempt_rows, outcome_of
from redrive.runner.controls import perform
from redrive.runner.duty import Duty, Work
from redrive.runner.settle import Settling, decision, tell
from redrive.runner.strides import Pace, attempt_strides, isolate, never
from redrive.store.port import Function, StoreTx
from redrive.store.sql import Row

STRIDES_AFTER_FAILURE = 100  # batches; where one event failed, others will
TURNS_TIME_MAX = 0.03  # seconds; a lease, a stop and a signal want to be looked at in between
LETTERS_MAX = 500  # lanes retried per transaction


class Projector:
    """Runs one projection's turns; the writer thread calls it."""

    def __init__(self, duty: Duty) -> None:
        self.duty = duty
        self._reruns: dict[int, int] = {}
        self._emitted: Event[Any] | None = None  # the event of the last emission in this run, and its number
        self._ordinal = 0
        self._settling: Settling | None = None
        self._strict = False  # a commit was refused: which event broke the constraint is to be found
        self._in_strides = 0  # batches left to run in strides, because one failed lately
        self._pace = Pace()
        self._untold: list[Settling] = []  # committed, with dead letters in it that are not durable yet
        self._escalating = False  # an emission asked for the durable connection
        function, arguments = duty.subscription.function, duty.subscription.arguments
        self._function: Callable[..., Any] = function if arguments == 2 else lambda event, tx: function(event)
        self._callee: Function = self._function  # for one event
        if duty.subscription.batch:
            self._callee = lambda event, tx: self._function([event], tx)

    def turns(self, stopping: Callable[[], bool]) -> Turn:
        """Turn after turn while there is a backlog and nobody else wants to write: one hop for many batches.

        Letters that become due meanwhile wait for the next hop: a transaction for few costs as much as for many.
        """
        store, clock = self.duty.engine.store, self.duty.engine.env.clock
        until = clock.monotonic() + TURNS_TIME_MAX
        try:
            turn = self.turn()
            while turn.goes_on and clock.monotonic() < until and not store.is_wanted and not stopping():
                turn = self.turn(letters=False)
        except RedriveError:  # what was committed before it is to be told all the same
            self._announce()
            raise
        self._announce()
        return turn

    def turn(self, *, letters: bool = True) -> Turn:
        """Due letters first, then the next batch."""
        turn, duty = Turn(), self.duty
        with duty.engine.store.reading() as tx:  # one for both: on a server it costs as much as what is read
            duty.refresh(tx)
            batch = None if duty.paused or duty.controls else next_batch(duty, tx)
        if duty.controls:
            perform(duty, lambda lane, letter: False)  # between two turns every lane is idle
            with duty.engine.store.reading() as tx:
                batch = next_batch(duty, tx)
        if duty.paused:
            return turn
        due = duty.lanes.take_due(duty.engine.env.clock.now(), 1 if duty.suspects else LETTERS_MAX) if letters else []
        if due:
            try:
                self._with_care(lambda: self._letters(due, turn), turn)
            finally:  # what was not run, or not committed, is still due; a settled one is not the head any more
                for lane, head in due:
                    if duty.lanes.head(lane, head.letter) == head:
                        duty.lanes.put(lane, head)
        blocked = duty.subscription.order == "total" and duty.lanes
        if not (batch is None or turn.stopped or turn.halt or turn.rerun_after or duty.paused or blocked):
            with suppress(Nothing):
                self._with_care(lambda: self._take_in(batch, turn), turn)
        return turn

    def _with_care(self, run: Callable[[], None], turn: Turn) -> None:
        """One of many broke a constraint that is checked at the end: once more, looking after each of them."""
        try:
            self._with_escalation(run)
            return
        except CommitRefused:
            self._strict, self._in_strides = True, STRIDES_AFTER_FAILURE
        turn.forget()
        try:
            self._with_escalation(run)
        finally:
            self._strict = False

    def _with_escalation(self, run: Callable[[], None]) -> None:
        """An emission on the connection that may lose its last commits: once more, durably, and so from now on."""
        try:
            run()
        except Escalate:
            self.duty.durable, self._escalating = True, False
            run()

    def _escalate_if_swallowed(self) -> None:
        """A function that catches everything caught our own signal, too: its emission is still to be made."""
        if self._escalating:
            raise Escalate

    # ------------------------------------------------------------ intake

    def _take_in(self, batch: Batch, turn: Turn) -> None:
        if batch.last == self.duty.window.position:
            return
        hit("batch.read")
        if batch.rows:
            self._take_care(batch)
        try:
            self._commit(batch, turn)
            return
        except OneFailed as failed:  # of many that ran without a savepoint: all of it again, in strides
            batch.failed = failed.args or None
        self._commit(batch, turn)  # out here: what a function raises now must not seem to be caused by our own signal

    def _commit(self, batch: Batch, turn: Turn) -> None:
        """One transaction: fence, functions, fates, progress."""
        duty = self.duty
        started = duty.engine.env.clock.monotonic()
        with duty.engine.store.transaction(durable=duty.durable) as tx:
            settling = self._settling = Settling(tx, duty, gathers=True)
            hit("batch.fenced")
            if settling.paused:
                duty.paused = True
                return
            if settling.stale:
                duty.load_lanes(tx, settling.fresh_version)
            ran = self._apply(tx, settling, batch, turn, started)
            hit("batch.called")
            last = batch.last
            if ran < len(batch.rows):  # cut short: what follows is read again
                last = batch.rows[ran - 1][0] if ran else duty.window.position
            if last == duty.window.position:
                raise Nothing
            self._escalate_if_swallowed()
            settling.finish(last, (row[0] for row in batch.rows[:ran]))
            hit("batch.before_commit")
        hit("batch.committed")
        self._after(settling, started)
        turn.settled += ran
        turn.more = batch.full or ran < len(batch.rows) or batch.alone is not None

    def _take_care(self, batch: Batch) -> None:
        """After a crash what may have caused it runs alone, behind a mark."""
        duty = self.duty
        if batch.rows[0][0] <= duty.horizon:
            batch.alone = duty.work(duty.event(batch.rows[0]))
            duty.mark_alone(batch.alone)
            del batch.rows[1:]
            batch.last = batch.rows[0][0]

    def _apply(self, tx: StoreTx, settling: Settling, batch: Batch, turn: Turn, started: float) -> int:
        """Run the functions; returns how many rows have their fate written."""
        duty = self.duty
        if duty.subscription.batch and not self._strict and self._apply_list(tx, settling, batch):
            return len(batch.rows)
        clock, limit = duty.engine.env.clock, duty.engine.settings.batch_time_max
        user, done = Tx(tx, self._emit), 0
        plain = not (duty.lanes or duty.edits or batch.alone or duty.subscription.key_by)

        def late() -> bool:
            return clock.monotonic() - started > limit

        if plain and self._in_strides == 0:
            return self._apply_at_once(settling, batch, user, late)
        self._in_strides = max(0, self._in_strides - 1)
        while done < len(batch.rows) and not turn.lane_full:
            if plain and not settling.parking:
                done, failed = self._run_strides(tx, settling, batch, user, done, late)
            else:
                done, failed = self._run_span(tx, settling, batch, user, done, turn)
            if failed is not None:
                self._pace.failed()
                self._in_strides = STRIDES_AFTER_FAILURE
                action = try_at_once(duty, tx, failed, lambda work: self._call(tx, user, work), late)
                if not self._settle_bad(settling, failed, action, turn):
                    return done
                done += 1
                if duty.subscription.order == "total" and settling.parking:
                    return done
            if late():
                return done
        return done

    def _apply_at_once(self, settling: Settling, batch: Batch, user: Tx, late: Callable[[], bool]) -> int:
        """Optimism: no savepoint, which spares SQLite a copy of every page. One failure, and all is run again."""
        self._emitted = None
        function = settling.tx.pipelined(self._callee)
        done, error = attempt_rows(function, batch.rows, self.duty.engine.types, user, late)
        known = settling.tx.answers() is None
        if error is not None and known:
            self._unless_the_world(error)
        if error is not None or not known:
            self._in_strides = STRIDES_AFTER_FAILURE
            raise OneFailed(batch.rows[done][0], error) if known else OneFailed
        if done:
            settling.commit_events(done, from_row(batch.rows[done - 1], self.duty.engine.types))
        return done

    def _run_strides(
        self, tx: StoreTx, settling: Settling, batch: Batch, user: Tx, start: int, late: Callable[[], bool]
    ) -> tuple[int, Work | None]:
        """Nothing is parked, nobody follows anybody: how far it went, and the event there if that one failed."""
        duty, rows, types = self.duty, batch.rows, self.duty.engine.types
        known, stop = batch.failed, len(rows)
        if known is not None:
            stop = next(at for at in range(start, stop) if rows[at][0] == known[0])
        self._emitted = None
        ran, error = attempt_strides(
            self._callee_in(tx), rows[start:stop], types, tx, user, self._pace.stride, late, self._unless_the_world
        )
        end = start + ran
        if error is None and known is not None and end == stop:  # this attempt was made, and counts
            error, batch.failed = known[1], None
        self._pace.ran(ran)
        settling.commit_events(ran, from_row(rows[end - 1], types) if ran else None)
        if error is None:
            return end, None
        work = duty.work(from_row(rows[end], types))
        work.outcome = self._outcome(work, error)
        return end, work

    def _run_span(
        self, tx: StoreTx, settling: Settling, batch: Batch, user: Tx, start: int, turn: Turn
    ) -> tuple[int, Work | None]:
        """One stride of which some may have to queue behind a head."""
        span = self._span(batch, start, settling, turn)
        self._call_span(tx, user, span, batch, start)
        self._pace.ran(len(span.run))
        if batch.alone is not None and span.run:
            settling.commit(batch.alone)
        else:
            settling.commit_events(len(span.run), span.run[-1] if span.run else None)
        for follower in span.follow:
            settling.follow(follower)
        return span.end, span.failed

    def _span(self, batch: Batch, start: int, settling: Settling, turn: Turn) -> Span:
        """The next events up to a stride of calls: which to call, which queue behind a head."""
        duty = self.duty
        parked, parking = duty.lanes.names, settling.parking
        span = Span([], [], start)
        for event in duty.events(batch.rows[start : start + self._pace.stride]):
            work = batch.alone or duty.work(event)
            if batch.failed and batch.failed[0] == event.position:  # this attempt was made, and counts
                work.outcome, batch.failed = self._outcome(work, batch.failed[1]), None
            if work.lane is not None and (work.lane in parked or work.lane in parking):
                if duty.lanes.size(work.lane) + parking.get(work.lane, 0) >= duty.engine.settings.lane_max:
                    turn.lane_full = work.lane
                    break
                span.follow.append(work)
            elif work.outcome is not None:  # no key, or its crashes are over: it is the one that fails
                span.failed = work
                break
            else:
                span.run.append(event)
            span.end += 1
        return span

    def _call_span(self, tx: StoreTx, user: Tx, span: Span, batch: Batch, start: int) -> None:
        """Call the function for each; if one fails, only what came before it stays in the span."""
        if not span.run:
            return
        duty, again = self.duty, False

        def run(function: Function, events: Sequence[Event[Any]]) -> tuple[int, BaseException | None]:
            nonlocal again
            if again:
                for event in events:  # the function must not see its own changes
                    event.forget()
            self._emitted, again = None, True
            return attempt_each(function, events, user)

        good, error = isolate(tx, self._callee_in(tx), span.run, len(span.run), run, self._unless_the_world, never)
        if error is not None:
            event = span.run[good]
            work = batch.alone or duty.work(event)
            work.outcome = self._outcome(work, error)
            at = next(n for n in range(start, span.end) if batch.rows[n][0] == event.position)
            span.cut(work, at)

    def _call(self, tx: StoreTx, user: Tx, work: Work) -> bool:
        """One call of the function, behind a savepoint of the caller's; its outcome is in the work."""
        if work.outcome is not None:
            return False  # no key, or its crashes are over
        assert work.event is not None
        user.event, self._emitted = work.event, None
        callee = self._callee_in(tx)
        error = attempt(tx.pipelined(callee), work.event, user)
        if tx.answers() is not None:  # once more, so that the function hears of it where it happens
            tx.undo()
            work.event.forget()
            self._emitted = None
            error = attempt(tx.checked(callee), work.event, user)
        work.outcome = out.APPLIED if error is None else self._outcome(work, error)
        return error is None

    def _callee_in(self, tx: StoreTx) -> Function:
        return tx.strict(self._callee) if self._strict else self._callee

    def _outcome(self, work: Work, error: BaseException) -> Outcome:
        engine = self.duty.engine
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            engine.request_stop(f"{self.duty.subscription.name} raised {type(error).__name__}")
        self._unless_the_world(error)
        reruns, limit = self._reruns.get(work.position, 0), engine.settings.error_text_max
        outcome = outcome_of(error, _never, reruns=reruns, limit=limit)
        if self.duty.subscription.on_error is None:  # nobody will look at it again; it holds our frames, which hold it
            error.__traceback__ = None
        return outcome

    def _unless_the_world(self, error: BaseException) -> None:
        """SQLite may have ended the transaction, savepoints and all: nothing of it can be kept."""
        if self.duty.engine.store.is_the_world(error):
            raise StoreError(f"{self.duty.subscription.name}: {error}") from error

    def _settle_bad(self, settling: Settling, work: Work, action: Action, turn: Turn) -> bool:
        """Write a failed event's fate; False if it must be run again later, with nothing written."""
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
        """batch=True: the whole list at once. False: each event must run by itself."""
        duty = self.duty
        events, followers = duty.events(batch.rows), []
        if batch.alone is not None:
            return False
        quiet = [settling.is_quiet(event.position) for event in events] if settling.quiet_until else []
        if any(quiet) and not all(quiet):
            return False  # a rebuild: the emissions of some are to be left out, those of others not
        if duty.lanes or duty.subscription.key_by is not None:
            works = [duty.work(event) for event in events]
            followers = [work for work in works if work.lane in duty.lanes.names]
            held = {work.position for work in followers}
            full = any(duty.lanes.size(w.lane) + len(held) > duty.engine.settings.lane_max for w in followers)
            if full or any(work.outcome is not None for work in works):
                return False
            events = [event for event in events if event.position not in held]
        if events and not self._call_list(tx, events):
            return False
        settling.commit_events(len(events), events[-1] if events else None)
        for work in followers:
            settling.follow(work)
        return True

    def _call_list(self, tx: StoreTx, events: list[Event[Any]]) -> bool:
        user = Tx(tx, self._emit)
        user.event, self._emitted = events[0], None
        tx.savepoint()
        error = attempt(tx.pipelined(self._function), events, user)
        good = tx.answers() is None and error is None
        if not good:
            self._in_strides = STRIDES_AFTER_FAILURE
            if error is not None:
                self._outcome(self.duty.work(events[0]), error)  # the world's fault ends the transaction here
            tx.undo()
        tx.keep()
        return good

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
            settling = self._settling = Settling(tx, duty, gathers=True)
            hit("letter.fenced")
            if settling.paused:
                duty.paused = True
                return
            if settling.stale:
                duty.load_lanes(tx, settling.fresh_version)
            rows = tx.letters.events([head.letter for _, head in due])
            for lane, head in due:
                self._drain(tx, settling, lane, duty.lanes.head(lane, head.letter), rows, turn, started, alone)
            self._escalate_if_swallowed()
            settling.finish(duty.window.position)
            hit("letter.before_commit")
        hit("letter.committed")
        duty.suspects -= {head.letter for _, head in due}
        self._after(settling, started)

    def _drain(
        self, tx: StoreTx, settling: Settling, lane: str | None, head: Head | None, rows: dict[int, Row], turn: Turn,
        started: float, alone: Work | None,
    ) -> None:  # fmt: skip
        engine, user = self.duty.engine, Tx(tx, self._emit)
        while head is not None and head.state == "retrying" and head.due_at <= settling.now:
            if alone is None and engine.env.clock.monotonic() - started > engine.settings.batch_time_max:
                return
            row = rows.get(head.letter) or tx.letters.event(head.letter)
            if row is None:
                turn.halt = f"letter {head.letter}: its event at {head.position} is no longer in the log"
                return
            work = self.duty.work(from_row(row, engine.types))
            work.lane, work.head, work.attempt = lane, head, head.attempts + 1
            if alone is not None:
                work.alone, work.outcome = True, alone.outcome or work.outcome
            tx.savepoint()
            good = self._call(tx, user, work)
            if not good:
                tx.undo()
            settled = (
                settling.commit(work) if good else self._settle_bad(settling, work, decision(self.duty, work), turn)
            )
            if good and not settled:  # an operator was faster: the effects are dropped
                tx.undo()
            tx.keep()
            turn.settled += 1
            if not (settled and good) or lane is None or alone is not None:
                return
            head = self.duty.head(tx, lane, settling.now)

    # ------------------------------------------------------------ helpers

    def _emit(self, event: Event[Any], log: Any, type: Any, data: Any, key: Any, **how: Any) -> str:
        duty = self.duty
        if not duty.durable:
            self._escalating = True
            raise Escalate
        assert self._settling is not None
        if key is SAME_KEY and duty.subscription.batch:
            raise UsageError("emit in a batch=True projection needs key=: a list of events has no key of its own")
        chosen = duty.work(event).key if key is SAME_KEY else key
        self._ordinal = self._ordinal + 1 if self._emitted is event else 0
        self._emitted = event
        emission = duty.emitter.make(event, self._ordinal, log, type, data, key=chosen, **how)
        self._settling.emit(event.position, emission)
        return emission.event.id

    def _after(self, settling: Settling, started: float) -> None:
        """Committed. A dead letter is announced only when it survives a power cut, and nothing overtakes it."""
        settling.learn(self.duty.engine.env.clock.monotonic() - started)
        if self._untold or (settling.buried and not self.duty.durable):
            self._untold.append(settling)
        else:
            tell(settling)

    def _announce(self) -> None:
        """Many turns, one sync."""
        untold, self._untold = self._untold, []
        if untold:
            self.duty.engine.store.sync()
        for settling in untold:
            tell(settling)


def _never(_: BaseException) -> bool:
    return False
