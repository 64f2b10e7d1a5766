"""Events as lines of JSON, in a file that rotates or on standard output.

A line is a CloudEvent, the same that `redrive export` writes and `redrive import` reads.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from os import PathLike
from typing import Any

from redrive import cloudevents
from redrive.errors import UsageError
from redrive.event import Event
from redrive.files import PRIVATE
from redrive.options import named_options
from redrive.sinks.batching import batch_options
from redrive.sinks.port import Sink
from redrive.sinks.rotation import LineFile, rotation

BATCH_MAX = 1_000  # lines per write: half a window shares the cost of a sync, and takes a few milliseconds


class Lines(Sink):
    """What both have in common: a block of whole lines is written by a thread, one block at a time."""

    whole = True

    def __init__(self, name: str, source: str | None, batch_max: int) -> None:
        super().__init__(name)
        self.batch_max, _ = batch_options(batch_max, 0)
        self._source = source
        self._writing = threading.Lock()  # a send that was given up goes on in its thread, and the next one waits

    async def send(self, events: Sequence[Event[Any]]) -> None:
        """Write them all, or none."""
        if events:
            await asyncio.to_thread(self._send, events)

    def _send(self, events: Sequence[Event[Any]]) -> None:
        source = cloudevents.source_of(self.log) if self._source is None else self._source
        encode = cloudevents.encode
        block = b"\n".join([*[encode(event, source) for event in events], b""])
        with self._writing:
            self._write(block)

    def _write(self, block: bytes) -> None:
        raise UsageError(f"{type(self).__name__} has no _write(block)")


class FileSink(Lines):
    """See `file`."""

    def __init__(self, name: str, lines: LineFile, source: str | None, batch_max: int) -> None:
        super().__init__(name, source, batch_max)
        self._file = lines

    def __repr__(self) -> str:
        return f"file({self._file.path!r}, name={self.name!r})"

    def _write(self, block: bytes) -> None:
        self._file.write(block)

    async def close(self) -> None:
        """Close the file, after what is being written to it."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._writing:
            self._file.close()


class StdoutSink(Lines):
    """See `stdout`."""

    def __repr__(self) -> str:
        return f"stdout(name={self.name!r})"

    _is_torn = False  # a block ended in the middle: the next one begins with a line of its own

    def _write(self, block: bytes) -> None:
        out = sys.stdout
        if out is None:
            raise UsageError("this process has no standard output")
        out.flush()  # what was printed before stays before
        if not hasattr(out, "buffer"):  # replaced by something that takes text only
            out.write(block.decode())
            out.flush()
            return
        # Past the buffer: what it could not get rid of it would write later, when it has been sent again.
        raw = getattr(out.buffer, "raw", out.buffer)
        left = memoryview(b"\n" + block if self._is_torn else block)
        whole = len(left)
        try:
            while left:
                left = left[raw.write(left) or 0 :]
        finally:
            self._is_torn = len(left) not in (0, whole) or (self._is_torn and len(left) == whole)
        raw.flush()


@named_options("file")
def file(
    path: str | PathLike[str],
    *,
    name: str,
    rotate: str | None = None,
    keep: int | None = None,
    fsync: bool = True,
    source: str | None = None,
    batch_max: int = BATCH_MAX,
    file_mode: str = PRIVATE,
) -> FileSink:
    """A sink that appends each event to a file, as a line of JSON.

    A new file has the mode `file_mode`, one that exists keeps its own.

    >>> file("events.jsonl", name="archive", rotate="100MiB", keep=10)
    file('events.jsonl', name='archive')
    """
    return FileSink(name, LineFile(path, rotation(rotate), keep, fsync, file_mode=file_mode), source, batch_max)


@named_options("stdout")
def stdout(*, name: str = "stdout", source: str | None = None, batch_max: int = BATCH_MAX) -> StdoutSink:
    """A sink that writes each event to standard output, as a line of JSON.

    >>> stdout()
    stdout(name='stdout')
    """
    return StdoutSink(name, source, batch_max)
