"""Waking: the same process at once; another process as soon as the store tells, or by asking it again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from redrive.errors import StoreError
from redrive.store.port import Bell, Store


class Wake:
    """A loop's alarm clock: rings when told or when the time is over."""

    def __init__(self, resting: asyncio.Event) -> None:
        self._event = asyncio.Event()
        self._resting = resting  # set whenever some loop begins to wait
        self.is_waited_for = False
        self.rung = self._rings = 0  # how often before the last wait ended, and since then

    @property
    def pending(self) -> bool:
        """Has it rung since the loop last waited?"""
        return self._event.is_set()

    def ring(self) -> None:
        """Wake the loop; only from the event loop's thread."""
        self._rings += 1
        self._event.set()

    async def wait(self, seconds: float | None, *, hears: bool = True) -> None:
        """Until it rings, or so many seconds at most; `hears`: commits of other processes are news to it."""
        if not self._event.is_set() and (seconds is None or seconds > 0):
            handle = None
            if seconds is not None:
                handle = asyncio.get_running_loop().call_later(seconds, self._event.set)
            self.is_waited_for = hears
            if hears:
                self._resting.set()
            try:
                await self._event.wait()
            finally:
                self.is_waited_for = False
                if handle is not None:
                    handle.cancel()
        self._event.clear()
        self.rung, self._rings = self._rings, 0


async def watch(
    store: Store, wakes: Iterable[Wake], resting: asyncio.Event, low: float, high: float, *, also: Wake
) -> None:
    """Wake everybody when another process has committed, until cancelled."""
    bell = store.bell
    if bell is None:
        await poll(store.changed, wakes, resting, low, high, also=also)
    else:
        await listen(bell, [*wakes, also])


async def listen(bell: Bell, wakes: Iterable[Wake]) -> None:
    """Wake everybody when it rings."""
    loop = asyncio.get_running_loop()
    rung = False

    def ring() -> None:  # from the thread that listens
        nonlocal rung
        if not rung:
            rung = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(wake_all)

    def wake_all() -> None:
        nonlocal rung
        rung = False  # before anybody looks: what comes later is news
        for wake in wakes:
            wake.ring()

    bell.tell(ring)
    try:
        await asyncio.Event().wait()
    finally:
        bell.tell(None)


async def poll(
    changed: Callable[[], bool], wakes: Iterable[Wake], resting: asyncio.Event, low: float, high: float,
    *, also: Wake,
) -> None:  # fmt: skip
    """Look for commits of other processes: often while there are some, seldom when idle, never while all are busy.

    `also` is rung, too, but that it waits is no reason to look.
    """
    while True:
        if not _anybody_waits(wakes):  # whoever works looks for itself, and is not disturbed
            resting.clear()
            await resting.wait()
        await _look_until_all_are_busy(changed, wakes, low, high, also)


async def _look_until_all_are_busy(
    changed: Callable[[], bool], wakes: Iterable[Wake], low: float, high: float, also: Wake
) -> None:
    """A timer that sets itself again: waking a task that sleeps is a second step, a fifth of what being idle costs."""
    loop = asyncio.get_running_loop()
    busy: asyncio.Future[None] = loop.create_future()
    timer: asyncio.TimerHandle

    def look(pause: float) -> None:
        nonlocal timer
        if busy.done():
            return
        try:
            news = changed()
        except StoreError:
            news = False
        if news:
            for wake in (*wakes, also):
                wake.ring()
        elif not _anybody_waits(wakes):
            busy.set_result(None)
            return
        pause = low if news else min(pause * 1.2, high)
        timer = loop.call_later(pause, look, pause)

    timer = loop.call_later(low, look, low)
    try:
        await busy
    finally:
        timer.cancel()


def _anybody_waits(wakes: Iterable[Wake]) -> bool:
    return any(wake.is_waited_for for wake in wakes)
