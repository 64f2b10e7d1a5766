"""Projections: whole batches inside one transaction, the failing event taken back or isolated by re-running its stride.

Functions touch nothing but the transaction, so running them again is harmless. A batch runs without
any savepoint first; after a failure that could not be taken back, batches run in strides of a few events
for a while, each behind a savepoint, which bounds what the next one costs. All of it runs where writing happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redrive.context import Tx
from redrive.errors import RedriveError
from redrive.event import Event, forget_all, from_row
from redrive.failpoints import hit
from redrive.policy import action as act
from redrive.policy.action import Action
from redrive.policy.lanes import Head
from redrive.runner.anew import run_with_care
from redrive.runner.at_once import try_at_once
from redrive.runner.batch import Batch, Nothing, Span, Turn, handed_batch, has_handed, next_batch
from redrive.runner.call import attempt, is_plain
from redrive.runner.caller import Caller
from redrive.runner.controls import perform
from redrive.runner.duty import JOINED_MAX, Duty, Work, edited
from redrive.runner.losses import at_risk
from redrive.runner.open_letters import catch_up_within
from redrive.runner.settle import Settling, decision, tell
from redrive.runner.strides import OneFailed, Pace, attempt_all, isolate
from redrive.runner.sweep import Flow, Sweep
from redrive.store.port import Disbelief, LateError, StoreTx
from redrive.store.sql import Row

TURNS_TIME_MAX = 0.1  # seconds; a lease and letters that are due want to be looked at in between
TOLD_AFTER_MAX = 0.5  # seconds until a dead letter is told, while there is a backlog: all its turns share a sync
ASIDE_SHARE = 1.5  # of `batch_time_max`: when what was put aside is late, too; a slow batch leaves it no other time
LETTERS_MAX = 500  # lanes retried per transaction

Failed = list[tuple[Work, Action]]


class Projector:
    """Runs one projection's turns; the writer thread calls it."""

    def __init__(self, duty: Duty) -> None:
        self.duty = duty
        self.caller = Caller(duty)
        self.pace = Pace()
        self.untold: list[Settling] = []  # committed, with dead letters in it that are not durable yet
        self._tell_by = 0.0
        self._met_full_lane = False
        self.is_slow = True  # would a few calls hold the write lock for too long? not known yet
        self.tried: dict[str, BaseException] = {}  # by id: what an attempt raised of which nothing else is left

    def turns(self, stopping: Callable[[], bool]) -> Turn:
        """Turn after turn while there is a backlog and nobody else wants to write: one hop for many batches.

        Letters that become due meanwhile wait for the next hop: a transaction for few costs as much as for many.
        """
        store, clock = self.duty.engine.store, self.duty.engine.env.clock
        until = clock.monotonic() + TURNS_TIME_MAX
        try:
            turn = self.turn()
            while turn.goes_on and clock.monotonic() < until and not stopping():
                if store.is_wanted and not has_handed(self.duty):  # what is in memory would have to be read later
                    break
                turn = self.turn(letters=False)
        except RedriveError:  # what was committed before it is to be told all the same
            self.announce()
            raise
        finally:
            self.caller.settling = None  # a transaction that failed is over, too
            self.duty.engine.alone.leave(self.duty)
        if self.untold and (not turn.goes_on or clock.monotonic() >= self._tell_by):
            self.announce()
        return turn

    def turn(self, *, letters: bool = True) -> Turn:
        """Due letters first, then the next batch."""
        turn, duty = Turn(), self.duty
        looks = self._is_blocked or self._met_full_lane  # nothing may be settled, so that settling does not look
        batch = None if duty.paused or duty.controls or looks else handed_batch(duty)
        if batch is None:
            batch = self._read(looks=looks)
        if duty.controls:
            perform(duty, lambda lane, letter: False)  # between two turns every lane is idle
            with duty.engine.store.reading() as tx:
                batch = next_batch(duty, tx)
        if duty.paused:
            return turn
        due = duty.lanes.take_due(duty.engine.env.clock.now(), 1 if duty.suspects else LETTERS_MAX) if letters else []
        if duty.holds:
            due = duty.holds.sift(due, duty.lanes)
            duty.holds.drop_ended()
        if due:
            try:
                run_with_care(self.caller, self.pace, lambda: self._letters(due, turn), turn)
            finally:  # what was not run, or not committed, is still due; a settled one is not the head any more
                for lane, head in due:
                    if duty.lanes.head(lane, head.letter) == head:
                        duty.lanes.put(lane, head)
        waits = turn.stopped or turn.halt or turn.rerun_after or duty.paused or self._is_blocked
        if batch is not None and not waits:
            try:
                run_with_care(self.caller, self.pace, lambda: self._take_in(batch, turn), turn, batch)
            except Nothing:
                pass
            finally:
                batch.failed.clear()  # it holds our frames, which hold it
        self._met_full_lane = bool(turn.lane_full)
        return turn

    def _read(self, *, looks: bool) -> Batch | None:
        """From the log; None if there is a pause, or an operator asks for something."""
        duty = self.duty
        with duty.engine.store.reading(snapshot=False) as tx:
            batch = None if duty.paused or duty.controls else next_batch(duty, tx)
            if batch is None or not batch.events or looks:  # else settling looks, before anything is done
                duty.refresh(tx)
                if duty.paused or duty.controls:
                    batch = None
                elif batch is None:
                    batch = next_batch(duty, tx)
        return batch

    @property
    def _is_blocked(self) -> bool:
        """Does everything wait for one that failed?"""
        return self.duty.subscription.order == "total" and bool(self.duty.lanes)

    # ------------------------------------------------------------ intake

    def _take_in(self, batch: Batch, turn: Turn) -> None:
        if batch.last == self.duty.window.position:
            return
        hit("batch.read")
        if batch.events:
            self._take_care(batch)
        try:
            self._recall(batch)
            if not self._commit_believing(batch, turn):
                self._commit(batch, turn)
            return
        except (OneFailed, LateError) as failed:
            self._learn_care(batch, failed)
        # Out here: what a function raises now must not seem to be caused by our own signal.
        if self.pace.holds:
            try:
                self._commit(batch, turn)
                return
            except OneFailed as failed:
                self._learn_care(batch, failed)
        self._commit(batch, turn)

    def _recall(self, batch: Batch) -> None:
        """One of them has failed where it landed: that attempt counts."""
        tried, self.tried = self.tried, {}
        for event in batch.events if tried else ():
            if event.id in tried:
                raise OneFailed(event, tried[event.id])

    def _learn_care(self, batch: Batch, failed: OneFailed | LateError) -> None:
        """Of many that ran without a savepoint: all of it again, with statements held, or else in strides."""
        if failed.args:
            event, error = failed.args
            batch.failed[event.position] = error, error.__traceback__
        if self.pace.holds or not self._can_hold:
            self.pace.be_wary()
        else:
            self.pace.hold()

    @property
    def _can_hold(self) -> bool:
        """Whoever emits writes at once; and constraints are looked at when the statements have run."""
        return self.duty.engine.store.can_hold and not (self.duty.durable or self.caller.is_strict)

    def _commit_believing(self, batch: Batch, turn: Turn) -> bool:
        """False: progress is not as we know it, and nothing was written."""
        try:
            self._commit(batch, turn, believes=True)
        except Disbelief:
            return False
        return True

    def _commit(self, batch: Batch, turn: Turn, *, believes: bool = False) -> None:
        """One transaction: fence, functions, fates, progress.

        `believes`: where the store is far, the fence is not waited for: functions touch nothing but the transaction.
        """
        duty = self.duty
        started, alone = duty.engine.env.clock.monotonic(), batch.alone is not None
        with at_risk(batch.events, alone=alone), duty.engine.store.transaction(durable=duty.durable) as tx:
            believes = believes and tx.sql.is_far and batch.alone is None
            settling = self.caller.settling = Settling(tx, duty, gathers=True, believes=believes)
            hit("batch.fenced")
            if settling.paused:
                duty.paused = True
                return
            if settling.stale:
                catch_up_within(duty, tx, settling.fresh_version)
            ran = self._apply(tx, settling, batch, turn, started)
            hit("batch.called")
            last = batch.last
            if ran < len(batch.events):  # cut short: what follows is read again
                last = batch.events[ran - 1].position if ran else duty.window.position
            if last == duty.window.position:
                raise Nothing
            self.caller.escalate_if_swallowed()
            settling.finish(last, (event.position for event in batch.events[:ran]))
            if batch.handed:  # who appends later rings later; whoever has rung already may have appended behind them
                batch.full = tx.logs.last(duty.log_id) > batch.last
            hit("batch.before_commit")
        self.committed(settling, batch, turn, ran, started)

    def committed(self, settling: Settling, batch: Batch, turn: Turn, ran: int, started: float) -> Turn:
        """The transaction is known to be: what is in memory may change, and who listens is told."""
        hit("batch.committed")
        seconds = self._after(settling, started)
        self.is_slow = seconds * JOINED_MAX > ran * self.duty.engine.settings.batch_time_max
        if self.duty.window.position > self.duty.horizon:
            self.duty.unsure = max(0, self.duty.unsure - ran)
        turn.settled += ran
        turn.more = batch.full or ran < len(batch.events) or batch.alone is not None
        return turn

    def _take_care(self, batch: Batch) -> None:
        """After a crash what may have caused it runs alone, behind a mark."""
        duty = self.duty
        first = batch.events[0]
        if first.position <= duty.horizon or duty.unsure:
            batch.alone = duty.work(edited(duty, first))
            duty.mark_alone(batch.alone)
            del batch.events[1:]
            batch.last = first.position

    def _apply(self, tx: StoreTx, settling: Settling, batch: Batch, turn: Turn, started: float) -> int:
        """Run the functions; returns how many of them have their fate written."""
        duty = self.duty
        if duty.subscription.batch and not self.caller.is_strict and self._apply_list(tx, settling, batch):
            return len(batch.events)
        clock, limit = duty.engine.env.clock, duty.engine.settings.batch_time_max
        user, done = self.caller.lent(tx), 0
        plain = not (duty.lanes or duty.edits or batch.alone or duty.subscription.key_by or duty.holds)
        at_once = plain and self.pace.next_batch()

        def late(share: float = 1.0) -> bool:
            return clock.monotonic() - started > share * limit

        while done < len(batch.events) and not turn.lane_full:
            if plain and not settling.parking:
                done, failed = self._run_flow(tx, settling, batch, user, done, late, at_once=at_once)
            else:
                done, failed = self._run_span(tx, settling, batch, user, done, turn, late)
            for work, action in failed:
                if not self._settle_bad(settling, work, action, turn):  # nothing behind it was called
                    return done - 1
            if late() or (duty.subscription.order == "total" and settling.parking):
                return done
        return done

    def _run_flow(
        self, tx: StoreTx, settling: Settling, batch: Batch, user: Tx, start: int, late: Callable[..., bool], *,
        at_once: bool,
    ) -> tuple[int, Failed]:  # fmt: skip
        """Nothing is parked, nobody follows anybody: how far it went, and which of them failed."""
        events = batch.events[start:] if start else batch.events
        function, handed = self.caller.callee(tx), user
        hold = tx.hold if at_once and self.pace.holds and self._can_hold else None
        if hold is not None:
            puts_off = is_plain if self.duty.subscription.order == "none" else None
            handed = self.caller.user(hold)
            hold.begin(handed, puts_off)
        sweep = Flow(self.caller, tx, handed, batch, late, late if at_once else None)
        if at_once:
            ran = attempt_all(tx, function, events, sweep)
        else:
            ran = isolate(tx, function, events, self.pace, sweep)
        if hold is not None:
            hold.forget()
        sweep.end(lambda: late(ASIDE_SHARE), user)
        if hold is not None and sweep.failed:
            self.pace.hold()
        if ran:
            settling.commit_events(ran - len(sweep.failed), events[ran - 1])
        return start + ran, sweep.failed

    def _run_span(
        self, tx: StoreTx, settling: Settling, batch: Batch, user: Tx, start: int, turn: Turn, late: Callable[[], bool]
    ) -> tuple[int, Failed]:
        """One stride of which some may have to queue behind a head."""
        span = self._span(batch, start, settling, turn)
        failed = self._call_span(tx, user, span, batch, start, late)
        if batch.alone is not None and span.run:
            settling.commit(batch.alone)
        else:
            settling.commit_events(len(span.run), span.run[-1] if span.run else None)
        for follower in span.follow:
            settling.follow(follower)
        return span.end, failed

    def _span(self, batch: Batch, start: int, settling: Settling, turn: Turn) -> Span:
        """The next events up to a stride of calls: which to call, which queue behind a head."""
        duty = self.duty
        parked, parking = duty.lanes.names, settling.parking
        following: dict[str, int] = {}  # in this span
        span = Span([], [], start)
        for event in duty.edited(batch.events[start : start + self.pace.stride]):
            work = batch.alone or duty.work(event)
            if event.position in batch.failed:  # this attempt was made, and counts
                work.outcome = self.caller.outcome(work, batch.found(event.position))
            if work.lane is not None and (work.lane in parked or work.lane in parking):
                lane, new = work.lane, following.get(work.lane, 0)
                size = max(1, duty.lanes.size(lane))  # a head that was parked in this transaction is not in there yet
                if size + parking.get(lane, 0) + new >= duty.engine.settings.lane_max:
                    turn.lane_full = lane
                    break
                following[lane] = new + 1
                span.follow.append(work)
            elif work.outcome is not None or (duty.holds and duty.holds.keep_back(work)):
                # No key, a held one, or its crashes are over: it is the one that fails.
                span.failed = work
                break
            else:
                span.run.append(event)
            span.end += 1
        return span

    def _call_span(
        self, tx: StoreTx, user: Tx, span: Span, batch: Batch, start: int, late: Callable[[], bool]
    ) -> Failed:
        """Call the function for each; only what went well, and what was called before it ended, stays in the span."""
        caller = self.caller
        sweep = Sweep(caller, tx, user, batch, late)
        if span.run:
            ran = isolate(tx, caller.callee(tx), span.run, self.pace, sweep)
            last, bad = span.run[ran - 1].position, {work.position for work, _ in sweep.failed}
            if ran < len(span.run) or last in bad:
                end = next(at for at in range(start, span.end) if batch.events[at].position == last)
                span.cut(last, end + 1)
            span.run = [event for event in span.run if event.position not in bad]
        if span.failed is not None:
            function = tx.checked(caller.callee(tx))
            action = try_at_once(self.duty, span.failed, lambda work: caller.retry(tx, user, work, function), late, tx)
            sweep.failed.append((span.failed, action))
            span.end += 1
        return sweep.failed

    def _settle_bad(self, settling: Settling, work: Work, action: Action, turn: Turn) -> bool:
        """Write a failed event's fate; False if it must be run again later, with nothing written."""
        reruns = self.caller.reruns
        match action:
            case act.Rerun(wait):
                reruns[work.position] = reruns.get(work.position, 0) + 1
                turn.rerun_after = max(wait, 0.001)
                return False
            case act.Defer():
                turn.stopped = True
                return False
            case act.Halt(reason):
                turn.halt = reason
                return False
        reruns.pop(work.position, None)
        return settling.write(work, action)

    def _apply_list(self, tx: StoreTx, settling: Settling, batch: Batch) -> bool:
        """batch=True: the whole list at once. False: each event must run by itself."""
        duty = self.duty
        events, followers = duty.edited(batch.events), []
        if batch.alone is not None or self.caller.is_apart:
            return False
        quiet = [settling.is_quiet(event) for event in events] if settling.quiet_until else []
        if any(quiet) and not all(quiet):
            return False  # a rebuild: the emissions of some are to be left out, those of others not
        if duty.lanes or duty.subscription.key_by is not None or duty.holds:
            works = [duty.work(event) for event in events]
            followers = [work for work in works if work.lane in duty.lanes.names]
            held = {work.position for work in followers}
            full = any(duty.lanes.size(w.lane) + len(held) > duty.engine.settings.lane_max for w in followers)
            if full or any(w.outcome is not None or duty.holds.keep_back(w) for w in works if w.position not in held):
                return False
            events = [event for event in events if event.position not in held]
        if events and not self._call_list(tx, events):
            return False
        settling.commit_events(len(events), events[-1] if events else None)
        for work in followers:
            settling.follow(work)
        return True

    def _call_list(self, tx: StoreTx, events: list[Event[Any]]) -> bool:
        user = self.caller.lent(tx)
        user.event = events[0]
        self.caller.begin()
        forget_all(events)
        tx.savepoint()
        try:
            error = attempt(tx.pipelined(self.caller.function), events, user)
        finally:  # who runs again must not see its own changes
            forget_all(events)
        good = tx.answers() is None and error is None
        if not good:
            self.pace.be_wary()
            if error is not None:
                self.caller.outcome(self.duty.work(events[0]), error)  # the world's fault ends the transaction here
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
        started, risk = duty.engine.env.clock.monotonic(), at_risk([head for _, head in due], alone=alone is not None)
        with risk, duty.engine.store.transaction(durable=duty.durable) as tx:
            settling = self.caller.settling = Settling(tx, duty, gathers=True)
            hit("letter.fenced")
            if settling.paused:
                duty.paused = True
                return
            if settling.stale:
                catch_up_within(duty, tx, settling.fresh_version)
            rows = tx.letters.events([head.letter for _, head in due])
            heads, ran = [(lane, head.letter, duty.lanes.head(lane, head.letter)) for lane, head in due], turn.settled
            for lane, _, found in heads:
                self._drain(tx, settling, lane, found, rows, turn, started, alone)
                if duty.ended and found is not None and found.position in duty.ended:
                    break  # those behind it may do the same: each has to be found by itself
            if alone is not None and turn.settled == ran:  # an operator or the clock makes it wait: nobody runs now
                tx.keyed.excuse(duty.member)
            self.caller.escalate_if_swallowed()
            settling.finish(duty.window.position)
            hit("letter.before_commit")
        hit("letter.committed")
        self._after(settling, started)
        duty.suspects -= {
            letter
            for lane, letter, head in heads
            if head is None or (now := duty.lanes.head(lane, letter)) is None or now.rev != head.rev
        }

    def _drain(
        self, tx: StoreTx, settling: Settling, lane: str | None, head: Head | None, rows: dict[int, Row], turn: Turn,
        started: float, alone: Work | None,
    ) -> None:  # fmt: skip
        engine, user = self.duty.engine, self.caller.lent(tx)
        while head is not None and head.state == "retrying" and head.due_at <= settling.now:
            if alone is None and engine.env.clock.monotonic() - started > engine.settings.batch_time_max:
                return
            row = rows.get(head.letter) or tx.letters.event(head.letter)
            if row is None:
                turn.halt = f"letter {head.letter}: its event at {head.position} is no longer in the log"
                return
            work = self.duty.work(from_row(row, engine.types))
            work.lane, work.head, work.attempt = lane, head, head.attempts + 1
            if self.duty.holds and (until := self.duty.holds.until(work.key)) is not None:
                self.duty.lanes.hold(lane, head, until)  # not a head that is to be one only after the commit
                return
            if alone is not None:
                work.alone, work.outcome = True, alone.outcome or work.outcome
            tx.savepoint()
            good = self.caller.call(tx, user, work)
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

    def _after(self, settling: Settling, started: float) -> float:
        """Committed. A dead letter is announced only when it survives a power cut, and nothing overtakes it."""
        self.caller.settling = None
        seconds = self.duty.engine.env.clock.monotonic() - started
        settling.learn(seconds)
        if self.untold or (settling.buried and not self.duty.durable):
            if not self.untold:
                self._tell_by = self.duty.engine.env.clock.monotonic() + TOLD_AFTER_MAX
            self.untold.append(settling)
        else:
            tell(settling)
        return seconds

    def announce(self) -> None:
        """Tell what was not told yet: many turns, one sync."""
        untold, self.untold = self.untold, []
        if untold:
            self.duty.engine.store.sync()
            tell(*untold)
