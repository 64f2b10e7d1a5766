"""Signals: every fact the engine knows, as a typed value, handed to listeners per batch.

Listeners run on a thread of their own behind a bounded queue: one that raises, blocks or is slow
loses signals (counted), never an event. No signal carries a payload.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from redrive.observe.hearing import Hearing, quietly


class Signal(msgspec.Struct, frozen=True):
    """Something happened."""


class Appended(Signal, frozen=True):
    """Events were stored."""

    log: str
    count: int
    position: int


class Scheduled(Signal, frozen=True):
    """Events were stored that are to be appended later."""

    log: str
    count: int


class CameDue(Signal, frozen=True):
    """Scheduled events were appended, the first of them so many seconds after its time."""

    log: str
    count: int
    late: float


class Settled(Signal, frozen=True):
    """A transaction committed that applied or ignored events: how many, and how long it took."""

    subscription: str
    applied: int
    ignored: int
    position: int
    seconds: float


class Failing(Signal, frozen=True):
    """Common to the fates of one failed event."""

    subscription: str
    event_id: str
    type: str
    position: int
    letter: int
    attempt: int
    error_type: str
    error_message: str
    fingerprint: str


class Retried(Failing, frozen=True):
    """An attempt failed; the next is due after `delay` seconds."""

    delay: float


class Buried(Failing, frozen=True):
    """A dead letter: attempts are over."""

    reason: str


class Discarded(Failing, frozen=True):
    """Dropped because an explicit rule asked for it."""

    rule: str


class Parked(Signal, frozen=True):
    """Events queued behind the head of their lane."""

    subscription: str
    count: int


class Recovered(Signal, frozen=True):
    """A letter was applied: by a retry, a replay, or because its head was settled."""

    subscription: str
    event_id: str
    letter: int
    attempt: int
    replayed: bool


class Operated(Signal, frozen=True):
    """An operator replayed, discarded, edited, resolved, reset … something."""

    action: str
    subscription: str
    target: str
    who: str


class LeaseTaken(Signal, frozen=True):
    """This process owns the subscription now."""

    subscription: str
    epoch: int
    unclean: bool


class LeaseReleased(Signal, frozen=True):
    """Handed over gracefully."""

    subscription: str
    epoch: int


class LeaseLost(Signal, frozen=True):
    """Another owner took over; nothing of ours was written since."""

    subscription: str
    epoch: int


class Halted(Signal, frozen=True):
    """The subscription stopped by itself; it tries again after `wait` seconds."""

    subscription: str
    reason: str
    wait: float


class Resumed(Signal, frozen=True):
    """A halted subscription works again."""

    subscription: str


class StandingBy(Signal, frozen=True):
    """The process may not run the subscription: it is declared otherwise, or another process rebuilds it."""

    subscription: str
    reason: str


class HandlerStuck(Signal, frozen=True):
    """A function overran its timeout and cannot be stopped; its key stays busy until it returns."""

    subscription: str
    event_id: str
    seconds: float


class LaneFull(Signal, frozen=True):
    """Intake waits: a key holds as many letters as a lane may."""

    subscription: str
    lane: str
    size: int


class BreakerOpened(Signal, frozen=True):
    """A dependency is left alone: for so many seconds, or (infinity) until somebody closes the breaker."""

    subscription: str
    breaker: str
    seconds: float
    key: str = ""  # where each key has one


class BreakerProbing(Signal, frozen=True):
    """A few calls at a time find out whether the dependency is well again."""

    subscription: str
    breaker: str
    key: str = ""


class BreakerClosed(Signal, frozen=True):
    """The dependency is well: everything goes through."""

    subscription: str
    breaker: str
    key: str = ""


class Probed(Signal, frozen=True):
    """A sink whose breaker is open was asked how it is; if it is not well, what it said."""

    subscription: str
    breaker: str
    well: bool
    error_type: str
    error_message: str


class AutoReplayed(Signal, frozen=True):
    """Dead letters were sent round again without anybody asking; `cause` is cron or recovery."""

    subscription: str
    operation: int
    count: int
    cause: str


class AutoReplayEnded(Signal, frozen=True):
    """An automatic replay is over: done, by a relapse of the dependency, or cancelled."""

    subscription: str
    operation: int
    applied: int
    failed: int
    how: str


class RuleBroken(Signal, frozen=True):
    """A keep or discard rule could not answer, so the letter was kept."""

    subscription: str
    rule: str


class Spooled(Signal, frozen=True):
    """Tracked events were written to the spool, because the store did not take them in time."""

    count: int


class SpoolTaken(Signal, frozen=True):
    """Events of a spool file were committed."""

    count: int


class SpoolDamaged(Signal, frozen=True):
    """A spool file held something that is no event; it was set aside beside it."""

    file: str
    bytes: int


class TrackDropped(Signal, frozen=True):
    """Tracked events are lost: there was no room for them in memory, in the spool or in the store."""

    log: str
    count: int
    reason: str


class TrackRefused(Signal, frozen=True):
    """`track` was given what cannot be stored, and nobody was told because of `quiet()`."""

    log: str
    type: str
    count: int
    error_type: str
    error_message: str


class TrackLimited(Signal, frozen=True):
    """Tracked events were over the intake limit of their log; `fate` says what became of them."""

    log: str
    count: int
    fate: str


class Stopping(Signal, frozen=True):
    """The worker was asked to stop."""

    why: str


ALL: tuple[type[Signal], ...] = (
    Appended, Scheduled, CameDue, Settled, Retried, Buried, Discarded, Parked, Recovered, Operated, LeaseTaken,
    LeaseReleased, LeaseLost, Halted, Resumed, StandingBy, HandlerStuck, LaneFull, BreakerOpened, BreakerProbing,
    BreakerClosed, Probed, AutoReplayed, AutoReplayEnded, RuleBroken, Spooled, SpoolTaken, SpoolDamaged, TrackDropped,
    TrackRefused, TrackLimited, Stopping,
)  # fmt: skip

Listener = Callable[[Sequence[Signal]], Any]
Later = Callable[[float, Callable[[], Any]], bool]


class Choosy:
    """A listener that says beforehand whether it has anything to do with a batch. Quick: it is asked by the engine."""

    def wants(self, signals: Sequence[Signal]) -> bool:
        """Is it to be called with these?"""
        raise AssertionError


class Patient:
    """A listener that may hear of a batch some moments later, together with others: what counts has time."""


class Closing:
    """A listener that has something left to say when no more signals follow."""

    def close(self) -> None:
        """Say it. Runs on the thread of the listeners after all signals; more may follow later."""
        raise AssertionError


class Signals:
    """Hands batches of signals to listeners, away from the engine's threads."""

    def __init__(self, *, inline: bool = False) -> None:
        self._listeners: list[Listener] = []
        self._hearing: Hearing | None = None
        self._is_closed = False  # the thread ends when it comes to that
        self._lock = threading.Lock()
        self._inline = inline
        self.dropped = 0

    def listen(self, listener: Listener) -> Listener:
        """Add a listener; it gets a sequence of signals per batch."""
        self._listeners.append(listener)
        return listener

    @property
    def are_heard(self) -> bool:
        """Does anybody listen? Else a signal need not be made."""
        return bool(self._listeners)

    def tell(self, signals: Iterable[Signal]) -> None:
        """Hand over what happened; never blocks, never raises."""
        batch = tuple(signals)
        if batch and self._listeners:
            for listener in self._listeners:
                # To wake a thread for what it would only throw away costs more than the commit it is told of.
                if isinstance(listener, Choosy) and not listener.wants(batch):
                    continue
                if isinstance(listener, Patient) and not self._inline:
                    self.dropped += not self._present().put_off(listener, batch)
                else:
                    self.call(listener, batch)

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a user's hook where it can do no harm."""
        if self._inline:
            quietly(function, *arguments)
        elif not self._present().tell(lambda: quietly(function, *arguments, of=BaseException)):
            self.dropped += 1

    def later(self, seconds: float, function: Callable[[], Any]) -> bool:
        """Call a function after some seconds on the thread of the listeners. False: it will not be called."""
        return not self._inline and self._present().later(seconds, function)

    def heir(self) -> Signals:
        """The same listeners after a fork, which the thread that calls them does not survive."""
        fresh = Signals(inline=self._inline)
        fresh._listeners = self._listeners
        return fresh

    def flush(self, timeout: float) -> None:
        """Wait until what was told has been heard, at most so long."""
        hearing = self._hearing
        if hearing is not None and self._is_closed:
            hearing.thread.join(timeout)
        elif hearing is not None and hearing.thread.is_alive():
            hearing.flush(timeout)

    def close(self) -> None:
        """The thread ends when all that was told has been heard; whoever tells more gets another, in its turn."""
        hearing = self._hearing
        if self._inline or (hearing is not None and not self._is_closed and hearing.thread.is_alive()):
            for listener in self._listeners:
                if isinstance(listener, Closing):
                    self.call(listener.close)
        with self._lock:
            if self._hearing is not None and not self._is_closed and self._hearing.thread.is_alive():
                self._is_closed = self._hearing.end()

    def _present(self) -> Hearing:
        """The thread that hears what is told from now on."""
        hearing = self._hearing
        if hearing is not None and not self._is_closed and hearing.thread.is_alive():
            return hearing
        with self._lock:
            former = self._hearing
            if former is None or self._is_closed or not former.thread.is_alive():  # else another was faster
                self._hearing, self._is_closed = Hearing(None if former is None else former.thread), False
            assert self._hearing is not None
            return self._hearing
