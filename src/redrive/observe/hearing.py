"""The thread that calls listeners, and what it is told.

What can wait is gathered for a moment and heard together: to wake a thread costs more than to count a batch.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

QUEUE_MAX = 10_000  # batches of signals; beyond it the newest are dropped and counted
LATE_SECONDS = 0.1  # how long what can wait is gathered

Heard = Callable[[Sequence[Any]], Any]


class Hearing:
    """One thread; it hears what it is told in order, and what was put off some moments later."""

    def __init__(self, former: threading.Thread | None) -> None:
        """`former`: the one before it may still be busy with what it was told."""
        self._told: queue.Queue[Callable[[], Any] | None] = queue.Queue(QUEUE_MAX)
        self._late: deque[tuple[Heard, Sequence[Any]]] = deque()
        self._is_late = False  # the thread knows that something was put off; cleared before it looks what
        self._due: float | None = None
        self._timers: list[tuple[float, Callable[[], Any]]] = []  # a few: of a listener that counts
        self._former = former
        self.thread = threading.Thread(target=self._hear, name="redrive-signals", daemon=True)
        self.thread.start()

    def tell(self, run: Callable[[], Any]) -> bool:
        """False: there is no room."""
        return self._put(run)

    def put_off(self, listener: Heard, signals: Sequence[Any]) -> bool:
        """A listener that has time gets many batches as one. False: there is no room."""
        if len(self._late) >= QUEUE_MAX:
            return False
        self._late.append((listener, signals))
        if not self._is_late:
            self._is_late = True  # before it is said: the thread may have heard it all by the time we return
            if not self._put(self._begin_waiting):
                self._is_late = False  # the thread looks by itself when it has made room
        return True

    def later(self, seconds: float, run: Callable[[], Any]) -> bool:
        """Run it after so many seconds, if the thread has not ended by then. False: there is no room."""
        at = time.monotonic() + seconds
        return self._put(lambda: self._timers.append((at, run)))

    def flush(self, timeout: float) -> None:
        """Wait until all of it has been heard, at most so long."""
        heard = threading.Event()

        def catch_up() -> None:
            self._catch_up()
            heard.set()

        if self._put(catch_up):
            heard.wait(timeout)

    def end(self) -> bool:
        """The thread ends when all of it has been heard. False: a listener is slow, or hangs, and it goes on."""
        return self._put(None)

    def _put(self, run: Callable[[], Any] | None) -> bool:
        try:
            self._told.put_nowait(run)
        except queue.Full:
            return False
        return True

    # ------------------------------------------------------------ on the thread

    def _hear(self) -> None:
        if self._former is not None:
            self._former.join()
            self._former = None
        while True:
            now = time.monotonic()
            wait = min((at - now for at in self._times()), default=None)
            if wait is not None and wait <= 0:  # also if there is always something else to hear
                if self._due is not None and self._due <= now:
                    self._catch_up()
                self._run_timers(now)
                continue
            try:
                run = self._told.get(timeout=wait)
            except queue.Empty:
                continue
            if run is None:
                self._catch_up()
                return
            run()
            if self._late:
                self._begin_waiting()

    def _times(self) -> Iterator[float]:
        if self._due is not None:
            yield self._due
        for at, _ in self._timers:
            yield at

    def _run_timers(self, now: float) -> None:
        due = [run for at, run in self._timers if at <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for run in due:
            quietly(run, of=BaseException)

    def _begin_waiting(self) -> None:
        if self._due is None:
            self._due = time.monotonic() + LATE_SECONDS

    def _catch_up(self) -> None:
        """Hear what was put off: one call of each listener."""
        self._due, self._is_late = None, False  # who puts off from here on says so
        gathered: dict[int, tuple[Heard, list[Any]]] = {}
        for _ in range(len(self._late)):  # there may be more by now
            listener, signals = self._late.popleft()
            gathered.setdefault(id(listener), (listener, []))[1].extend(signals)
        for listener, signals in gathered.values():
            quietly(listener, signals, of=BaseException)


def quietly(function: Callable[..., Any], *arguments: Any, of: type[BaseException] = Exception) -> None:
    """Run a listener, or a user's hook, where it can do no harm.

    `of`: on a thread of ours not even SystemExit ends anything but the call, or all others would hear nothing more.
    """
    try:
        function(*arguments)
    except of:  # the user's code; the engine goes on
        logging.getLogger("redrive").exception("a listener or on_error hook raised; processing goes on")
