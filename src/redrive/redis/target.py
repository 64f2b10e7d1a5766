"""A stream as a sink. The client is loaded when there is something to send: a program that only declares needs none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redrive.event import Event
from redrive.sinks.port import Sink

if TYPE_CHECKING:
    from redrive.redis.sending import Sender
    from redrive.redis.stream import Stream

BATCH_MAX = 500  # entries in one call: beyond it they cost what their bytes cost
TIMEOUT = 10.0  # seconds for an answer


class StreamSink(Sink):
    """See `Stream.sink`."""

    batch_max = BATCH_MAX
    whole = True  # of a key, what is behind an event that was not taken was not taken either

    def __init__(self, stream: Stream, name: str) -> None:
        super().__init__(name)
        self.stream, self.timeout = stream, TIMEOUT
        self._sender: Sender | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"{self.stream!r}.sink({self.name!r})"

    async def send(self, events: Sequence[Event[Any]]) -> None:
        """Add them all, in their order."""
        if events:
            await asyncio.to_thread(self._send, events)

    async def probe(self) -> None:
        """Does the server answer?"""
        await asyncio.to_thread(lambda: self._opened().ping())

    async def close(self) -> None:
        """Let go of the connections."""
        sender, self._sender = self._sender, None
        if sender is not None:
            await asyncio.to_thread(sender.close)

    def _send(self, events: Sequence[Event[Any]]) -> None:
        self._opened().send(events)

    def _opened(self) -> Sender:
        with self._opening:
            if self._sender is None:
                from redrive.redis.sending import Sender

                self._sender = Sender(self.stream, self.log, self.timeout)
            return self._sender
