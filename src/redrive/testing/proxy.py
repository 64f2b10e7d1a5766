"""A fault proxy: it stands before any TCP server and does to the talk what networks do, where a test tells it to.

It runs in a thread of its own, so that any test and any number of programs can use it. A fault happens at once, at
a request, at bytes that are named or after so many of them: never by chance, and never because time has passed.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from redrive.errors import UsageError
from redrive.testing.faults import CHUNK_BYTES, WAIT_SECONDS_MAX, WAYS, Cut, Link, LoseReply, Stall, Trap, Way, end

T = TypeVar("T")


class FaultProxy:
    """Stands before the server at `target`, `host:port` or the address of a store or broker.

    >>> with FaultProxy("redis://localhost:6379/0") as proxy:
    ...     address = proxy.at("redis://localhost:6379/0")     # what the program under test is given
    ...     lost = proxy.lose_reply(holding=b"XACK")           # the server will do it, and the program not hear of it
    >>> lost.fired
    False

    A request begins with the first bytes of a program after an answer. `holding=` waits for the `nth` time that these
    bytes come by, whatever is around them; what comes before them passes, they and the rest do not.
    """

    def __init__(self, target: str) -> None:
        found = urlsplit(target if "//" in target else f"//{target}")
        if found.hostname is None or found.port is None:
            raise UsageError(f"{target!r} names no server; give host:port, or an address that has both")
        self.target = (found.hostname, found.port)
        self.port = 0  # known once it has started
        self._delays: dict[Way, float] = dict.fromkeys(WAYS, 0.0)
        self.accepted = 0  # connections, ever
        self._traps: list[Trap] = []
        self._stalled: set[Way] = set()
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None

    def start(self) -> None:
        """Take connections."""
        self._reserved = socket.socket()  # bound, and not listening: the port stays ours while we refuse
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port = self._reserved.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._do(self._listen())

    def stop(self) -> None:
        """End all connections, and give the port back."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserved.close()

    def __enter__(self) -> FaultProxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def at(self, url: str) -> str:
        """The address of the server, as it is through here."""
        found = urlsplit(url)
        user, at, _ = found.netloc.rpartition("@")
        return urlunsplit(found._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    # ------------------------------------------------------------ faults

    def cut(
        self,
        on: Way = "requests",
        *,
        holding: bytes | None = None,
        nth: int | None = None,
        after_bytes: int | None = None,
        reset: bool = True,
    ) -> Trap:
        """End a connection at a place; with no place named, all connections now. `reset=False`: in an orderly way."""
        trap = Cut(on, holding, 1 if nth is None else nth, after_bytes)
        trap.reset = reset
        if nth is None and holding is None and after_bytes is None:
            self._do(self._cut_all(reset))
            trap.has_happened()
            return trap
        return self._arm(trap)

    def lose_reply(self, *, holding: bytes | None = None, nth: int = 1, silent: bool = False) -> Trap:
        """Let a request arrive and its answer not. The connection is reset; `silent`: it stays, and nothing comes."""
        trap = LoseReply("requests", holding, nth, None)
        trap.silent = silent
        return self._arm(trap)

    def stall(
        self,
        on: Way = "requests",
        *,
        holding: bytes | None = None,
        nth: int | None = None,
        after_bytes: int | None = None,
    ) -> Trap:
        """Hold what comes from a place on, or with no place named everything, until `heal`: then it arrives late."""
        trap = Stall(on, holding, 1 if nth is None else nth, after_bytes)
        if nth is None and holding is None and after_bytes is None:
            self._do(self._stall_all(on))
            trap.has_happened()
            return trap
        return self._arm(trap)

    def delay(self, seconds: float, on: Way | None = None) -> None:
        """From now on each packet is so much later: of one direction, or of both."""
        self._delays.update(dict.fromkeys(WAYS if on is None else (on,), seconds))

    def refuse(self) -> None:
        """Refuse new connections, as a machine does where nobody listens. Those that are open go on."""
        self._do(self._refuse())

    def heal(self) -> None:
        """No faults any more: what was held arrives; a connection that has lost bytes is reset."""
        self._do(self._heal())

    @property
    def open_connections(self) -> int:
        """How many there are now."""
        return len(self._links)

    # ------------------------------------------------------------ in the thread

    async def _read(self, way: Way, reader: asyncio.StreamReader) -> bytes:
        """What has come, to be passed on; nothing at the end."""
        return await reader.read(CHUNK_BYTES)

    def _find(self, link: Link, way: Way, data: bytes, begins: bool) -> list[tuple[int, Trap]]:
        """The faults that happen in these bytes, in their order."""
        places = [(trap.find(link, data, begins), trap) for trap in self._traps if trap.way == way]
        found = sorted(((at, trap) for at, trap in places if at is not None), key=lambda place: place[0])
        for _, trap in found:
            self._traps.remove(trap)
        return found

    def _arm(self, trap: Trap) -> Trap:
        async def arm() -> None:
            self._traps.append(trap)

        self._do(arm())
        return trap

    def _do(self, deed: Coroutine[Any, Any, T]) -> T:
        """When this returns, it is done."""
        return asyncio.run_coroutine_threadsafe(deed, self._loop).result(WAIT_SECONDS_MAX)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, reuse_address=True)

    async def _refuse(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            server = await asyncio.open_connection(*self.target)
        except OSError:  # nobody is there: the program has its connection, and loses it
            end(writer, reset=True)
            return
        link = Link(self._read, self._find, self._delays, (reader, writer), server)
        for way in set(WAYS) - self._stalled:
            link.flows[way].set()
        self._links.add(link)
        is_reset = False
        try:
            await link.carry()
        except (OSError, asyncio.CancelledError):  # what one end does to its connection, the other end sees
            is_reset = True
        self._links.discard(link)
        await link.end(is_reset)

    async def _cut_all(self, reset: bool) -> None:
        for link in list(self._links):
            await link.end(reset)

    async def _stall_all(self, way: Way) -> None:
        self._stalled.add(way)
        for link in self._links:
            link.flows[way].clear()

    async def _heal(self) -> None:
        self._traps.clear()
        self._stalled.clear()
        self._delays.update(dict.fromkeys(WAYS, 0.0))
        for link in list(self._links):
            if link.is_deaf:
                await link.end(reset=True)
            for flow in link.flows.values():
                flow.set()
        await self._listen()

    async def _end(self) -> None:
        await self._refuse()
        await self._cut_all(reset=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
