"""What a sink is: a name, `send`, and perhaps `probe`.

A delivery calls `send` with the next events of its lanes and takes its return as the receipt: everything in the
list is delivered. Raising means that nothing is known to be delivered, unless the error says which items failed.
A sink never waits and tries again by itself: that is policy, and durable.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from redrive.errors import UsageError
from redrive.event import Event, check_subscription


class Sink:
    """Somewhere events go. `name` is its identity, for good: not the address, which may change.

    Inherit from it and write `send`; `SinkContract` of redrive.testing.contracts shows whether it keeps the rules.
    """

    name: str
    batch_max: int = 1  # how many events one call of `send` takes
    # Does `send` deliver all of a list or nothing; or of a key, at least, nothing that comes after what it says has
    # failed? Then a list may hold several events of a key.
    whole: bool = False
    log: str = ""  # the log that is delivered; the delivery says so before it opens the sink
    batch_wait: float = 0.0  # seconds that events may wait for company, where the sink likes its batches full

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise UsageError("a sink needs a name, which it keeps when its address changes: name='crm'")
        self.name = name

    async def open(self) -> None:
        """Before the first `send` of a process; not a place for connections that may fail."""

    async def send(self, events: Sequence[Event[Any]]) -> None:
        """Deliver all of them, in this order. May come again with the same ids: delivery is at least once.

        Raise `SomeFailed` where the answer says which of them failed; the others are then delivered.
        """
        raise UsageError(f"the sink {self.name!r} has no send(events)")

    async def probe(self) -> None:
        """Raise if the other side is not well. Called while a breaker is not closed; without one, events probe."""

    async def close(self) -> None:
        """After the last `send`."""

    @classmethod
    def can_probe(cls) -> bool:
        """Was `probe` written?"""
        return cls.probe is not Sink.probe


def check_sink(sink: Sink) -> None:
    """Refuse a sink that could never deliver: every event would be a letter, or stand still."""
    name = getattr(sink, "name", None)
    if name is None:
        raise UsageError(f"the sink {type(sink).__name__} has no name: its __init__ calls super().__init__(name)")
    check_subscription(name)
    if type(sink).send is Sink.send:
        raise UsageError(f"{name}: it has no send: write async def send(self, events)")
    if not inspect.iscoroutinefunction(sink.send):
        raise UsageError(f"{name}: send is an async def; what blocks goes into asyncio.to_thread(…)")
    if not isinstance(sink.batch_max, int) or sink.batch_max < 1:
        raise UsageError(f"{name}: batch_max={sink.batch_max!r}; give a number from 1 on")
    if not isinstance(sink.batch_wait, int | float) or not 0 <= sink.batch_wait < inf:
        raise UsageError(f"{name}: batch_wait={sink.batch_wait!r}; give seconds, as a number")


class SomeFailed(Exception):
    """Some items of a list were not delivered: their index and the error of each. The rest was."""

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        if not all(isinstance(at, int) and isinstance(error, BaseException) for at, error in errors.items()):
            raise UsageError("SomeFailed takes {index: exception} of the events that failed, counted from 0")
        super().__init__(f"{len(errors)} of the events were refused")
        self.errors = dict(errors)
