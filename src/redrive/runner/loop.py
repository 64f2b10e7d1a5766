"""The loops: one per owned subscription. Each waits, works, renews its lease, and stops when told.

A loop ends by returning (graceful) or by raising: Fenced (another owner), StoreError (try again
later). It never decides about an event; that is policy, and never writes; that is settle.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from redrive.errors import RedriveError, StoreError
from redrive.observe import signals as sig
from redrive.policy.lease import renew_at
from redrive.runner import leases
from redrive.runner.alone import AGAIN_SECONDS
from redrive.runner.batch import Turn
from redrive.runner.bridge import Bridge, answer, ask, heard
from redrive.runner.budget import Budget
from redrive.runner.controls import perform
from redrive.runner.duty import Duty, Work
from redrive.runner.handle import Group, Handling, Round
from redrive.runner.joining import join
from redrive.runner.keygate import KeyGate
from redrive.runner.open_letters import DELAY_MAX
from redrive.runner.project import Projector
from redrive.runner.staff import Staff, TaskStaff, ThreadStaff
from redrive.runner.standing import Join, Stand
from redrive.runner.wake import Wake

DUE_SHARE = 4  # what part of a window letters that are due may fill


class Loop:
    """What projections and handlers have in common."""

    def __init__(self, duty: Duty, bridge: Bridge, wake: Wake) -> None:
        self.duty, self.bridge, self.wake = duty, bridge, wake
        self.stopping = False
        self.abandoned = False  # a stop has waited long enough: nobody waits for what still runs
        self.idle = False
        self.on_idle: Callable[[], None] = lambda: None
        self._renew_at = 0.0
        self._full_lane = ""
        self._plan_renewal()

    @property
    def is_idle(self) -> bool:
        """Is nothing left to do, as far as it knows?"""
        return self.idle and not self.wake.pending

    @property
    def is_stuck(self) -> bool:
        """Does something run that has overrun its timeout, and cannot be ended?"""
        return False

    def _monotonic(self) -> float:
        return self.duty.engine.env.clock.monotonic()

    def _plan_renewal(self) -> None:
        self._renew_at = renew_at(self._monotonic(), self.duty.engine.settings.lease)

    async def renew_if_due(self) -> None:
        """A third of the lease is over: renew it, two tries may fail. A clock set back is noticed here, too."""
        self.duty.lanes.notice(self.duty.engine.env.clock.now(), DELAY_MAX)
        if self._monotonic() >= self._renew_at:
            await self.bridge.run(lambda: leases.renew(self.duty))
            self._plan_renewal()

    def pause_length(self, *, retries: bool = True) -> float:
        """How long there is certainly nothing to do; without `retries` what is due is held back by something else."""
        pause = self._renew_at - self._monotonic()
        due = self.duty.lanes.next_due() if retries else None
        if due is not None and not self.duty.paused and not self.stopping:
            pause = min(pause, due - self.duty.engine.env.clock.now())
        return max(0.0, pause)

    def has_due(self) -> bool:
        """Is a letter due now?"""
        due = self.duty.lanes.next_due()
        return due is not None and not self.duty.paused and due <= self.duty.engine.env.clock.now()

    def tell_full_lane(self, lane: str) -> None:
        """Say once that intake waits for a lane."""
        if lane and lane != self._full_lane:
            size = self.duty.lanes.size(lane)
            self.duty.engine.signals.tell([sig.LaneFull(self.duty.subscription.name, lane, size)])
        self._full_lane = lane

    async def rest(self, idle: bool, seconds: float, *, hears: bool = True) -> None:
        """Wait for news; `idle` says that nothing is left to do, `hears` that something could be made of it."""
        self.idle = idle
        if idle:
            self.on_idle()
        await self.wake.wait(seconds, hears=hears)
        self.idle = False

    def stop(self) -> None:
        """Take nothing in any more."""
        self.stopping = True
        self.wake.ring()

    def abandon(self) -> None:
        """End without what still runs: a stop has waited long enough."""
        self.abandoned = True
        self.wake.ring()

    async def run(self) -> None:
        """Work until stopped."""
        raise AssertionError("a Loop is a ProjectionLoop or a HandlerLoop")


class ProjectionLoop(Loop):
    """Turn after turn while there is something; the function runs inside the transaction."""

    async def run(self) -> None:
        projector = Projector(self.duty)
        failed: RedriveError | None = None
        try:
            await self._work(projector)
        except RedriveError as error:
            failed = error
        if projector.untold:
            await self.bridge.run(projector.announce)
        if failed is not None:
            raise failed

    async def _work(self, projector: Projector) -> None:
        begun: Turn | None = None

        def turns() -> Turn:
            return projector.turns(lambda: self.stopping)

        while not self.stopping:
            await self.renew_if_due()
            turn = begun if begun is not None else await self.bridge.run(turns)
            begun = None
            self.tell_full_lane(turn.lane_full)
            if turn.halt:
                raise StoreError(turn.halt)
            if turn.rerun_after:
                await asyncio.sleep(turn.rerun_after)  # a version conflict: nothing is held while we wait
            elif turn.stopped:
                await self.wake.wait(self.pause_length())
            elif not turn.more and not self.has_due():
                begun = await self._rest_until_begun(turns, partial(join, projector))

    async def _rest_until_begun(self, turns: Callable[[], Turn], join: Join[Turn]) -> Turn | None:
        """Wait for news. Whoever lands something in our log takes our turns meanwhile; then the last of them."""
        standing, log = self.duty.engine.standing, self.duty.subscription.source
        future: asyncio.Future[Turn | None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(heard)
        due, pause = self.duty.lanes.next_due(), self.pause_length()  # from here on the lanes are another thread's
        stand = Stand(turns, partial(self._is_not_needed, due), partial(answer, future), join)
        standing.leave(log, stand)
        try:
            await self.rest(not self.wake.pending, pause)
        finally:
            standing.take_back(log, stand)
            has_ended = stand.end()
        if has_ended:  # what rang may have been for others who read this log
            return stand.last if 0 < self.wake.rung <= stand.rings else None
        turn = await future
        # Who began it has rung once, afterwards. Another time may have been for news that came behind the turn.
        if self.wake.rung > stand.rings + 1:
            self.wake.ring()
        return turn

    def _is_not_needed(self, due: float | None, turn: Turn) -> bool:
        """May the loop go on resting after a turn, until a letter is due that was known when it lay down?"""
        odd = turn.more or turn.rerun_after or turn.stopped or turn.halt or turn.lane_full or self._full_lane
        now_due = self.duty.lanes.next_due()
        return not odd and (now_due is None or (due is not None and due <= now_due))


class HandlerLoop(Loop):
    """A coordinator and its workers."""

    def __init__(self, duty: Duty, bridge: Bridge, wake: Wake, *, threads: bool = True) -> None:
        super().__init__(duty, bridge, wake)
        self.work = Handling(duty, partial(ask, asyncio.get_running_loop()) if threads else None)
        self.desk = self.work.desk
        self._delayed: dict[Work, asyncio.TimerHandle] = {}
        self._over: set[int] = set()  # letters that the retry budget does not cover, and that are to be buried
        self._waits_for_turn = False  # does another subscription of this process run something alone?
        self._is_dry = False  # the log had nothing more, and nobody has rung since
        self._look_at = -math.inf  # an operator may have been here: look again at this time
        self._handed_at = -math.inf  # when the staff was last told that there is work
        gate = self.work.gate
        self._budget = Budget(duty, bridge, gate.name if gate is not None else duty.subscription.name)
        self._staff = self._hire(duty.subscription.concurrency, threads=threads)

    @property
    def is_stuck(self) -> bool:
        """Does something run that has overrun its timeout, and cannot be ended?"""
        return any(work.timed_out for work in list(self.desk.running))

    def _hire(self, size: int, *, threads: bool) -> Staff:
        """Who calls the function."""
        return ThreadStaff(self, size) if threads and not self.duty.subscription.is_async else TaskStaff(self, size)

    async def run(self) -> None:
        try:
            while not (self.stopping and (self.abandoned or not self.desk.running)):
                await self._round()
            await self._last_round()
        finally:
            self.stopping = True  # fenced, or the store is away: what is called now would be called again
            await self._staff.close()
            self.duty.engine.alone.leave(self.duty)
            self.duty.left_behind = bool(self.desk.running)
            for handle in self._delayed.values():
                handle.cancel()
            _forget_outcomes([*self.desk.outbox, *self.desk.running])

    async def _round(self) -> None:
        """Renew, settle what is done, take in what there is room for, hand out what may run."""
        await self.renew_if_due()
        for work in self.work.stuck(self._monotonic()):
            self._staff.interrupt(work)
        group = Group([] if self._staff.gathers else self._take_outbox())
        room = 0 if self.stopping else self.work.room()
        due = [] if self.stopping else await self._take_due()
        paused, asked = self.duty.paused, bool(group.works or due or (room and not self._is_dry))
        held = not (room or len(self.desk) or self.stopping)  # paused, or total order: an operator may have freed us
        gate = self.work.gate
        shut = gate is not None and gate.watches  # others, or an operator, may know better by now
        if asked or paused or held or shut or self._has_to_look() or self.duty.window.can_advance():
            result = await self._hop(group, room, due)
            self._look_at = self._monotonic() + self.duty.engine.settings.poll_max
            taken = self._learn(group, result)
            self._is_dry = room > 0 and not result.events
            freed = (paused and not self.duty.paused) or (held and self.work.room() > 0)
            asked = bool(group.works or result.letters or taken or freed)
            group.works.clear()  # here, where they were made: who wrote them down may still hold the list
        if self.duty.controls and not self.stopping:
            await self.bridge.run(lambda: perform(self.duty, self.desk.busy))
        await self._hand_out()
        if self.work.halt:
            raise StoreError(self.work.halt)
        if not asked and (not self.desk.outbox or self._staff.gathers):
            nothing = self._has_nothing() and not self._delayed and not self.wake.pending
            hears = bool(room or paused or held or shut)  # else there is no room for what others commit
            await self.rest(nothing, self._pause(hears=hears), hears=hears)
            self._is_dry = False

    def _has_nothing(self) -> bool:
        """Is there nothing to do, but for what has to wait until a dependency is well?"""
        gate = self.work.gate
        if gate is not None and gate.waits_for_others and (self.desk.ready or self.desk.alone):
            return self.desk.is_all_ready
        return len(self.desk) == 0 and not self.has_due()

    async def _hop(self, group: Group, room: int, due: list[Any]) -> Round:
        try:
            return await self.bridge.run(lambda: self.work.round(group, room, due))
        except BaseException:
            for lane, head in due:  # not run: still due
                self.duty.lanes.put(lane, head)
            self.desk.outbox.extendleft(reversed(group.works))
            raise

    def _take_outbox(self) -> list[Work]:
        outbox, limit = self.desk.outbox, self.duty.engine.settings.settle_max
        self._staff.is_due = False
        return [outbox.popleft() for _ in range(min(len(outbox), limit))]

    async def _take_due(self) -> list[Any]:
        """Letters whose time has come, as many as there is room for and the retry budget covers."""
        if self.duty.paused or self._holds_retries() or not self.has_due():
            return []
        lanes, now = self.duty.lanes, self.duty.engine.env.clock.now()
        window = self.duty.engine.settings.window_max
        room = max(1, min(window - len(self.desk), self._due_max - self.desk.ready_letters))
        due = self.duty.holds.sift(lanes.take_due(now, room), lanes)
        if self.work.keys is not None:
            due = self.work.keys.defer(due)
        may, over = await self._budget.sift(due)
        if over and self._budget.buries:
            self._over.update(head.letter for _, head in over)
            return may + over
        for lane, head in over:  # still due
            lanes.put(lane, head)
        return may

    @property
    def _due_max(self) -> int:
        """Letters that are due may fill a part of the window only: new events would queue behind a large replay."""
        return max(1, self.duty.engine.settings.window_max // DUE_SHARE)

    def _holds_retries(self) -> bool:
        """Would what is due have to wait at the desk, or for the budget?"""
        gate = self.work.gate
        shut = gate is not None and gate.is_shut and bool(self.desk.ready)
        shut = shut or (self.has_due() and self.desk.ready_letters >= self._due_max)
        return shut or (not self._budget.buries and self._budget.pause() > 0)

    def _learn(self, group: Group, result: Round) -> int:
        """After the commit: free the lanes, queue what was read; how many events were taken in."""
        _forget_outcomes(result.bad)
        kept = {work for work, _ in result.reruns}
        loop = asyncio.get_running_loop()
        for work, wait in result.reruns:
            work.reruns += 1
            self._delayed[work] = loop.call_later(wait, self._again, work)
        for work in result.deferred:
            kept.add(work)
            self._give_back(work)
        if kept:
            self.desk.free_all([work for work in group.works if work not in kept])
        else:
            self.desk.free_all(group.works, ordinary=group.positions is not None)
        if result.halt:
            self.work.halt = result.halt
        self.work.take_letters(result.letters, self._over)
        self._over.clear()
        taken = self.work.take_in(result.events)
        self.tell_full_lane(self.work.lane_full)
        return taken

    def _again(self, work: Work) -> None:
        """A conflict's pause is over: run it again on fresh state; its lane stayed busy."""
        self._delayed.pop(work, None)
        if work.key is not None:
            self.duty.states.pop(work.key, None)
        if work.event is not None:
            work.event.forget()  # the function must not see its own changes
        self.desk.again(work)
        self.wake.ring()

    def _give_back(self, work: Work) -> None:
        """The attempt did not count: a stop, or the store was down. This loop ends; its successor reads it again."""
        work.effects = None
        self.stopping = True

    async def _hand_out(self) -> None:
        """Give workers what may run; after a crash one at a time, each behind a mark."""
        desk = self.desk
        if self.stopping:
            return
        stale = desk.look_again()
        if self.work.keys is not None:
            await self._ask_for(self.work.keys, stale)
        blocked = self.work.gate.blocked() if self.work.gate is not None else None
        if blocked is not None:
            desk.block(blocked)
        marked = bool(desk.ready) and desk.ready[0].alone  # the gate was shut before it could be called
        is_free = not (desk.running or desk.outbox)
        alone = desk.alone and is_free and not marked
        count = 1 if alone or marked else 0 if desk.alone else len(desk.ready)
        turn = self.duty.engine.alone
        # What ran alone is settled. One that waits for its gate, or that never ends, keeps no other waiting.
        if is_free or self.is_stuck:
            turn.leave(self.duty)
        if not count or not await self._may_call(count):
            return
        self._waits_for_turn = bool(alone or marked) and not turn.take(self.duty)
        if self._waits_for_turn:
            return
        if alone:
            work = desk.alone.popleft()
            await self.bridge.run(lambda: self.work.mark_alone(work))
            if work.outcome is not None:
                desk.outbox.append(work)
                return
            desk.ready.appendleft(work)
        self._handed_at = self._monotonic()
        self._staff.wake(count)

    async def _ask_for(self, keys: KeyGate, stale: list[Work]) -> None:
        """What the gates of single keys hold back: may it go by now?"""
        asked = keys.sift(stale)
        if asked:
            keys.decide(await self.bridge.run(lambda: keys.ask_for(asked)))
        if keys.has_to_sweep:
            await self.bridge.run(keys.sweep)

    async def _may_call(self, count: int) -> bool:
        """Does the gate let any through? It is asked for as many."""
        gate = self.work.gate
        if gate is None:
            return True
        if (wanted := gate.wants(count)) > 0:
            await self.bridge.run(lambda: gate.ask(wanted))
        return not gate.is_shut

    def _has_to_look(self) -> bool:
        """Workers call what is ready without asking, perhaps in a long time: an operator may have held its key."""
        return bool(self.desk.ready) and not self.stopping and self._monotonic() >= self._look_at

    def _pause(self, *, hears: bool) -> float:
        holds, timeout = self._holds_retries(), self.duty.subscription.timeout
        pause = self.pause_length(retries=not holds)
        if not hears and self.desk.ready and not self.stopping:
            pause = min(pause, self._look_at - self._monotonic())
        if self._waits_for_turn and not self.stopping:
            pause = min(pause, AGAIN_SECONDS)
        gate = self.work.gate
        if holds and self._budget.pause():
            pause = min(pause, self._budget.pause())
        if gate is not None and gate.is_shut and self.desk.ready:
            pause = min(pause, gate.pause())
        if self.work.keys is not None and not self.stopping:
            pause = min(pause, self.work.keys.pause())
        if timeout is not None:
            pause = min(pause, self._next_end(timeout) - self._monotonic())
        return max(0.0, pause)

    def _next_end(self, timeout: float) -> float:
        """When the next call could overrun. What was handed out a moment ago is with nobody yet, and may begin now."""
        begun = [work.started for work in list(self.desk.running) if not work.timed_out]
        if self.desk.ready and not (self.work.gate is not None and self.work.gate.is_shut):
            begun.append(self._monotonic())
        if self._handed_at + timeout > self._monotonic():
            begun.append(self._handed_at)
        return min(begun, default=math.inf) + timeout

    async def _last_round(self) -> None:
        """Settle what is finished, and what has had its time; the rest is given back by not being settled."""
        late = self.work.give_up(self._monotonic())
        while self.desk.outbox:
            group = Group([work for work in self._take_outbox() if work not in late])  # it may return at this moment
            result: Round = await self.bridge.run(lambda group=group: self.work.round(group, 0, []))  # type: ignore[misc]
            _forget_outcomes(result.bad)


def _forget_outcomes(works: Iterable[Work]) -> None:
    """What was raised refers to frames that refer to the work: the collector does not find such a circle."""
    for work in works:
        work.outcome = work.error = None
