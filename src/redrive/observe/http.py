"""A small HTTP server on threads of its own: answers GET, so that it still answers while the event loop does not.

It never writes to the store and never waits for an event. Connections, requests and their time are bounded.
A connection without a request costs its place to no other: if there are too many, the oldest such one is closed.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import BoundedSemaphore, Lock, Thread
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

log = logging.getLogger("redrive")

REQUESTS_MAX = 8  # answered at a time; a request beyond that is turned away: a scraper comes back
PROBES_MAX = 4  # the same for each page of PROBES, which has room of its own
PROBES = ("/livez", "/readyz")  # an answer that is missing ends a process, or takes its traffic away
CONNECTIONS_MAX = 64  # open at a time, most of them without a request yet: each is a thread
CONNECTIONS_PER_ADDRESS_MAX = 16  # of them from one address; Prometheus and a kubelet need one or two
REQUEST_SECONDS_MAX = 2.0  # for a client to send its request, and again to take the answer
TARGET_MAX = 1_000  # characters of path and query; ours are short

Query = Mapping[str, list[str]]


class Answer(NamedTuple):
    """What a page says."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[Query], Answer]


@dataclass(slots=True)
class _Connection:
    """An open connection. Until its request is complete it may be closed for another one's sake."""

    request: socket.socket
    address: str
    since: float
    is_waiting: bool = True


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS_MAX
    server_version, sys_version = "redrive", ""  # which Python this is, is nobody's business

    def do_GET(self) -> None:
        self.server.received(self.connection)
        target = urlsplit(self.path[:TARGET_MAX])
        page = self.server.pages.get(target.path)
        if page is None:
            known = " ".join(self.server.pages)
            self._say(Answer(404, "text/plain; charset=utf-8", f"there is no such page; there are {known}\n".encode()))
            return
        room = self.server.room(target.path)
        if not room.acquire(blocking=False):
            return
        try:
            try:
                answer = page(parse_qs(target.query, keep_blank_values=True))
            except Exception:
                log.exception("GET %s failed; processing goes on", target.path)
                answer = Answer(500, "text/plain; charset=utf-8", b"it failed; the log says why\n")
            self._say(answer)
        finally:
            room.release()

    do_HEAD = do_GET  # noqa: N815  # the name is the stdlib's

    def _say(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that dawdles must not hold up the end of the process
    request_queue_size = 128  # a probe beyond it would wait a second, until its SYN is sent again

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Page], monotonic: Callable[[], float]) -> None:
        self.pages = pages
        self._monotonic = monotonic
        self._shared = BoundedSemaphore(REQUESTS_MAX)
        self._rooms = {path: BoundedSemaphore(PROBES_MAX) for path in PROBES}
        self._lock = Lock()
        self._open: dict[int, _Connection] = {}  # by the identity of the socket
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without asking the network for the name of the address, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "redrive", int(self.server_address[1])

    def room(self, path: str) -> BoundedSemaphore:
        """How many requests for a page may be answered at a time."""
        return self._rooms.get(path, self._shared)

    def received(self, request: Any) -> None:
        """The request of this connection is complete."""
        with self._lock:
            if id(request) in self._open:
                self._open[id(request)].is_waiting = False

    def service_actions(self) -> None:
        """Close the connections whose request takes too long; called for each new connection, and twice a second."""
        with self._lock:
            late = self._monotonic() - REQUEST_SECONDS_MAX
            for one in [one for one in self._open.values() if one.is_waiting and one.since <= late]:
                self._cut(one)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            address = str(client_address[0])
            same = [one for one in self._open.values() if one.address == address]
            has_room = len(same) < CONNECTIONS_PER_ADDRESS_MAX or self._cut_oldest(same)
            if has_room and len(self._open) >= CONNECTIONS_MAX:
                has_room = self._cut_oldest(self._open.values())
            if has_room:
                self._open[id(request)] = _Connection(request, address, self._monotonic())
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                if id(request) in self._open and self._open[id(request)].request is request:
                    del self._open[id(request)]

    def _cut_oldest(self, among: Iterable[_Connection]) -> bool:
        """Close the oldest connection that has sent no request. False: all have sent one."""
        oldest = min((one for one in among if one.is_waiting), key=lambda one: one.since, default=None)
        if oldest is not None:
            self._cut(oldest)
        return oldest is not None

    def _cut(self, one: _Connection) -> None:
        """Its thread finds the end of the request, and ends."""
        del self._open[id(one.request)]
        with suppress(OSError):
            one.request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client went away in the middle."""
        log.debug("a request was not answered")


@contextmanager
def answering(
    host: str, port: int, pages: Mapping[str, Page], *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[tuple[str, int]]:
    """Answer on this address while the block lasts; OSError if that cannot be. Port 0: any that is free."""
    server = _Server((host, port), pages, monotonic)
    thread = Thread(target=server.serve_forever, name="redrive-http", daemon=True)
    thread.start()
    try:
        yield host, server.server_port
    finally:
        with suppress(OSError):  # wakes it at once; without, it looks twice a second whether it may go
            server.socket.shutdown(socket.SHUT_RDWR)
        server.shutdown()
        server.server_close()
        thread.join(REQUEST_SECONDS_MAX)
