"""What may happen to a connection that goes through a fault proxy, and where."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from redrive.errors import UsageError

Way = Literal["requests", "replies"]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Read = Callable[[Way, asyncio.StreamReader], Awaitable[bytes]]
Find = Callable[["Link", Way, bytes, bool], list[tuple[int, "Trap"]]]

WAYS: tuple[Way, Way] = ("requests", "replies")
WAIT_SECONDS_MAX = 60.0  # for a fault to happen, on a busy machine
CHUNK_BYTES = 65_536
_RESET = struct.pack("ii", 1, 0)  # to linger for no time: what is closed then is reset


class Trap(ABC):
    """A fault that waits for its place in the talk; `fired` tells whether it has happened."""

    def __init__(self, way: Way, holding: bytes | None, nth: int, after_bytes: int | None) -> None:
        if nth < 1 or (after_bytes is not None and after_bytes < 1) or holding == b"":
            raise UsageError("a fault happens at the first request or later, after one byte or more")
        if after_bytes is not None and (holding is not None or nth > 1):
            raise UsageError("a fault happens after so many bytes, or at a request: give one of them")
        self.way, self._holding = way, holding
        self._left, self._bytes_left = nth, after_bytes
        self._tails: dict[Link, bytes] = {}  # the end of what has passed, which may be the beginning of `holding`
        self._fired = threading.Event()

    @property
    def fired(self) -> bool:
        """Has it happened?"""
        return self._fired.is_set()

    def wait(self, seconds: float = WAIT_SECONDS_MAX) -> None:
        """Until it has happened."""
        if not self._fired.wait(seconds):
            raise TimeoutError(f"the fault did not happen within {seconds:g} s: nothing came by its place")

    def find(self, link: Link, data: bytes, begins: bool) -> int | None:
        """Where in these bytes it happens; each is shown once."""
        if self._bytes_left is not None:
            at, self._bytes_left = self._bytes_left, self._bytes_left - len(data)
            return at if at <= len(data) else None
        if self._holding is None:
            self._left -= begins
            return 0 if begins and self._left == 0 else None
        tail = self._tails.get(link, b"")
        text, seen = tail + data, 0
        while (at := text.find(self._holding, seen)) >= 0:
            seen = at + len(self._holding)
            self._left -= 1
            if self._left == 0:
                return max(0, at - len(tail))
        self._tails[link] = text[max(seen, len(text) - len(self._holding) + 1) :]
        return None

    @abstractmethod
    async def happen(self, link: Link) -> None:
        """What is done to the connection; the bytes before it have passed."""

    def has_happened(self) -> None:
        """Let those go on who wait for it."""
        self._fired.set()


class Cut(Trap):
    """The connection ends, by a reset or in an orderly way."""

    reset = True

    async def happen(self, link: Link) -> None:
        """On both sides."""
        await link.end(self.reset)
        self.has_happened()


class Stall(Trap):
    """From here on what comes is held."""

    async def happen(self, link: Link) -> None:
        """In this direction, of this connection."""
        link.flows[self.way].clear()
        self.has_happened()


class LoseReply(Trap):
    """The request arrives, its answer does not."""

    silent = False

    async def happen(self, link: Link) -> None:
        """What comes back next is the answer: the server has done its work by then."""
        link.losing = self


class Link:
    """One connection of a program, and ours to the server for it."""

    def __init__(self, read: Read, find: Find, delays: Mapping[Way, float], program: Streams, server: Streams) -> None:
        self._read, self._find, self._delays = read, find, delays
        self._ends: dict[Way, Streams] = {
            "requests": (program[0], server[1]),
            "replies": (server[0], program[1]),
        }
        self.flows: dict[Way, asyncio.Event] = {way: asyncio.Event() for way in WAYS}
        self.losing: LoseReply | None = None  # the next reply is lost
        self.is_deaf = False  # a reply was lost without a word: none comes any more
        self._is_asked = False  # the program has spoken last

    async def carry(self) -> None:
        """Both ways, until both have ended."""
        await asyncio.gather(*(self._carry(way) for way in WAYS))

    async def _carry(self, way: Way) -> None:
        reader, writer = self._ends[way]
        while data := await self._read(way, reader):
            begins, self._is_asked = way == "requests" and not self._is_asked, way == "requests"
            if way == "replies" and (self.losing or self.is_deaf):
                await self._lose()
                continue
            sent = 0
            for at, trap in self._find(self, way, data, begins):
                if isinstance(trap, LoseReply):
                    await trap.happen(self)
                    continue
                await self._send(way, writer, data[sent:at])
                sent = at
                await trap.happen(self)
            await self._send(way, writer, data[sent:])
        await self.flows[way].wait()
        if not writer.is_closing():
            writer.write_eof()

    async def _send(self, way: Way, writer: asyncio.StreamWriter, data: bytes) -> None:
        if not data:
            return
        if delay := self._delays[way]:
            await asyncio.sleep(delay)
        await self.flows[way].wait()
        writer.write(data)
        await writer.drain()

    async def _lose(self) -> None:
        trap, self.losing = self.losing, None
        if trap is None:
            return
        if trap.silent:
            self.is_deaf = True
        else:
            await self.end(reset=True)
        trap.has_happened()

    async def end(self, reset: bool) -> None:
        """On both sides: with a reset, or after what has passed has arrived. What is held never does."""
        for _, writer in self._ends.values():
            if not reset:
                with contextlib.suppress(OSError):
                    await writer.drain()
            end(writer, reset)
        for flow in self.flows.values():
            flow.set()
        lost, self.losing = self.losing, None
        if lost is not None:  # the answer was not there yet, and now nothing can bring it
            lost.has_happened()


def end(writer: asyncio.StreamWriter, reset: bool) -> None:
    """Close one side; a reset is what a program sees whose server's machine has started anew."""
    if not reset:
        writer.close()
        return
    if not writer.transport.is_closing():
        kept: Any = writer.get_extra_info("socket")
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
