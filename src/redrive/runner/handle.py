"""Handlers: lanes in memory, a few long-lived workers, effects settled in groups.

A key is busy from dispatch until its settle commits. One coordinator takes in, dispatches and settles,
one hop to the store per round; workers only call functions and put the outcome into the outbox.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable
from typing import Any

from redrive.context import Ctx
from redrive.errors import BugError, Fenced, StoreError
from redrive.event import from_row
from redrive.failpoints import hit
from redrive.observe import signals as sig
from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.lanes import Head
from redrive.runner.call import attempt, attempt_async, outcome_of, overran
from redrive.runner.duty import Duty, Work
from redrive.runner.settle import Settling, StateConflict, decision
from redrive.store.sql import Row

SPAN = 10  # how many windows of settled events may lie above the oldest unsettled one


class Desk:
    """Works by lane: which may run now, which wait for their lane, which are done and unsettled."""

    def __init__(self, duty: Duty) -> None:
        self.duty = duty
        self.ready: deque[Work] = deque()
        self.outbox: deque[Work] = deque()
        self.running: set[Work] = set()
        self.alone: deque[Work] = deque()  # after a crash: one at a time, before anything else
        # What is busy, with what queues behind it: lanes by name, and letters without a lane by their id.
        self._waiting: dict[str | int, deque[Work] | None] = {}
        self._queued = 0
        self._following: Counter[str] = Counter()
        self._lanes = duty.lanes
        self._keyed = duty.subscription.order == "key"

    def __len__(self) -> int:
        return len(self.ready) + len(self.outbox) + len(self.running) + len(self.alone) + self._queued

    def busy(self, lane: str | None, letter: int) -> bool:
        """Has the lane of this letter work that is not settled?"""
        if lane is not None:
            return lane in self._waiting
        held = [*self.running, *self.ready, *self.outbox, *self.alone]
        return any(work.head is not None and work.head.letter == letter for work in held)

    def queued(self, lane: str | None) -> int:
        """How many works wait for the lane, or are about to be written down as waiting."""
        if lane is None:
            return 0
        return len(self._waiting.get(lane) or ()) + self._following.get(lane, 0)

    def add(self, work: Work) -> None:
        """A new event, or a letter that is due: it runs when its lane is free."""
        lane, waiting = self._place(work), self._waiting
        if lane is not None:
            if lane in waiting:
                self._queue(lane, work)
                return
            waiting[lane] = None
        self._start(work)

    def add_fresh(self, works: list[Work]) -> None:
        """New events while nothing is parked: the ordinary case, quickly."""
        waiting, ready = self._waiting, self.ready
        for work in works:
            lane = work.lane
            if lane is not None:
                if lane in waiting:
                    self._queue(lane, work)
                    continue
                waiting[lane] = None
            ready.append(work)

    def _queue(self, lane: str | int, work: Work) -> None:
        queue = self._waiting[lane]
        if queue is None:
            queue = self._waiting[lane] = deque()
        self._queued += 1
        if work.head is None:
            queue.append(work)
        else:  # a head precedes everything that queued up behind it
            queue.appendleft(work)

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
        elif work.lane in lanes.names:
            self._follow(work)
        else:
            self._run(work)

    def _follow(self, work: Work) -> None:
        assert work.lane is not None
        work.follow = True
        self._following[work.lane] += 1
        self.outbox.append(work)

    def _run(self, work: Work) -> None:
        careful = self.duty.horizon or self.duty.suspects
        (self.alone if careful and self.duty.needs_care(work) else self.ready).append(work)

    def again(self, work: Work) -> None:
        """A conflict's pause is over. What is in no lane runs one at a time now, by key: side by side they met it."""
        if work.lane is None and work.head is None and work.reruns == 1:
            self.add(work)
        else:
            self.ready.append(work)

    def look_again(self) -> None:
        """The letters were read anew: what waits with an old revision is given up, the new head comes by itself."""
        lanes = self.duty.lanes
        if lanes is self._lanes:
            return
        self._lanes = lanes
        stale: list[Work] = []
        for queue in (self.ready, self.alone):
            waiting = list(queue)
            old = [w for w in waiting if w.head is not None and lanes.head(w.lane, w.head.letter) != w.head]
            for work in old:
                try:
                    queue.remove(work)
                except ValueError:  # a worker was faster
                    continue
                stale.append(work)
        for work in stale:
            self.free(work)

    def free_all(self, works: list[Work]) -> None:
        """Settled: the next of each lane may start."""
        waiting = self._waiting
        for work in works:
            lane = work.lane
            if work.head is not None or work.follow or work.reruns or (lane is not None and waiting[lane]):
                self.free(work)
            elif lane is not None:  # nobody waits: the ordinary case, quickly
                del waiting[lane]

    def free(self, work: Work) -> None:
        """Settled (or given up): the next of the lane may start."""
        lane = self._place(work)
        if work.follow and work.lane is not None:
            self._following[work.lane] -= 1
            if not self._following[work.lane]:
                del self._following[work.lane]
        if lane is None or work.chained:
            return
        queue = self._waiting[lane]
        if not queue:
            del self._waiting[lane]
        elif lane in self.duty.lanes.names and queue[0].head is None:
            for follower in queue:  # all of them queue behind the head; the last one frees the lane
                follower.chained = follower is not queue[-1]
                self._follow(follower)
            self._queued -= len(queue)
            queue.clear()
        else:
            self._queued -= 1
            self._start(queue.popleft())

    def _place(self, work: Work) -> str | int | None:
        """Where a work is alone: its lane. A letter without one has at least itself, since letters may be read anew."""
        if work.lane is not None:
            return work.lane
        if work.head is not None:  # one that got a usable key since shares state with the lane of that key
            return work.key if self._keyed and work.key is not None else work.head.letter
        return f"\0{work.key}" if work.reruns and work.key is not None else None  # no lane has such a name


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
        # Done rows above a slow key cost little; unsettled works are what memory and a crash must bear.
        limit = duty.engine.settings.window_max
        return max(0, min(limit - len(self.desk), SPAN * limit - len(duty.window)))

    def take_in(self, rows: list[Row]) -> int:
        """Queue what the filter asks for; stop before an event of a full lane. How many rows are behind us."""
        duty = self.duty
        window, subscription, lane_max = duty.window, duty.subscription, duty.engine.settings.lane_max
        if rows and self._is_plain(rows):
            window.take_all([row[0] for row in rows])
            lane_of = subscription.lane_of
            events = duty.events(rows)
            self.desk.add_fresh([Work(e, e.position, e.key, lane_of(e.key), None) for e in events])
            return len(rows)
        plain, wants, lane_of = subscription.key_by is None, subscription.wants, subscription.lane_of
        self.lane_full = ""
        for count, row in enumerate(rows):
            if not wants(row[2]):
                window.skip(row[0])
                continue
            event = duty.event(row)
            work = Work(event, row[0], row[3], lane_of(row[3]), None) if plain else duty.work(event)
            size = duty.lanes.size(work.lane) if duty.lanes else 0
            if size and size + self.desk.queued(work.lane) >= lane_max:
                self.lane_full = work.lane or ""
                return count
            if window.take(row[0]):
                self.desk.add(work)
        return len(rows)

    def _is_plain(self, rows: list[Row]) -> bool:
        """Nothing parked, nothing suspected, nothing filtered, keys as stored."""
        duty = self.duty
        odd = duty.lanes or duty.horizon or duty.suspects or duty.subscription.key_by or duty.window.has_done()
        return not odd and all(map(duty.subscription.wants, {row[2] for row in rows}))

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
        if work.head is not None:
            edits = work.head.edits
        else:
            edits = duty.edits[work.position][0] if duty.edits and work.position in duty.edits else 0
        ctx = work.ctx = Ctx(event, work.key, work.attempt, edits, duty)
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
            work.outcome = outcome_of(error, _is_ours, reruns=work.reruns, limit=limit)
        else:
            work.outcome = out.APPLIED
        work.ctx = None

    def call_sync(self, work: Work) -> None:
        """Run a plain function, on a thread of the pool."""
        ctx = self.prepare(work)
        self._called(work, ctx, attempt(self.duty.subscription.function, *self._arguments(work, ctx)))

    def call_async(self, work: Work) -> Awaitable[None]:
        """Run a coroutine function on the loop."""
        ctx = self.prepare(work)
        return attempt_async(self.duty.subscription.function, self._arguments(work, ctx), ctx, work, self._called)

    def _arguments(self, work: Work, ctx: Ctx) -> tuple[Any, ...]:
        return (work.event, ctx) if self.duty.subscription.arguments == 2 else (work.event,)

    def _called(self, work: Work, ctx: Ctx, error: BaseException | None) -> None:
        if error is None and not work.timed_out and not ctx.touched:  # the ordinary case, quickly
            work.outcome, work.ctx = out.APPLIED, None
            return
        if error is None:  # a state that cannot be stored is the function's failure
            error = attempt(lambda: setattr(work, "effects", ctx.effects()))
        self.finish(work, error)

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
            waits = self.duty.subscription.order == "total" and self.duty.lanes
            if room and not (self.duty.paused or waits):
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
            together: list[Work] = []
            for work in group:
                if work.follow:
                    settling.follow(work)
                elif work.outcome is not out.APPLIED:
                    self._write_bad(settling, work, result)
                elif work.head is None and not work.alone and (work.effects is None or not isolate):
                    together.append(work)
                else:
                    self._write_good(settling, work, result)
            self._write_together(settling, together)
            hit("round.effects")
            settling.finish()
            hit("round.before_commit")
        return settling

    def _write_together(self, settling: Settling, works: list[Work]) -> None:
        """The ordinary case: nobody fails. If one does, all of it is written again, one by one."""

        def effects() -> None:
            for work in works:
                if work.effects is not None:
                    settling.effects(work, together=True)
            if not settling.write_together():
                raise _Isolate

        error = attempt(effects)
        if isinstance(error, Fenced | BugError | _Isolate) or self._is_the_world(error):
            raise error  # type: ignore[misc]
        if error is not None:
            raise _Isolate from error
        settling.commit_works(works)

    def _is_the_world(self, error: BaseException | None) -> bool:
        return error is not None and self.duty.engine.store.is_the_world(error)

    def _write_good(self, settling: Settling, work: Work, result: Round) -> None:
        """Effects first, then the fate, behind a savepoint: it may fail, and an operator may be faster."""
        tx, store = settling.tx, self.duty.engine.store
        tx.savepoint()
        error = attempt(lambda: settling.effects(work, together=False))
        if error is not None and (isinstance(error, Fenced | BugError) or self._is_the_world(error)):
            raise error
        lost = error is None and not settling.commit(work)
        if error is not None or lost:
            tx.undo()
        tx.keep()
        if lost:
            settling.lose(work)
        if error is not None:
            work.effects = None
            reruns = 0 if isinstance(error, StateConflict) else work.reruns  # it ends: one of them wins each time
            work.outcome = outcome_of(error, store.is_the_world, reruns=reruns)
            self._write_bad(settling, work, result)

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
        late = [work for work in list(self.desk.running) if not work.timed_out and now >= work.started + timeout]
        for work in late:
            work.timed_out = True
            if work.ctx is not None:
                work.ctx.kill()
            assert work.event is not None
            stuck = sig.HandlerStuck(self.duty.subscription.name, work.event.id, now - work.started)
            if not self.duty.subscription.is_async:
                self.duty.engine.signals.tell([stuck])
        return late


def _is_ours(error: BaseException) -> bool:
    """Our store's fault? A handler's own database, SQLite or not, is a dependency of it like any other."""
    return isinstance(error, StoreError)


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
