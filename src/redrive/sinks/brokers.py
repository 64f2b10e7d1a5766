"""What the targets that are brokers have in common: a sink, how errors are told, and what an event looks like there.

An event is a CloudEvent in binary mode, on every broker: its attributes are fields (or headers) that begin with `ce_`,
its data is the body, byte for byte. Read back, it is the event it was: id, type, key, time, schema and headers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redrive import cloudevents
from redrive.errors import Reject, UsageError
from redrive.event import Event
from redrive.sinks.port import Sink

ATTRIBUTE = "ce_"
BATCH_MAX = 500  # events in one call: beyond it they cost what their bytes cost
TIMEOUT = 10.0  # seconds for an answer


class BrokerDown(ConnectionError):
    """The broker cannot be reached, or takes nothing now. What was sent may have arrived."""


class TooLarge(Reject):
    """The broker will never take this event, whatever is tried."""


class Sender(Protocol):
    """An open connection to a broker. Blocks; may be used by several threads."""

    def send(self, events: Sequence[Event[Any]]) -> None:
        """Deliver all of them; SomeFailed names those that were not. Nothing of a key goes past what was not taken."""

    def ping(self) -> None:
        """Raise if the broker is not well."""

    def close(self) -> None:
        """Let go of it."""


class BrokerSink(Sink):
    """A broker's stream or topic as a sink. Its client is loaded when there is something to send, and not before."""

    batch_max = BATCH_MAX
    whole = True  # of a key, what is behind an event that was not taken was not taken either

    def __init__(self, name: str, shown: str, connect: Callable[[str, float], Sender]) -> None:
        """`connect`: on behalf of this log, with so many seconds for an answer."""
        super().__init__(name)
        self.timeout = TIMEOUT
        self._shown, self._connect = shown, connect
        self._sender: Sender | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"{self._shown}.sink({self.name!r})"

    async def send(self, events: Sequence[Event[Any]]) -> None:
        """Deliver them all, in their order."""
        if events:
            await asyncio.to_thread(lambda: self._opened().send(events))

    async def probe(self) -> None:
        """Is the broker well?"""
        await asyncio.to_thread(lambda: self._opened().ping())

    async def close(self) -> None:
        """Let go of the connections."""
        sender, self._sender = self._sender, None
        if sender is not None:
            await asyncio.to_thread(sender.close)

    def _opened(self) -> Sender:
        with self._opening:
            if self._sender is None:
                self._sender = self._connect(self.log, self.timeout)
            return self._sender


def attributes(event: Event[Any], source: str) -> dict[str, str]:
    """Everything but the data."""
    fields = cloudevents.attributes(event, source)
    del fields["datacontenttype"]
    fields.pop("subject", None)  # the key is there as `partitionkey`; once is enough
    return {ATTRIBUTE + name: str(value) for name, value in fields.items()}


def check_format(shown: str, format: str) -> None:
    """What is sent must be read back by the very object that sent it."""
    if format not in ("auto", "cloudevents"):
        raise UsageError(
            f'{shown}: what is sent are CloudEvents, and format="{format}" would not read them. '
            "Make another one without format= to send to"
        )
