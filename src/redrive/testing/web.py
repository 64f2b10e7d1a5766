"""A real HTTP server for tests, that misbehaves when told to: slow, silent, rude, cut off in the middle.

It runs in a thread of its own, so that any test can use it, whatever loop that runs in. It keeps what it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

HEAD_BYTES_MAX = 262_144  # of a request's line and headers
_BLOCK = b"x" * 65_536


@dataclass(frozen=True, slots=True)
class Request:
    """What came. The names of headers are lower case; `at` is when, on the monotonic clock."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float
    connection: int  # which one of the server's it came through, counted from 1


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, after a while if `delay` says so. With `cut`, only so many bytes of the body before the end."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay: float = 0.0
    cut: int | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """Take the request and never answer."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Take the request, do the work, and close the connection without a word: the reply is lost."""


@dataclass(frozen=True, slots=True)
class CutIn:
    """Close the connection in the middle of the request, after so many bytes of its body."""

    after: int = 1


@dataclass(frozen=True, slots=True)
class Endless:
    """An answer whose body does not end."""

    status: int = 200


@dataclass(frozen=True, slots=True)
class Babble:
    """Bytes that are not HTTP."""

    raw: bytes = b"hello, this is a mail server\r\n\r\n"


Behaviour = Reply | Hang | Drop | CutIn | Endless | Babble
OK = Reply()


class HttpServer:
    """Answers 200 until told otherwise.

    >>> with HttpServer() as server:
    ...     server.then(Reply(500), Reply(429, {"retry-after": "3"}))   # the next two; afterwards 200 again
    ...     server.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.requests: list[Request] = []  # those that were taken, in the order they came
        self.behave: Behaviour | Callable[[Request], Behaviour] = OK
        self.in_flight_peak = 0
        self._next: deque[Behaviour] = deque()
        self._tls, self._port = tls, port
        self._in_flight = self._connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread: threading.Thread | None = None

    def then(self, *behaviours: Behaviour) -> None:
        """What the next requests meet, one each."""
        self._next.extend(behaviours)

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def is_running(self) -> bool:
        """Does it take connections?"""
        return self._thread is not None

    def start(self) -> None:
        """Listen; again on the same port after `stop`."""
        self._loop = asyncio.new_event_loop()
        ready: threading.Event = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="http-server", daemon=True)
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        """Refuse connections and end those that are open, as a machine that goes away does."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
            thread.join()

    def __enter__(self) -> HttpServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, ready: threading.Event) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        self._ended = asyncio.Event()
        server = await asyncio.start_server(
            self._connected, "127.0.0.1", self._port, ssl=self._tls, limit=HEAD_BYTES_MAX, reuse_address=True
        )
        self._port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._ended.wait()
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        self._writers.add(writer)
        # Whatever a client does to a connection is its business; ours is what it sent before.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            while await self._exchange(reader, writer, number):
                pass
        self._writers.discard(writer)
        writer.transport.abort() if writer.is_closing() else writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        """One request and its answer; whether another may follow."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in head[1:] if line)}
        early = self._next[0] if self._next else self.behave
        if isinstance(early, CutIn):
            if self._next:
                self._next.popleft()
            await reader.readexactly(min(early.after, int(headers.get("content-length", 0))))
            writer.transport.abort()
            return False
        body = await _body(reader, headers)
        request = Request(method, path, headers, body, time.monotonic(), number)
        self._in_flight += 1
        self.in_flight_peak = max(self.in_flight_peak, self._in_flight)
        try:
            return await self._answer(writer, request)
        finally:
            self._in_flight -= 1

    async def _answer(self, writer: asyncio.StreamWriter, request: Request) -> bool:
        if self._next:
            behaviour: Any = self._next.popleft()
        else:
            behaviour = self.behave(request) if callable(self.behave) else self.behave
        self.requests.append(request)
        match behaviour:
            case Hang():
                await self._ended.wait()
            case Babble(raw):
                writer.write(raw)
                await writer.drain()
            case Endless(status):
                writer.write(_head(status, {"transfer-encoding": "chunked"}))
                while True:
                    writer.write(b"10000\r\n" + _BLOCK + b"\r\n")
                    await writer.drain()
            case Reply(status, headers, body, delay, cut):
                if delay:
                    await asyncio.sleep(delay)
                writer.write(_head(status, {"content-length": str(len(body)), **headers}))
                if request.method != "HEAD":
                    writer.write(body[:cut])
                await writer.drain()
                return cut is None
        return False


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Odd"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {text}" for name, text in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)
