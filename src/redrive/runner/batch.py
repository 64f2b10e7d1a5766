"""What a projection's turn is about: the events it takes, a piece of them, and what came of it all."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from redrive.event import Event
from redrive.runner.duty import Duty, Work
from redrive.store.packed import next_events
from redrive.store.port import StoreTx


class Nothing(Exception):
    """A full lane, a re-run to wait for: roll back, because even an empty commit wakes whoever watches the file."""


@dataclass(slots=True)
class Turn:
    """What one turn did, so that the loop knows when to come back."""

    settled: int = 0
    more: bool = False  # the batch was as large as may be: there is probably another one
    rerun_after: float = 0.0  # a version conflict: wait this long before the same event runs again
    stopped: bool = False
    halt: str = ""
    lane_full: str = ""

    @property
    def goes_on(self) -> bool:
        """Is there certainly more to do, and nothing to wait for?"""
        return self.more and not (self.rerun_after or self.stopped or self.halt or self.lane_full)

    def forget(self) -> None:
        """Nothing of the last transaction was written: what it found is to be found again."""
        self.rerun_after, self.stopped, self.halt, self.lane_full = 0.0, False, "", ""


@dataclass(slots=True)
class Batch:
    """Events to apply in order."""

    events: list[Event[Any]]
    last: int  # everything read up to this position is in the batch, settled, or not asked for
    full: bool = False  # as many as may be were read: there are probably more
    handed: bool = False  # they were not read at all: whether there are more is still to be asked
    # By position, found when all ran at once: what was raised, and where. It is told each time that they run again.
    failed: dict[int, tuple[BaseException, TracebackType | None]] = field(default_factory=dict)
    alone: Work | None = None  # after a crash: the one event of this batch, behind its mark

    def found(self, position: int) -> BaseException:
        """What was raised for this one."""
        error, trace = self.failed[position]
        return error.with_traceback(trace)

    def cut(self, last: int) -> None:
        """What is behind this position comes round again."""
        self.events = [event for event in self.events if event.position <= last]
        self.last, self.full = last, True


@dataclass(slots=True)
class Span:
    """A piece of a batch between two savepoints."""

    run: list[Event[Any]]  # to be called
    follow: list[Work]  # to queue behind a head
    end: int  # index of the first event behind it
    failed: Work | None = None  # the event at `end`, if it failed

    def cut(self, last: int, end: int) -> None:
        """Nothing behind this position was called: it comes round again."""
        self.run = [event for event in self.run if event.position <= last]
        self.follow = [work for work in self.follow if work.position < last]
        self.failed, self.end = None, end


def next_batch(duty: Duty, tx: StoreTx) -> Batch:
    """The next events that the filter asks for."""
    engine = duty.engine
    duty.log_id = duty.log_id or tx.logs.id_of(duty.subscription.source)
    events, goes_on = next_events(tx, duty.log_id, duty.window.position, engine.settings.batch_max, engine.types)
    return batch_of(duty, events, full=goes_on)


def has_handed(duty: Duty) -> bool:
    """Is what comes next in memory?"""
    return bool(duty.engine.handed.after(duty.subscription.source, duty.window.position, 1))


def handed_batch(duty: Duty) -> Batch | None:
    """The same of what has just landed, if it is here."""
    engine = duty.engine
    if not duty.log_id:  # it was not there yet when we last looked
        return None
    events = engine.handed.after(duty.subscription.source, duty.window.position, engine.settings.batch_max)
    if not events:
        return None
    batch = batch_of(duty, events, full=True)
    batch.handed = True
    return batch if batch.events else None


def batch_of(duty: Duty, events: list[Event[Any]], *, full: bool) -> Batch:
    """What the filter asks for of these events, which are the next."""
    subscription = duty.subscription
    batch = Batch(events, events[-1].position if events else duty.window.position, full=full)
    if subscription.types and not all(map(subscription.wants, {event.type for event in events})):
        batch.events = [event for event in batch.events if subscription.wants(event.type)]
    if duty.share.partitions > 1:
        batch.events = [event for event in batch.events if duty.share.has_event(event.id, event.key)]
    if duty.window.has_done():
        batch.events = [event for event in batch.events if not duty.window.is_done(event.position)]
    return batch
