"""Loki: events as log lines, through its push API.

The labels of a stream must be few, or Loki suffers: label sets are counted, and beyond a limit they are one. An event
has the same timestamp whenever it is sent, so Loki recognises what comes again.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from redrive import cloudevents
from redrive.codec import to_json
from redrive.errors import UsageError
from redrive.event import Event
from redrive.options import named_options
from redrive.sinks.addresses import parse
from redrive.sinks.batching import BATCH_MAX, batch_options, send_batch
from redrive.sinks.http import HttpSink, check_headers, secrets_in, under

PUSH = "/loki/api/v1/push"
LABELS_MAX = 15  # per stream; Loki's own limit
STREAMS_MAX = 1_000  # different label sets of one sink; each is an open chunk in Loki's memory
LABEL_CHARS_MAX = 1_024
OTHER = "other"  # what the labels made of events are, once there are too many streams

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,100}")

Label = str | Callable[[Event[Any]], str]
Stream = tuple[str, ...]


class _Entry(NamedTuple):
    stream: Stream
    nanoseconds: int
    line: str


class Loki(HttpSink):
    """See `loki`."""

    def __init__(
        self,
        url: str,
        name: str,
        labels: Mapping[str, Label],
        headers: Mapping[str, str],
        source: str | None,
        batch: tuple[int, float],
        **connection: Any,
    ) -> None:
        super().__init__(name, **connection)
        wrong = [label for label in labels if not _LABEL.fullmatch(label) or label.startswith("__")]
        if wrong or not 1 <= len(labels) <= LABELS_MAX:
            raise UsageError(f"labels: 1 to {LABELS_MAX} names of letters, digits and _; these are not: {wrong}")
        self._address = self.check_address(parse(under(url, PUSH)))
        self._labels, self._headers, self._source = dict(labels), headers, source
        self.batch_max, self.batch_wait = batch
        self._known: set[Stream] = set()

    def __repr__(self) -> str:
        return f"loki({self._address.origin}, name={self.name!r})"

    async def send(self, events: Sequence[Event[Any]]) -> None:
        """One push, or a few if they are large."""
        await send_batch(events, self._entry, lambda entry: len(entry.line), self._push)

    def _entry(self, event: Event[Any]) -> _Entry:
        source = cloudevents.source_of(self.log) if self._source is None else self._source
        return _Entry(self._stream(event), event.time_us * 1_000, cloudevents.encode(event, source).decode())

    def _stream(self, event: Event[Any]) -> Stream:
        values = [label(event) if callable(label) else label for label in self._labels.values()]
        stream = tuple(str(value)[:LABEL_CHARS_MAX] for value in values)
        if stream not in self._known:
            if len(self._known) >= STREAMS_MAX:
                return tuple(OTHER if callable(label) else label for label in self._labels.values())
            self._known.add(stream)
        return stream

    async def _push(self, entries: list[_Entry]) -> None:
        streams: dict[Stream, list[_Entry]] = {}
        for entry in entries:
            streams.setdefault(entry.stream, []).append(entry)
        body = {
            "streams": [
                {
                    "stream": dict(zip(self._labels, stream, strict=True)),
                    "values": [
                        (str(one.nanoseconds), one.line) for one in sorted(mine, key=lambda entry: entry.nanoseconds)
                    ],
                }
                for stream, mine in streams.items()
            ]
        }
        headers = {**self._headers, "content-type": "application/json"}
        await self.post(self._address, headers, to_json(body), secrets_in(self._headers))


@named_options("loki")
def loki(
    url: str,
    *,
    name: str,
    labels: Mapping[str, Label] | None = None,
    tenant: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: str | float = "10s",
    connect_timeout: str | float = "5s",
    allow_private: bool = True,
    source: str | None = None,
    batch_max: int = BATCH_MAX,
    batch_wait: str | float = "200ms",
    tls: ssl.SSLContext | None = None,
) -> Loki:
    """A sink that pushes events to Loki, each as a line of JSON.

    >>> loki("http://loki:3100", name="logs", labels={"app": "shop", "type": lambda event: event.type})
    loki(http://loki:3100, name='logs')
    """
    mine = check_headers(headers or {})
    if tenant is not None:
        mine |= check_headers({"x-scope-orgid": tenant})
    chosen: Mapping[str, Label] = {"job": "redrive", "type": lambda event: event.type} if labels is None else labels
    return Loki(
        url, name, chosen, mine, source, batch_options(batch_max, batch_wait), timeout=timeout,
        connect_timeout=connect_timeout, allow_private=allow_private, tls=tls,
    )  # fmt: skip
