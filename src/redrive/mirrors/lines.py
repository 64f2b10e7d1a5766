"""Lines that tell whether they are whole: each carries the length and the checksum of what it says.

A line is JSON like any other: `{"bytes":N,"crc32":"…","letter":{…}}`. What is damaged is left out and reported; what
stands before and after it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

BEGINNING = b'{"bytes":'
_HEAD = re.compile(rb'\{"bytes":([1-9][0-9]{0,8}),"crc32":"([0-9a-f]{8})","letter":')
_END = b"}\n"


class Damage(NamedTuple):
    """Bytes of a file that say nothing, from `start` up to `stop`."""

    start: int
    stop: int


def frame(body: bytes) -> bytes:
    """A body, which has no line ends, as a line.

    >>> frame(b"{}")
    b'{"bytes":2,"crc32":"a3a6bf43","letter":{}}\\n'
    """
    return b'{"bytes":%d,"crc32":"%08x","letter":%s}\n' % (len(body), crc32(body), body)


def scan(data: bytes) -> Iterator[bytes | Damage]:
    """The bodies of whole lines, and what is damaged, in order.

    >>> list(scan(frame(b"1") + b'{"bytes":1,"crc32":"00000000","letter":2}\\n' + frame(b"3")))
    [b'1', Damage(start=42, stop=84), b'3']
    """
    at = 0
    while at < len(data):
        body = _body(data, at)
        if body is not None:
            yield data[body]
            stop = body.stop + len(_END)
            if data[body.stop : stop] == _END:
                at = stop
                continue
            yield Damage(body.stop, min(stop, len(data)))
            at = stop
            if at >= len(data) or _HEAD.match(data, at):  # a byte of the end was flipped: the next line is where it was
                continue
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        yield Damage(at, stop)
        at = stop


def _body(data: bytes, at: int) -> slice | None:
    """Where the body of the line that begins here is, if it is whole."""
    head = _HEAD.match(data, at)
    if head is None:
        return None
    found = slice(head.end(), head.end() + int(head[1]))
    return found if found.stop <= len(data) and crc32(data[found]) == int(head[2], 16) else None
