"""Waking: the same process at once; another process as soon as the store tells, or by asking it again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from typing import Protocol

from redrive.errors import StoreError
from redrive.runner.stir import Stir
from redrive.store.port import Bell, Store

SLOWER = 1.2  # by how much a pause is longer than the one before, after there was news
MUCH_SLOWER = 2.0  # and after somebody wrote, which is no news: it may have been ourselves
DROWSY = 4  # so many of the shortest pauses are long enough to have somebody tell that they are over
CALM = 20  # so many of the longest pauses without a word, and the next is listened to as if it were the first
ASLEEP = 4  # so many of the longest pauses are slept through by who is told: it looks, in case it was not


class Flag(Protocol):
    """An Event, of threads or of the event loop."""

    def set(self) -> None: ...


class Wake:
    """A loop's alarm clock: rings when told or when the time is over."""

    def __init__(self, resting: Flag) -> None:
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


class Looks:
    """How soon to look again: often while there is news, seldom when idle."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high
        self._patience, self._told_at = low, -inf  # how long to wait after somebody wrote: longer if it was no news
        self.begin()

    def begin(self) -> None:
        """As if there had been news."""
        self.pause, self._growth = self._low, SLOWER

    def looked(self, *, news: bool) -> None:
        """We have looked."""
        if news:
            self._patience = self._low
            self.begin()
        else:
            self.pause *= self._growth

    @property
    def are_seldom(self) -> bool:
        """Is the pause so long that somebody might tell that it is over?"""
        return self.pause > DROWSY * self._low

    def limit(self, *, is_told: bool) -> float:
        """The pause, which is not longer than it may be."""
        self.pause = min(self.pause, ASLEEP * self._high if is_told else self._high)
        return self.pause

    def told(self, now: float) -> float:
        """Somebody writes: it takes a moment until there is something to be seen."""
        if now - self._told_at > CALM * self._high:
            self._patience = self._low
        self._told_at, self.pause, self._growth = now, self._patience, MUCH_SLOWER
        self._patience = min(2 * self._patience, self._high)
        return self.pause


async def watch(
    store: Store, wakes: Iterable[Wake], resting: asyncio.Event, low: float, high: float, *, also: Wake
) -> None:
    """Wake everybody when another process has committed, until cancelled; on the event loop alone."""
    stir = None if store.written is None else Stir(store.written)
    try:
        await poll(store.changed, wakes, resting, low, high, also=also, stir=stir)
    finally:
        if stir is not None:
            stir.close()


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
        if not anybody_waits(wakes):  # whoever works looks for itself, and is not disturbed
            resting.clear()
            await resting.wait()
        await _look_until_all_are_busy(changed, wakes, Looks(low, high), also, stir)


async def _look_until_all_are_busy(
    changed: Callable[[], bool], wakes: Iterable[Wake], looks: Looks, also: Wake, stir: Stir | None
) -> None:
    """A timer that sets itself again: waking a task that sleeps is a second step, a fifth of what being idle costs."""
    loop = asyncio.get_running_loop()
    busy: asyncio.Future[None] = loop.create_future()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        if busy.done():
            return
        if stir is not None:
            stir.clear()  # before we look: what is written later has to be told
        news = has_news(changed)
        if news:
            for wake in (*wakes, also):
                wake.ring()
        elif not anybody_waits(wakes):
            busy.set_result(None)
            return
        looks.looked(news=news)
        is_told = False
        if stir is not None and looks.are_seldom and stir.listens():
            loop.add_reader(stir, hurry, stir)
            is_told = True
        timer = loop.call_later(looks.limit(is_told=is_told), look)

    def hurry(stir: Stir) -> None:
        nonlocal timer
        loop.remove_reader(stir)
        timer.cancel()
        timer = loop.call_later(looks.told(loop.time()), look)

    timer = loop.call_later(looks.pause, look)
    try:
        await busy
    finally:
        timer.cancel()
        if stir is not None and stir.is_open:
            loop.remove_reader(stir)


def has_news(changed: Callable[[], bool]) -> bool:
    """Has another process committed? Who cannot ask the store is halted by it elsewhere."""
    try:
        return changed()
    except StoreError:
        return False


def anybody_waits(wakes: Iterable[Wake]) -> bool:
    """Does some loop wait for what others commit?"""
    return any(wake.is_waited_for for wake in wakes)
