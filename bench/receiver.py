"""`python -m bench.receiver`: the other side of a delivery, in a process of its own. It does as little as HTTP allows.

It prints its port, answers every POST with 204, and a GET with the totals of the bodies it was sent.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.lab import ROOT, environment

_TAKEN = b"HTTP/1.1 204 No Content\r\n\r\n"
_LENGTH = b"content-length: "

bodies: list[bytes] = []


class Connection(asyncio.Protocol):
    """Whole requests of one connection, one after the other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._got = transport, b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = self._got[:end].lower()
            at = head.find(_LENGTH)
            length = 0 if at < 0 else int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0])
            if len(self._got) < end + 4 + length:
                return
            body, self._got = self._got[end + 4 : end + 4 + length], self._got[end + 4 + length :]
            if head.startswith(b"get "):
                told = json.dumps(totals()).encode()
                self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(told), told))
            else:
                bodies.append(body)
                self._transport.write(_TAKEN)


def totals() -> list[tuple[str, int, int]]:
    """Of every customer: how many orders came, and what they amount to."""
    sums: dict[str, tuple[int, int]] = {}
    for body in bodies:
        order = json.loads(body)
        count, amount = sums.get(order["customer"], (0, 0))
        sums[order["customer"]] = (count + 1, amount + order["amount"])
    return [(key, *total) for key, total in sums.items()]


async def main() -> None:
    """Until the parent closes our input."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextmanager
def receiver() -> Iterator[str]:
    """The URL of one of our own."""
    command = [sys.executable, "-m", "bench.receiver"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield f"http://127.0.0.1:{child.stdout.readline().strip()}/orders"
        finally:
            child.stdin.close()


if __name__ == "__main__":
    asyncio.run(main())
