"""Waking: the same process at once; another process as soon as the store tells, or by asking it again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf

from redrive.errors import StoreError
from redrive.runner.stir import Stir
from redrive.store.port import Bell, Store

SLOWER = 1.2  # by how much a pause is longer than the one before, after there was news
MUCH_SLOWER = 2.0  # and after somebody wrote, which is no news: it may have been ourselves
DROWSY = 4  # so many of the shortest pauses are long enough to have somebody tell that they are over
CALM = 20  # so many of the longest pauses without a word, and the next is listened to as if it were the first
ASLEEP = 4  # so many of the longest pauses are slept through by who is told: it looks, in case it was not


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
        stir = None if store.written is None else Stir(store.written)
        try:
            await poll(store.changed, wakes, resting, low, high, also=also, stir=stir)
        finally:
            if stir is not None:
                stir.close()
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
    *, also: Wake, stir: Stir | None = None,
) -> None:  # fmt: skip
    """Look for commits of other processes: often while there are some, seldom when idle, never while all are busy.

    `also` is rung, too, but that it waits is no reason to look.
    """
    while True:
        if not _anybody_waits(wakes):  # whoever works looks for itself, and is not disturbed
            resting.clear()
            await resting.wait()
        await _look_until_all_are_busy(changed, wakes, low, high, also, stir)


async def _look_until_all_are_busy(
    changed: Callable[[], bool], wakes: Iterable[Wake], low: float, high: float, also: Wake, stir: Stir | None
) -> None:
    """A timer that sets itself again: waking a task that sleeps is a second step, a fifth of what being idle costs."""
    loop = asyncio.get_running_loop()
    busy: asyncio.Future[None] = loop.create_future()
    timer: asyncio.TimerHandle
    patience, told_at = low, -inf  # how long to wait after somebody wrote: longer each time that it was no news

    def look(pause: float, growth: float) -> None:
        nonlocal timer, patience
        if busy.done():
            return
        if stir is not None:
            stir.clear()  # before we look: what is written later has to be told
        try:
            news = changed()
        except StoreError:
            news = False
        if news:
            patience = low
            for wake in (*wakes, also):
                wake.ring()
        elif not _anybody_waits(wakes):
            busy.set_result(None)
            return
        pause, growth = (low, SLOWER) if news else (pause * growth, growth)
        longest = high
        if stir is not None and pause > DROWSY * low and stir.listens():
            loop.add_reader(stir, hurry, stir)
            longest = ASLEEP * high
        pause = min(pause, longest)
        timer = loop.call_later(pause, look, pause, growth)

    def hurry(stir: Stir) -> None:
        nonlocal timer, patience, told_at
        if loop.time() - told_at > CALM * high:
            patience = low
        told_at = loop.time()
        loop.remove_reader(stir)
        timer.cancel()
        timer = loop.call_later(patience, look, patience, MUCH_SLOWER)
        patience = min(2 * patience, high)

    timer = loop.call_later(low, look, low, SLOWER)
    try:
        await busy
    finally:
        timer.cancel()
        if stir is not None and stir.is_open:
            loop.remove_reader(stir)


def _anybody_waits(wakes: Iterable[Wake]) -> bool:
    return any(wake.is_waited_for for wake in wakes)
