"""The staff of a handler: who calls its function. Tasks for coroutine functions, threads for plain ones.

They take works from the desk's `ready` and put them into its `outbox`, outcome and all; the coordinator hears of it
when there is enough to settle. Nothing else is theirs: no lane, no store, no decision.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from msgspec import UNSET
from msgspec.structs import force_setattr

from redrive.context import LiveCtx
from redrive.policy import outcome as out
from redrive.runner.bridge import ask
from redrive.runner.call import attempt_all, attempt_works
from redrive.runner.duty import Work
from redrive.runner.handle import Handling
from redrive.runner.wake import Wake

SETTLE_AT = 1000  # outcomes worth a commit of their own while there is more to call
SETTLE_AFTER = 0.02  # seconds an outcome may wait for company: a thousand calls that emit take longer than ten ms
YIELD_EVERY = 250  # calls between two turns of the event loop: others want to run too; SETTLE_AT is a multiple
YIELD_AFTER = 0.01  # seconds between two of them, if calls take longer


class Employer(Protocol):
    """What the staff sees of its loop."""

    work: Handling
    wake: Wake
    stopping: bool
    abandoned: bool


class Staff:
    """Who calls the functions."""

    settle_after = SETTLE_AFTER

    def __init__(self, loop: Employer, size: int) -> None:
        self.loop, self.desk, self.size = loop, loop.work.desk, size
        duty = loop.work.duty
        self._clock = duty.engine.env.clock.monotonic
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None  # rings when the first of the outcomes has waited long enough
        self.is_due = False  # are outcomes to be settled, whoever else may come?
        subscription = duty.subscription
        self._is_timed = subscription.timeout is not None
        self._function: Callable[..., Any] = subscription.function
        if subscription.arguments == 1:
            self._function = lambda event, ctx: subscription.function(event)

    def wake(self, count: int) -> None:
        """There is work."""
        raise AssertionError

    @property
    def gathers(self) -> bool:
        """Do the outcomes wait for company? A commit takes the time of a dozen calls, whatever is in it."""
        waits = self._alarm is not None and not self.is_due and len(self.desk.outbox) < SETTLE_AT
        return waits and not self.loop.stopping

    def interrupt(self, work: Work) -> None:
        """The work overran its timeout."""

    async def close(self) -> None:
        """Nobody works any more."""
        self._silence()

    def _begin_waiting(self) -> None:
        """An outcome waits for company, but not for long: the next call may take hours."""
        raise AssertionError

    def _call(self) -> None:
        """The coordinator is to settle what is done."""
        raise AssertionError

    def _set_alarm(self) -> None:
        if self._alarm is None:
            self._alarm = self._loop.call_later(self.settle_after, self._ring)

    def _ring(self) -> None:
        self._silence()
        self.is_due = True
        self.loop.wake.ring()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def works(self, task: Any = None) -> Iterator[Work | None]:
        """Works to be called, while the loop wants any done: each is finished when the next is asked for.

        None in between: others want to run. One generator for all of an event's way through here, because everything
        in it is done once per event.
        """
        loop, clock, is_timed = self.loop, self._clock, self._is_timed
        prepare, called, duty = loop.work.prepare, loop.work.called, loop.work.duty
        ready, running, outbox = self.desk.ready, self.desk.running, self.desk.outbox
        gate, turn_began, size, applied = loop.work.gate, clock(), self.size, out.APPLIED
        is_cancelled = _never if task is None else task.cancelling
        while not loop.stopping:
            try:
                work = ready.popleft() if gate is None else gate.pass_one(ready)
            except IndexError:
                return
            if is_timed:
                work.started = clock()
            running[work] = task
            if work.head is None and not duty.edits:  # the ordinary case, quickly
                work.ctx = ctx = LiveCtx(work.event, work.key, work.attempt, 0, duty)  # type: ignore[arg-type]
            else:
                ctx = prepare(work)
            yield work
            ctx._over = True
            if work.error is None and not ctx.touched and not work.timed_out:  # once more
                work.ctx, work.outcome = None, applied
                force_setattr(work.event, "_data", UNSET)  # type: ignore[arg-type]  # forget, without the call
            else:
                called(work)
            outbox.append(work)
            del running[work]
            if gate is not None and gate.called(work):
                self._call()  # the breaker wants to know
            if is_cancelled():  # what is left of it would hit the next event: another task goes on
                return
            done = len(outbox)
            if done <= size and ready:  # the first of as many as may put one there at this moment
                self._begin_waiting()
            if not done % YIELD_EVERY or clock() - turn_began >= YIELD_AFTER:
                if done >= SETTLE_AT:
                    self._call()
                yield None
                turn_began = clock()


def _never() -> bool:
    """A thread cannot be cancelled."""
    return False


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Until they are over, also if we are cancelled meanwhile: they were told once, and may have to tidy up."""
    cancelled: asyncio.CancelledError | None = None
    ended = asyncio.gather(*tasks, return_exceptions=True)
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class TaskStaff(Staff):
    """Coroutine functions: a few long-lived tasks on the event loop."""

    def __init__(self, loop: Employer, size: int) -> None:
        super().__init__(loop, size)
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self, count: int) -> None:
        missing = min(count, self.size - len(self._tasks))
        for _ in range(missing):
            task = self._loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        """Until nothing is ready; started again when there is."""
        me, running = asyncio.current_task(), self.desk.running
        function = self._function if self.loop.work.duty.subscription.is_async else self._inline
        try:
            await attempt_works(function, self.works(me))
        except asyncio.CancelledError:  # ours: the loop ends, the attempt does not count
            for work in [work for work, task in running.items() if task is me]:
                del running[work]
            raise
        self._tasks.discard(me)  # now: who hears that we are done may need another at once
        self._call()

    async def _inline(self, event: Any, ctx: Any) -> Any:
        """A plain function on the event loop: where there are no threads."""
        return self._function(event, ctx)

    def _begin_waiting(self) -> None:
        self._set_alarm()

    def _call(self) -> None:
        self._ring()

    def interrupt(self, work: Work) -> None:
        task = self.desk.running.get(work)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        await super().close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await _ended(tasks)


class ThreadStaff(Staff):
    """Plain functions: a few daemon threads. A thread cannot be stopped: what overruns keeps its key busy."""

    def __init__(self, loop: Employer, size: int) -> None:
        super().__init__(loop, size)
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: there is work; False: go home
        self._called = False
        self._threads: list[threading.Thread] = []

    def wake(self, count: int) -> None:
        wanted = min(count, self.size)
        while len(self._threads) < min(len(self.desk.running) + count, self.size):  # who runs may do so for hours
            name = f"redrive {self.loop.work.duty.subscription.name} {len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        for _ in range(wanted - self._calls.qsize()):
            self._calls.put(True)

    def _run(self) -> None:
        while self._calls.get():
            attempt_all(self._function, self.works())
            self._call()

    def _begin_waiting(self) -> None:
        ask(self._loop, self._set_alarm)

    def _call(self) -> None:
        if not self._called:
            self._called = True
            ask(self._loop, self._hear)

    def _hear(self) -> None:
        self._called = False
        self._ring()

    async def close(self) -> None:
        """Wait for those that still run: their keys are busy, and nobody may take the events up before."""
        await super().close()
        for _ in self._threads:
            self._calls.put(False)
        while any(thread.is_alive() for thread in self._threads) and not self.loop.abandoned:  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # threads have no event to wait for without one more thread
