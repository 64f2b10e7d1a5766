"""A thread that looks for what other processes commit, and has the turns begun that wait for it.

To look from the event loop, wake whoever waits, and have it begin its turn where writing happens takes three changes of
threads, as long as the turn itself: by then the other process writes again, and the turn waits for that as well. So it
is begun by who has looked, in this thread if nobody writes at that moment, and the loop whose turn it is sleeps on.
Whoever has left no turn is rung. It must never write by itself, or decide what there is to be done.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial

from redrive.errors import StoreError
from redrive.runner.bridge import answer, heard
from redrive.runner.standing import Standing
from redrive.runner.stir import Stir
from redrive.runner.wake import Looks, Wake, anybody_waits, has_news
from redrive.store.groups import run_here
from redrive.store.port import Store

Ring = Callable[[Collection[str]], None]  # wake everybody but those who read these logs; from any thread
LEAVE_SECONDS_MAX = 1.0  # a function may hang in a turn of ours: nobody waits for that


class Watchman:
    """Looks as long as somebody waits; see `Looks` for how often."""

    def __init__(
        self, store: Store, wakes: Iterable[Wake], resting: threading.Event, looks: Looks,
        *, standing: Standing, ring: Ring, monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        """`resting`: set whenever some loop begins to wait."""
        self._store, self._wakes, self._resting, self._looks = store, wakes, resting, looks
        self._standing, self._ring, self._monotonic = standing, ring, monotonic
        self._stir = None if store.written is None else Stir(store.written)
        self._stopped = threading.Event()
        self._is_asked = False  # are turns to be begun, by who writes at this moment?
        self._hurry = -1  # is readable when we are to stop

    async def work(self) -> None:
        """Until cancelled."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over.add_done_callback(heard)
        self._hurry, hurried = os.pipe()
        thread = threading.Thread(
            target=run_here, args=(self._watch, partial(answer, over)), name="redrive-watchman", daemon=True
        )
        try:
            thread.start()
            await asyncio.wait([over])
            over.result()  # it ends by itself only if something is wrong
        finally:
            self._stopped.set()
            self._resting.set()
            if not over.done():
                with suppress(BrokenPipeError):  # it has ended meanwhile
                    os.write(hurried, b"!")
            os.close(hurried)
            if thread.ident is None:  # there was no thread to be had
                os.close(self._hurry)
            else:
                await asyncio.wait([over], timeout=LEAVE_SECONDS_MAX)

    # ------------------------------------------------------------ the thread

    def _watch(self) -> None:
        try:
            self._look_on()
        finally:
            os.close(self._hurry)  # here: a turn may keep us longer than anybody waits
            if self._stir is not None:
                self._stir.close()

    def _look_on(self) -> None:
        while not self._stopped.is_set():
            self._resting.clear()  # before we look who waits: who does from here on sets it again
            if not anybody_waits(self._wakes):  # whoever works looks for itself, and is not disturbed
                self._resting.wait()
                self._looks.begin()
                self._stopped.wait(self._looks.pause)
            if not self._stopped.is_set():
                looked_at = self._monotonic()
                self._look()
                self._pause(looked_at)

    def _look(self) -> None:
        if self._stir is not None:
            self._stir.clear()  # before we look: what is written later has to be told
        news = has_news(self._store.changed)
        if news:
            self._begin()
        self._looks.looked(news=news)

    def _pause(self, looked_at: float) -> None:
        """From one look to the next: a turn that was taken since is a part of it."""
        looks, stir = self._looks, self._stir
        is_told = stir is not None and looks.are_seldom and stir.listens()
        pause = looks.limit(is_told=is_told)
        if stir is not None and is_told:
            if not self._is_told(stir, pause):
                return
            looked_at = self._monotonic()
            pause = looks.told(looked_at)
        left = looked_at + pause - self._monotonic()
        if left > 0:
            self._stopped.wait(left)

    def _is_told(self, stir: Stir, seconds: float) -> bool:
        """Wait. True: somebody writes; False: the time is over, or we are to stop."""
        waiting = select.poll()
        for descriptor in (stir.fileno(), self._hurry):
            waiting.register(descriptor, select.POLLIN)
        return any(descriptor == stir.fileno() for descriptor, _ in waiting.poll(1000 * seconds))

    # ------------------------------------------------------------ where writing happens

    def _begin(self) -> None:
        """Begin the turns that wait, here if nobody writes; else once, by who does."""
        if self._is_asked:
            return
        self._is_asked = True
        try:
            self._store.submit(self._turns, self._begun, here=True)
        except StoreError:  # it is closed
            self._is_asked = False

    def _turns(self) -> Collection[str]:
        self._is_asked = False  # before they read: what is committed later has to be looked for again
        return self._standing.begin_all()

    def _begun(self, quiet: Collection[str] | None, error: BaseException | None) -> None:
        self._ring(quiet or ())
