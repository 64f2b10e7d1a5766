"""A small HTTP server on threads of its own: answers GET, so that it still answers while the event loop does not.

It never writes to the store and never waits for an event. Connections, requests and their time are bounded.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import BoundedSemaphore, Thread
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

log = logging.getLogger("redrive")

REQUESTS_MAX = 8  # at a time; who comes when all are busy is turned away: a scraper comes back
REQUEST_SECONDS_MAX = 5.0  # for a client to say what it wants, and again for it to take the answer
TARGET_MAX = 1_000  # characters of path and query; ours are short

Query = Mapping[str, list[str]]


class Answer(NamedTuple):
    """What a page says."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[Query], Answer]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS_MAX
    server_version, sys_version = "redrive", ""  # which Python this is, is nobody's business

    def do_GET(self) -> None:
        target = urlsplit(self.path[:TARGET_MAX])
        page = self.server.pages.get(target.path)
        if page is None:
            known = " ".join(self.server.pages)
            self._say(Answer(404, "text/plain; charset=utf-8", f"there is no such page; there are {known}\n".encode()))
            return
        try:
            answer = page(parse_qs(target.query, keep_blank_values=True))
        except Exception:
            log.exception("GET %s failed; processing goes on", target.path)
            answer = Answer(500, "text/plain; charset=utf-8", b"it failed; the log says why\n")
        self._say(answer)

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
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Page]) -> None:
        self.pages = pages
        self._room = BoundedSemaphore(REQUESTS_MAX)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without asking the network for the name of the address, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "redrive", int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client went away in the middle."""
        log.debug("a request was not answered")


@contextmanager
def answering(host: str, port: int, pages: Mapping[str, Page]) -> Iterator[tuple[str, int]]:
    """Answer on this address while the block lasts; OSError if that cannot be. Port 0: any that is free."""
    server = _Server((host, port), pages)
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
