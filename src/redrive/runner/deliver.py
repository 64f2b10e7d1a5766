"""Deliveries: handlers whose function is a sink, which may take a list of events at a time.

A list holds one event of a lane, so that nothing overtakes an event that the sink refuses; only a sink that takes
all or nothing (`whole`) is given several. Whatever a sink raises is an outcome of each event it was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redrive.errors import Ignore, RetryLater, UsageError
from redrive.policy import outcome as out
from redrive.policy.classify import blames_a_dependency
from redrive.policy.outcome import Outcome
from redrive.runner.duty import Work
from redrive.runner.loop import HandlerLoop
from redrive.runner.probe import Prober
from redrive.runner.staff import SETTLE_AT, YIELD_AFTER, Employer, Staff, TaskStaff
from redrive.sinks.port import Sink, SomeFailed
from redrive.sources.refusal import SCHEMA, check

YIELD_EVERY = 16  # lists between two turns of the event loop that are ours: a sink may return without ever waiting


class DeliveryLoop(HandlerLoop):
    """A handler's loop that asks the sink how it is while its breaker is open."""

    def _hire(self, size: int, *, threads: bool) -> Staff:
        return Couriers(self, size)

    async def run(self) -> None:
        sink, gate = self.duty.subscription.sink, self.work.gate
        if sink is None or gate is None or gate.rule is None or not sink.can_probe():
            await super().run()
            return
        prober = asyncio.create_task(Prober(sink, gate, self.bridge, self.wake).run())
        try:
            await super().run()
        finally:
            prober.cancel()
            await asyncio.gather(prober, return_exceptions=True)


class Couriers(TaskStaff):
    """A few long-lived tasks that carry events to the sink."""

    settle_after = 0.05  # seconds: requests take longer than calls, and a commit takes the time of a dozen of them

    def __init__(self, loop: Employer, size: int) -> None:
        super().__init__(loop, size)
        sink = loop.work.duty.subscription.sink
        assert sink is not None
        self.sink: Sink = sink
        self._waiting: asyncio.TimerHandle | None = None
        self._carried, self._turn_began = 0, self._clock()

    def wake(self, count: int) -> None:
        """There is work; a sink that likes its lists full may have it wait for company."""
        if count >= self.sink.batch_max or not self.sink.batch_wait:
            self._start(count)
        elif self._waiting is None:
            self._waiting = asyncio.get_running_loop().call_later(self.sink.batch_wait, self._start, 0)

    def _start(self, count: int) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        lists = -(-max(count, len(self.desk.ready)) // self.sink.batch_max)
        super().wake(lists)

    async def _work(self) -> None:
        """List after list until nothing is ready; started again when there is."""
        me = asyncio.current_task()
        assert me is not None
        try:
            if self.sink.batch_max == 1:
                await self._carry_each(me)
            else:
                while not me.cancelling() and (works := self._take(me)):
                    await self._carry(works)
        except asyncio.CancelledError:  # between two calls: the loop ends
            running = self.desk.running
            for work in [work for work, task in running.items() if task is me]:
                del running[work]
            raise
        self._tasks.discard(me)  # now: who hears that we are done may need another at once
        self._call()

    async def close(self) -> None:
        """Nobody works any more, nor begins to because somebody has waited for company."""
        if self._waiting is not None:
            self._waiting.cancel()
        await super().close()

    async def _carry_each(self, task: asyncio.Task[Any]) -> None:
        """The same for a sink that takes one event at a time, without the lists: all of it is done for every event."""
        loop, gate, clock, send = self.loop, self.loop.work.gate, self._clock, self._function
        ready, running, outbox = self.desk.ready, self.desk.running, self.desk.outbox
        while not loop.stopping and not task.cancelling():  # what is left of that would hit the next event
            try:
                work = ready.popleft() if gate is None else gate.pass_one(ready)
            except IndexError:
                return
            event = work.event
            assert event is not None
            work.started, running[work] = clock(), task
            try:
                if event.schema == SCHEMA:
                    check(event)
                await send([event])  # the sink's `send`, in a span where there are spans
            except BaseException as raised:
                self._put_down(work, self._errors((work,), raised).get(0), {})
            else:
                del running[work]
                work.outcome = out.APPLIED
                outbox.append(work)
                if gate is not None and gate.called(work):
                    self._call()  # the breaker wants to know
            await self._pace()

    def _take(self, task: Any) -> list[Work]:
        """The next events for one call of the sink."""
        works: list[Work] = []
        limit = self.sink.batch_max
        if self._is_open() and not self.loop.stopping:
            self._take_freely(works, limit, task)
            return works
        while len(works) < limit and (work := self._next(task)) is not None:
            works.append(work)
            if self.sink.whole and work.lane is not None and work.head is None and not work.alone:
                works.extend(self._chain(work, limit - len(works), task))
        return works

    def _is_open(self) -> bool:
        """Does nothing stand between the works and the sink? Then none of them has to be looked at by itself."""
        gate = self.loop.work.gate
        return gate is None or (gate.stands_open and self.loop.work.keys is None)

    def _take_freely(self, works: list[Work], limit: int, task: Any) -> None:
        """As many as there are: whatever is done here is done for every event."""
        ready, running, followers = self.desk.ready, self.desk.running, self.desk.take_followers
        whole, now = self.sink.whole, self._clock()
        while ready and len(works) < limit:
            work = ready.popleft()
            works.append(work)
            if whole and work.lane is not None and work.head is None and not work.alone:
                works += followers(work, limit - len(works))
        for work in works:
            work.started, work.probe, running[work] = now, False, task

    def _next(self, task: Any) -> Work | None:
        gate, ready = self.loop.work.gate, self.desk.ready
        if self.loop.stopping:
            return None
        try:
            work = ready.popleft() if gate is None else gate.pass_one(ready)
        except IndexError:
            return None
        work.started = self._clock()
        self.desk.running[work] = task
        return work

    def _chain(self, first: Work, room: int, task: Any) -> list[Work]:
        """What queues behind an event in its lane may go with it."""
        chain: list[Work] = []
        gate = self.loop.work.gate
        if gate is not None and not gate.stands_open:
            return chain
        for work in self.desk.take_followers(first, room):
            work.started = first.started
            self.desk.running[work] = task
            chain.append(work)
        return chain

    async def _carry(self, works: list[Work]) -> None:
        """Send them, and put down what came of each."""
        errors = await self._send(works)
        if len(works) > 1 and errors and len(errors) == len(works) and not _is_everybodys(errors[0]):
            errors = await self._send_each(works)
        if errors:
            failed: dict[str, Outcome] = {}
            heard: set[int] = set()
            for at, work in enumerate(works):
                error = errors.get(at)
                work.echo = error is not None and id(error) in heard
                heard.add(id(error))
                self._put_down(work, error, failed)
        else:
            self._put_down_all(works)
        await self._pace()

    async def _pace(self) -> None:
        """After each call: is there enough to settle, and do others want to run?"""
        if len(self.desk.outbox) >= SETTLE_AT:
            self._call()
        elif self._alarm is None and self.desk.ready:
            self._begin_waiting()
        self._carried += 1
        if not self._carried % YIELD_EVERY or self._clock() - self._turn_began >= YIELD_AFTER:
            await asyncio.sleep(0)
            self._turn_began = self._clock()

    async def _send_each(self, works: Sequence[Work]) -> dict[int, BaseException]:
        """One of them spoils the list: which? What follows it in its lane is not sent."""
        errors: dict[int, BaseException] = {}
        failed_lanes: set[str | None] = set()
        for at, work in enumerate(works):
            if work.lane is None or work.lane not in failed_lanes:
                for error in (await self._send([work])).values():
                    errors[at] = error
                    if not isinstance(error, Ignore):
                        failed_lanes.add(work.lane)
        return errors

    def _put_down_all(self, works: list[Work]) -> None:
        """All of them arrived."""
        running, gate = self.desk.running, self.loop.work.gate
        for work in works:
            del running[work]
            work.outcome = out.APPLIED
        self.desk.outbox.extend(works)
        if gate is not None:
            # To a gate that stands open they all say the same; any other hears each of them.
            urgent = [gate.called(work) for work in (works[-1:] if self._is_open() else works)]
            if any(urgent):
                self._call()

    def _put_down(self, work: Work, error: BaseException | None, failed: dict[str, Outcome]) -> None:
        """What came of one; `failed`: lanes of which one before it, in the same list, was not delivered."""
        del self.desk.running[work]
        before = None if work.lane is None else failed.get(work.lane)
        if before is not None and not isinstance(before, out.Stopped):
            self.desk.follow(work)
            return
        if before is not None:  # a stop leaves no letter to queue behind: this one is given back as well
            work.outcome = before
        else:
            work.outcome = outcome = out.APPLIED if error is None else self._outcome(work, error)
            if outcome is not out.APPLIED and work.lane is not None and not isinstance(outcome, out.Ignored):
                failed[work.lane] = outcome
        self.desk.outbox.append(work)
        gate = self.loop.work.gate
        if gate is not None and gate.called(work):
            self._call()  # the breaker wants to know

    def _outcome(self, work: Work, error: BaseException) -> Outcome:
        outcome = self.loop.work.outcome(work, error)
        if isinstance(outcome, out.Conflicted):  # a sink has nothing that running it again at once would refresh
            return out.Failed(error, outcome.failure)
        return outcome

    async def _send(self, works: Sequence[Work]) -> dict[int, BaseException]:
        """What was raised for which of them; nothing, if all arrived."""
        events = [work.event for work in works if work.event is not None]
        if SCHEMA in {event.schema for event in events}:
            return await self._send_but_refused(works)
        try:
            await self._function(events)
        except BaseException as raised:
            return self._errors(works, raised)
        return {}

    async def _send_but_refused(self, works: Sequence[Work]) -> dict[int, BaseException]:
        """What a broker gave and is no event is not sent on, nor is what follows it in its lane."""
        errors: dict[int, BaseException] = {}
        kept: list[int] = []
        lanes: set[str] = set()
        for at, work in enumerate(works):
            if work.lane in lanes:
                continue
            if (error := _refusal(work)) is None:
                kept.append(at)
                continue
            errors[at] = error
            if work.lane is not None:
                lanes.add(work.lane)
        found = await self._send([works[at] for at in kept]) if kept else {}
        return errors | {kept[at]: error for at, error in found.items()}

    def _errors(self, works: Sequence[Work], raised: BaseException) -> dict[int, BaseException]:
        """What an exception of the sink means for which of them.

        A cancellation is a failure, whoever asked for it. If we did, nobody is left who would settle it.
        """
        if isinstance(raised, asyncio.CancelledError) and any(work.timed_out for work in works):
            task = asyncio.current_task()
            while task is not None and task.cancelling():  # asked for once for each of the list
                task.uncancel()
            timeout = self.loop.work.duty.subscription.timeout or 0.0
            raised = TimeoutError(f"the sink did not answer within {timeout:g} s")
        if isinstance(raised, SomeFailed):
            if all(0 <= at < len(works) for at in raised.errors):
                return raised.errors
            named = ", ".join(map(str, raised.errors))  # which one it meant is not known: none counts as delivered
            raised = UsageError(f"SomeFailed names {named}; the list has {len(works)} events, counted from 0")
        return dict.fromkeys(range(len(works)), raised)


def _refusal(work: Work) -> Exception | None:
    assert work.event is not None
    try:
        check(work.event)
    except Exception as error:
        return error
    return None


def _is_everybodys(error: BaseException) -> bool:
    """Does the error concern the sink as a whole, so that sending each by itself would meet it again?"""
    return blames_a_dependency(error) or isinstance(error, RetryLater) or not isinstance(error, Exception)
