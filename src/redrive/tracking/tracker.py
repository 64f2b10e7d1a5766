"""The tracker: takes events from callers that must not wait, and carries them into the store on a thread of its own.

A caller pays for one append to a queue. The thread starts with the first event and ends with `close`; a
forked child begins with an empty queue, because what was in it is the parent's and will be stored by the parent.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Protocol

from redrive.clock import Env
from redrive.codec import encode_data
from redrive.event import NewEvent, new_id
from redrive.tracking.haul import Haul
from redrive.tracking.haul import Home as HaulHome
from redrive.tracking.report import Report
from redrive.tracking.spool import Entry
from redrive.tracking.track import FLUSH_SECONDS
from redrive.tracking.waiting import Closed, Waiting

GATHER_SECONDS = (
    0.005  # how long the first event of a batch waits for others; a commit costs as much as hundreds of them
)
END_SECONDS = 30.0  # for a disk that hangs

REFUSED_CHARS_MAX = 8_192  # of each text that is kept
REFUSED = ":refused"  # the log beside a log, for what `quiet()` swallowed


class Home(HaulHome, Protocol):
    """What a tracker needs of its app's runtime."""

    @property
    def spool(self) -> Path | None: ...


class Tracker:
    """Of one app in one process."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._spool = home.spool
        self.report = Report(home)
        self._begin()
        self._ended = False
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()  # of starting and ending
        self._reset()

    def _reset(self) -> None:
        self._wake = threading.Event()
        self._moved = threading.Condition()
        self._waiting = Waiting(self._home.settings.track_memory_max)
        self._haul: Haul | None = None
        self._thread: threading.Thread | None = None
        self._idle = True  # must a caller wake the thread?
        self._stopping = False
        self._hurries = 0  # callers that wait for everything to be stored

    # ------------------------------------------------------------ for callers

    def put(self, log: str, event: NewEvent) -> None:
        """Take an event on. Never waits; without room it is lost, counted and said so."""
        while True:
            try:
                if not self._waiting.put(log, event):
                    self.report.count("dropped", 1, log, "memory and spool are full")
                break
            except Closed:  # its successor is on the way
                with self._lock:
                    pass
        if self._idle:
            self.nudge()

    def refuse(self, log: str, kind: str, error: BaseException, shown: str) -> None:
        """What `track` could not take on: counted, logged, and kept as text beside the log."""
        self.report.count("refused", 1, log, kind, type(error).__name__, str(error))
        self.put(log + REFUSED, refusal(self._home.env, kind, error, shown))

    def nudge(self) -> None:
        """See to it that somebody looks at what there is."""
        if self._ended:
            self._say_last_words()
        elif self._home.inline:
            self._step_here()
        else:
            if self._thread is None:
                self._start()
            if not self._wake.is_set():  # one who was woken before and did not look yet will see this, too
                self._wake.set()

    def look(self) -> None:
        """Take in what processes that died have left, if there is anything."""
        if self._spool is not None and self._spool.is_dir():
            self.nudge()

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Is everything that was tracked before in the store? Waits for that, but not for a store that refuses."""
        target, haul = self._waiting.put_count, self._haul
        if haul is None:
            return target == 0
        failures = haul.failures
        haul.hurry()
        if self._thread is None:
            self._step_here()
        else:
            with self._moved:
                self._hurries += 1
                self._wake.set()
                self._moved.wait_for(lambda: haul.done >= target or haul.failures > failures, timeout)
                self._hurries -= 1
        return haul.done >= target

    def close(self) -> None:
        """Bring everything into the store, or else onto the disk; the next event starts anew."""
        if self._haul is not None:
            self.flush()
        with self._lock:
            haul, thread, waiting = self._haul, self._thread, self._waiting
            if haul is None:
                return
            waiting.close()
            if thread is None:
                haul.finish(self._home.env.clock.monotonic())
            else:
                self._stopping = True
                self._hurries += 1
                self._wake.set()
                if thread is not threading.current_thread():
                    thread.join(END_SECONDS)
            self._reset()

    def end(self) -> None:
        """At the end of the process: no thread can be relied on after this."""
        self.close()
        self._ended = True

    def abandon(self) -> None:
        """Forget everything, as a process that was killed does."""
        if self._haul is not None:
            self._haul.leave()
        self._begin()

    # ------------------------------------------------------------ the thread

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._make_haul()
                self._thread = threading.Thread(target=self._loop, name="redrive-tracker", daemon=True)
                self._thread.start()
                _settle_with_child()

    def _make_haul(self) -> Haul:
        haul = self._haul
        if haul is None:
            haul = self._haul = Haul(
                self._home, self._spool, self._waiting, self.report, self._wake.set, self._refuse_stored
            )
        return haul

    def _refuse_stored(self, entry: Entry, error: BaseException) -> None:
        """The store has looked at it and said no, for a reason that will not go away."""
        log, event = entry
        self.report.count("refused", 1, log, event.type, type(error).__name__, str(error))
        if not log.endswith(REFUSED):
            shown = event.data_raw.decode("utf-8", "replace")
            self._waiting.put(log + REFUSED, refusal(self._home.env, event.type, error, shown), force=True)

    def _loop(self) -> None:
        haul, waiting, wake, clock = self._haul, self._waiting, self._wake, self._home.env.clock
        assert haul is not None
        while not self._stopping:
            wake.clear()
            wait = haul.step(clock.monotonic())
            with self._moved:
                self._moved.notify_all()
            self._idle = not waiting
            if self._idle and waiting:  # one came in between, and woke nobody
                self._idle = False
                continue
            if wake.wait(wait) and waiting and self._idle and not self._hurries:
                self._idle = False
                wake.clear()
                wake.wait(GATHER_SECONDS)
            self._idle = False
        haul.finish(clock.monotonic())

    def _step_here(self) -> None:
        """Without a thread: everything that can be done now."""
        if self._home.is_open and self._home.store.inside_transaction():
            return  # it would wait for itself: the next one who comes sees to it
        haul, clock = self._make_haul(), self._home.env.clock
        haul.step(clock.monotonic())
        while haul.has_work(clock.monotonic()):
            haul.step(clock.monotonic())

    def _say_last_words(self) -> None:
        """After the end: what is tracked now goes to the disk at once."""
        with self._lock:
            self._waiting.close()
            self._make_haul().finish(self._home.env.clock.monotonic())
            self._reset()

    def after_fork(self) -> None:
        """In the child."""
        self.abandon()
        self.report = Report(self._home)


def refusal(env: Env, kind: str, error: BaseException, shown: str) -> NewEvent:
    """What is kept of an event that could not be stored."""
    now = env.clock.now()
    texts = {"type": kind, "error_type": type(error).__name__, "error_message": str(error), "data": shown}
    clean = {name: _printable(text[:REFUSED_CHARS_MAX]) for name, text in texts.items()}
    return NewEvent(
        new_id(now, env.dice), "track.refused", None, 1, int(now * 1e6), None, encode_data(clean), None, False
    )


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # a lone surrogate may be why it was refused


_all: weakref.WeakSet[Tracker] = weakref.WeakSet()


def settle_all() -> None:
    """Whatever this process has tracked is in the store when this returns, or else on the disk. Raises nothing."""
    for tracker in list(_all):
        if not tracker.flush():
            tracker.close()


def _settle_with_child() -> None:
    """A process of multiprocessing's ends without its exit handlers; but it has handlers of its own."""
    multiprocessing = sys.modules.get("multiprocessing.util")
    parent = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and parent is not None and parent.parent_process() is not None:
        multiprocessing.Finalize(None, settle_all, exitpriority=100)


def _end_all() -> None:
    for tracker in list(_all):
        tracker.end()


def _after_fork() -> None:
    for tracker in list(_all):
        tracker.after_fork()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork)
