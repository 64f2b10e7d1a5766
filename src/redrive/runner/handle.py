"""Handlers: lanes in memory, a few long-lived workers, effects settled in groups.

A key is busy from dispatch until its settle commits. One coordinator takes in, dispatches and settles,
one hop to the store per round; workers only call functions and put the outcome into the outbox.
"""

from __future__ import annotations

from collections import deque

from redrive.context import Ctx
from redrive.errors import BugError, Fenced
from redrive.event import from_row
from redrive.failpoints import hit
from redrive.observe import signals as sig
from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.lanes import Head
from redrive.runner.call import attempt, attempt_async, outcome_of, overran
from redrive.runner.duty import Duty, Work
from redrive.runner.settle import Settling, decision
from redrive.store.sql import Row


class Desk:
    """Works by lane: which may run now, which wait for their lane, which are done and unsettled."""

    def __init__(self, duty: Duty) -> None:
        self.duty = duty
        self.ready: deque[Work] = deque()
        self.outbox: deque[Work] = deque()
        self.running: set[Work] = set()
        self.alone: deque[Work] = deque()  # after a crash: one at a time, before anything else
        self._waiting: dict[str, deque[Work]] = {}  # lanes that are busy, with what queues behind

    def __len__(self) -> int:
        queued = sum(len(queue) for queue in self._waiting.values())
        return len(self.ready) + len(self.outbox) + len(self.running) + len(self.alone) + queued

    def busy(self, lane: str | None) -> bool:
        """Has the lane work that is not settled?"""
        return lane is not None and lane in self._waiting

    def add(self, work: Work) -> None:
        """A new event, or a letter that is due: it runs when its lane is free."""
        lane = work.lane
        if lane is None:
            self._start(work)
        elif lane in self._waiting:
            if work.head is None:
                self._waiting[lane].append(work)
            else:  # a head precedes everything that queued up behind it
                self._waiting[lane].appendleft(work)
        else:
            self._waiting[lane] = deque()
            self._start(work)

    def _start(self, work: Work) -> None:
        """The lane is this work's now; look again whether it may run."""
        lanes = self.duty.lanes
        if work.outcome is not None:  # no key: its fate is known
            self.outbox.append(work)
        elif work.head is not None:
            if lanes.head(work.lane, work.head.letter) == work.head:
                self._run(work)
            else:  # an operator changed the letter since: the new head comes by itself
                self.free(work)
        elif lanes.parked(work.lane):
            work.follow = True
            self.outbox.append(work)
        else:
            self._run(work)

    def _run(self, work: Work) -> None:
        (self.alone if self.duty.needs_care(work) else self.ready).append(work)

    def free(self, work: Work) -> None:
        """Settled (or given up): the next of the lane may start."""
        lane = work.lane
        if lane is None or work.chained:
            return
        queue = self._waiting[lane]
        if not queue:
            del self._waiting[lane]
            return
        if self.duty.lanes.parked(lane) and queue[0].head is None:
            for follower in queue:  # all of them queue behind the head; the last one frees the lane
                follower.follow = follower.chained = True
            queue[-1].chained = False
            self.outbox.extend(queue)
            queue.clear()
        else:
            self._start(queue.popleft())


class Handling:
    """One handler's rounds: the part that runs where writing happens, and what it needs around it."""

    def __init__(self, duty: Duty) -> None:
        self.duty = duty
        self.desk = Desk(duty)
        self.caught_up = False
        self.lane_full = ""
        self.halt = ""

    # ------------------------------------------------------------ intake

    def room(self) -> int:
        """How many events may be taken in."""
        duty = self.duty
        if duty.paused or self.halt:
            return 0
        if duty.subscription.order == "total":
            return 0 if duty.lanes or len(self.desk) else 1
        return max(0, duty.engine.settings.window_max - max(len(self.desk), len(duty.window)))

    def take_in(self, rows: list[Row]) -> None:
        """Queue what the filter asks for; stop before an event of a full lane."""
        duty = self.duty
        window, subscription, lane_max = duty.window, duty.subscription, duty.engine.settings.lane_max
        self.lane_full = ""
        for row in rows:
            if not subscription.wants(row[2]):
                window.skip(row[0])
                continue
            work = duty.work(duty.event(row))
            if duty.lanes and duty.lanes.size(work.lane) >= lane_max:
                self.lane_full = work.lane or ""
                return
            if window.take(row[0]):
                self.desk.add(work)

    def take_letters(self, due: list[tuple[str | None, Head, Row | None]]) -> None:
        """Queue heads that are due."""
        for lane, head, row in due:
            if row is None:
                self.halt = f"letter {head.letter}: its event at {head.position} is no longer in the log"
                continue
            work = self.duty.work(from_row(row, self.duty.engine.types))
            work.lane, work.head, work.attempt = lane, head, head.attempts + 1
            self.desk.add(work)

    # ------------------------------------------------------------ calling

    def prepare(self, work: Work) -> Ctx:
        """The context of one attempt."""
        duty, event = self.duty, work.event
        assert event is not None
        edits = work.head.edits if work.head else duty.edits.get(work.position, (0, b""))[0]
        name = duty.subscription.name
        idempotency_key = f"{name}:{event.id}:{edits}" if edits else f"{name}:{event.id}"
        ctx = Ctx(event, work.key, work.attempt, idempotency_key, duty.epoch, duty.engine.deps(), duty.load_state,
                  duty.emitter)  # fmt: skip
        work.ctx = ctx
        return ctx

    def finish(self, work: Work, error: BaseException | None) -> None:
        """The function returned or raised."""
        engine = self.duty.engine
        if work.timed_out and self.duty.subscription.timeout is not None:
            work.outcome, work.effects = overran(self.duty.subscription.timeout), None
        elif error is not None:
            if isinstance(error, SystemExit | KeyboardInterrupt):
                engine.request_stop(f"{self.duty.subscription.name} raised {type(error).__name__}")
            limit = engine.settings.error_text_max
            work.outcome = outcome_of(error, engine.store.is_the_world, reruns=work.reruns, limit=limit)
        else:
            work.outcome = out.APPLIED
        work.ctx = None

    def call_sync(self, work: Work) -> None:
        """Run a plain function, on a thread of the pool."""
        ctx = self.prepare(work)
        error = attempt(self.duty.subscription.function, *(work.event, ctx)[: self.duty.subscription.arguments])
        self.finish(work, error or self._collect(work, ctx))

    def _collect(self, work: Work, ctx: Ctx) -> BaseException | None:
        """What the function asked for; a state that cannot be stored is its failure."""

        def collect() -> None:
            work.effects = ctx.effects()

        return attempt(collect) if ctx.touched else None

    async def call_async(self, work: Work) -> None:
        """Run a coroutine function on the loop; our own cancellation passes through."""
        ctx = self.prepare(work)
        arguments = (work.event, ctx)[: self.duty.subscription.arguments]
        error = await attempt_async(self.duty.subscription.function, arguments, lambda: work.timed_out)
        self.finish(work, error or self._collect(work, ctx))

    # ------------------------------------------------------------ settling

    def round(self, group: list[Work], room: int, due: list[tuple[str | None, Head]]) -> Round:
        """Settle a group, then read what there is room for: one hop. Runs where writing happens."""
        result = Round()
        if group or self.duty.window.plan(()).prefix != self.duty.window.position:
            self._settle(group, result)
        with self.duty.engine.store.reading() as tx:
            self.duty.refresh(tx)
            if due:
                result.letters = [(lane, head, tx.letters.event(head.letter)) for lane, head in due]
            if room and not self.duty.paused:
                self.duty.log_id = self.duty.log_id or tx.logs.id_of(self.duty.subscription.source)
                result.rows = tx.logs.after(self.duty.log_id, self.duty.window.cursor, room)
        return result

    def _settle(self, group: list[Work], result: Round) -> None:
        """All at once; if one cannot be settled, each behind a savepoint, and the one gets its own fate."""
        hit("round.called")
        started = self.duty.engine.env.clock.monotonic()
        try:
            settling = self._write(group, result, isolate=False)
        except _Isolate:
            settling = self._write(group, result, isolate=True)
        hit("round.committed")
        settling.learn(self.duty.engine.env.clock.monotonic() - started)

    def _write(self, group: list[Work], result: Round, *, isolate: bool) -> Settling:
        result.clear()
        with self.duty.engine.store.transaction() as tx:
            settling = Settling(tx, self.duty)
            hit("round.fenced")
            for work in group:
                if work.follow:
                    settling.follow(work)
                elif isinstance(work.outcome, out.Applied):
                    self._write_good(settling, work, result, isolate)
                else:
                    self._write_bad(settling, work, result)
            hit("round.effects")
            settling.finish()
            hit("round.before_commit")
        return settling

    def _write_good(self, settling: Settling, work: Work, result: Round, isolate: bool) -> None:
        if work.effects is None:
            settling.commit(work)
            return
        tx = settling.tx
        if isolate or work.head is not None:
            tx.savepoint()
        error = attempt(self._apply_effects, settling, work)
        if isinstance(error, Fenced | BugError) or (error and self.duty.engine.store.is_the_world(error)):
            raise error
        if error is not None:
            if not isolate and work.head is None:
                raise _Isolate from error
            tx.undo()
            tx.keep()
            work.effects = None
            work.outcome = outcome_of(error, self.duty.engine.store.is_the_world, reruns=work.reruns)
            self._write_bad(settling, work, result)
            return
        if isolate or work.head is not None:
            tx.keep()

    @staticmethod
    def _apply_effects(settling: Settling, work: Work) -> None:
        settling.effects(work)
        if not settling.commit(work):  # an operator was faster: the effects are dropped
            settling.tx.undo()

    def _write_bad(self, settling: Settling, work: Work, result: Round) -> None:
        action = decision(self.duty, work)
        match action:
            case act.Rerun(wait):
                result.reruns.append((work, wait))
            case act.Defer():
                result.deferred.append(work)
            case act.Halt(reason):
                result.halt = reason
                result.deferred.append(work)
            case _:
                settling.write(work, action)

    def mark_alone(self, work: Work) -> None:
        """Before an event that may have killed the process; runs where writing happens."""
        if work.head is not None:
            self.duty.suspects.discard(work.head.letter)
        self.duty.mark_alone(work)

    def stuck(self, now: float) -> list[Work]:
        """Works that overran the timeout just now; their ctx is dead from here on."""
        timeout = self.duty.subscription.timeout
        if timeout is None:
            return []
        late = [work for work in list(self.desk.running) if not work.timed_out and now - work.started >= timeout]
        for work in late:
            work.timed_out = True
            if work.ctx is not None:
                work.ctx.kill()
            assert work.event is not None
            stuck = sig.HandlerStuck(self.duty.subscription.name, work.event.id, now - work.started)
            if not self.duty.subscription.is_async:
                self.duty.engine.signals.tell([stuck])
        return late


class _Isolate(Exception):
    """One of a group cannot be settled: roll back and settle each by itself."""


class Round:
    """What came of one hop."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.letters: list[tuple[str | None, Head, Row | None]] = []
        self.clear()

    def clear(self) -> None:
        """Begin again: the transaction was rolled back."""
        self.reruns: list[tuple[Work, float]] = []
        self.deferred: list[Work] = []
        self.halt = ""
