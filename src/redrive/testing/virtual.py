"""An event loop in virtual time: waiting costs nothing, and the same program always runs the same way.

When nothing is ready the clock jumps to the next timer; when there is no timer either, the program waits
for something that will never come, and `Deadlock` says who. Single-threaded: no sockets, no real threads.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from redrive.errors import UsageError

T = TypeVar("T")

STEP_MAX = 86_400.0  # seconds by which the clock moves in one turn, at most, as in asyncio
TIMERS_MANY = 100  # from so many on, cancelled ones are worth a look, as in asyncio
EPOCH = 1_767_225_600.0  # 2026-01-01T00:00:00Z: where virtual wall time begins


class Deadlock(AssertionError):
    """Every task waits and nothing is scheduled: in real time the program would hang for ever."""


class FakeClock:
    """Wall and monotonic time that move only when told to; see `redrive.clock.Clock`.

    >>> clock = FakeClock()
    >>> clock.advance(90)
    >>> clock.monotonic()
    90.0
    """

    __slots__ = ("_elapsed", "_offset")

    def __init__(self, start: float = EPOCH) -> None:
        self._offset = start
        self._elapsed = 0.0

    def now(self) -> float:
        """Wall time, in seconds since 1970."""
        return self._offset + self._elapsed

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Time passes."""
        if seconds < 0:
            raise UsageError(f"time cannot pass backwards ({seconds} s); jump() sets the wall clock")
        self._elapsed += seconds

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock; no time passes."""
        self._offset += seconds


class _NoSelector(selectors.BaseSelector):
    """There are no sockets to wait for; the loop itself lets the clock run."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise UsageError("virtual time has no sockets: hand your function a fake of what it talks to")

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs coroutines on a `FakeClock`; the order of equally timed callbacks is the order of scheduling."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        super().__init__(_NoSelector())

    def time(self) -> float:
        return self.clock._elapsed

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """A hair before its time a timer runs at once: who waits for the rest of it must not wait in vain for ever."""
        now = self.clock._elapsed
        if delay > 0:
            delay = max(delay, 2 * _hair(now))
        return self.call_at(now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """One turn, as asyncio does it but for the sockets: a schedule has a thousand turns, and none of them has any.

        When nothing is ready the clock moves on; rounding must never leave a timer a hair before its time.
        """
        self._drop_cancelled()
        ready, scheduled, clock = self._ready, self._scheduled, self.clock
        if not ready and not self._stopping:
            if not scheduled:
                raise Deadlock(self._who_waits())
            clock.advance(min(max(0.0, scheduled[0]._when - clock._elapsed), STEP_MAX))
        due = clock._elapsed + _hair(clock._elapsed)
        while scheduled and scheduled[0]._when < due:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):  # not those that come meanwhile: they are the next turn's
            handle: Any = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _drop_cancelled(self) -> None:
        """Timers that nobody waits for any more: those that are next, or all of them when they are most."""
        scheduled = self._scheduled
        if len(scheduled) > TIMERS_MANY and self._timer_cancelled_count * 2 > len(scheduled):
            for timer in scheduled:
                timer._scheduled = not timer._cancelled
            scheduled[:] = [timer for timer in scheduled if not timer._cancelled]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """On this thread, at the next turn: another thread would bring chance back."""

        async def call() -> Any:
            return func(*args)

        return self.create_task(call())

    def let_others_run(self, seconds: float) -> None:
        """From inside a plain callback: time passes and everybody else goes on, as if a thread had stalled here.

        Calls nest: the callback that stalled last goes on first. Not for coroutines, which simply await.
        """
        until, behind = self.time() + seconds, len(self._ready)
        timer = self.call_later(seconds, _nothing)
        while self.time() < until and not self._stopping:
            self._run_once()
        timer.cancel()
        for _ in range(behind - len(self._ready)):  # the turn that called us counted on finding so many
            self.call_soon(_nothing)

    # The pipe to itself wakes a loop that sleeps in select(); this one never sleeps.
    def _make_self_pipe(self) -> None:
        pass

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _who_waits(self) -> str:
        waiting = sorted(f"{task.get_name()}: {task.get_coro()!r}" for task in asyncio.all_tasks(self))
        return "nothing is ready and no timer is set; waiting for ever:\n  " + "\n  ".join(waiting)


def _hair(now: float) -> float:
    return 1e-9 if now < 1e6 else max(1e-9, 2 * math.ulp(now))


def _nothing() -> None:
    pass


def run(main: Coroutine[Any, Any, T], clock: FakeClock | None = None) -> T:
    """`asyncio.run` in virtual time.

    >>> import asyncio
    >>> run(asyncio.sleep(3600, "an hour later"))
    'an hour later'
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)
