"""Sentry: each event as one of its events, through the envelope endpoint. No SDK is needed."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redrive import cloudevents
from redrive.clock import SystemClock
from redrive.codec import NOT_JSON, from_json, to_json
from redrive.errors import UsageError
from redrive.event import Event
from redrive.options import named_options
from redrive.sinks.addresses import Address, parse
from redrive.sinks.http import Answer, HttpSink, failure, retry_after
from redrive.sinks.otlp_logs import TRACEPARENT
from redrive.version import VERSION

LEVELS = ("debug", "info", "warning", "error", "fatal")
MESSAGE_CHARS_MAX = 8_192  # Sentry's own limits, here and below
TAG_CHARS_MAX = 200
WAIT = 60.0  # seconds, if a 429 does not say for how long; Sentry's own advice

FINGERPRINT_HEADER = "redrive-fingerprint"
_FINGERPRINT = re.compile("[0-9a-f]{12}")
_TAG = re.compile(r"[a-zA-Z0-9_.:-]{1,32}")
_KEY = re.compile(r"[0-9a-zA-Z]+")
_clock = SystemClock()

Text = str | Callable[[Event[Any]], str]
Tags = Mapping[str, str] | Callable[[Event[Any]], Mapping[str, str]]


class Sentry(HttpSink):
    """See `sentry`."""

    def __init__(
        self,
        dsn: str,
        name: str,
        *,
        level: Text,
        message: Callable[[Event[Any]], str] | None,
        tags: Tags,
        group: Callable[[Event[Any]], str] | None,
        fixed: Mapping[str, str],
        **connection: Any,
    ) -> None:
        super().__init__(name, **connection)
        address, self._auth = read_dsn(dsn)
        self._address = self.check_address(address)
        if not callable(level):
            _level(level)
        if not callable(tags):
            _tags(tags)
        self._level, self._message, self._tags, self._fixed = level, message, tags, fixed
        self._group = _cause if group is None else group

    def __repr__(self) -> str:
        return f"sentry({self._address.origin}, name={self.name!r})"

    async def send(self, events: Sequence[Event[Any]]) -> None:
        """One envelope for each; the first that fails ends it."""
        headers = {"content-type": "application/x-sentry-envelope", "x-sentry-auth": self._auth}
        for event in events:
            answer = await self.request("POST", self._address, headers, self._envelope(event))
            if not answer.ok:
                now = _clock.now()
                raise failure(self._address, answer, now=now, hidden=(self._auth,), after=_limited(answer, now))

    def _envelope(self, event: Event[Any]) -> bytes:
        fields = cloudevents.attributes(event, cloudevents.source_of(self.log))
        identity = sha256(event.id.encode()).hexdigest()[:32]  # the same each time: what comes twice is one to Sentry
        body: dict[str, Any] = {
            "event_id": identity,
            "timestamp": fields["time"],
            "platform": "other",
            "logger": "redrive",
            "level": _level(self._level(event) if callable(self._level) else self._level),
            "message": {
                "formatted": (event.type if self._message is None else self._message(event))[:MESSAGE_CHARS_MAX]
            },
            "tags": {"type": event.type, **_tags(self._tags(event) if callable(self._tags) else self._tags)},
            "fingerprint": ["redrive", self._group(event)],
            "extra": {"event": fields, "data": _data(event.data_raw)},
            **self._fixed,
        }
        trace = TRACEPARENT.fullmatch(event.headers.get("traceparent", ""))
        if trace is not None:
            body["contexts"] = {"trace": {"trace_id": trace[1], "span_id": trace[2]}}
        payload = to_json(body)
        head = to_json({"event_id": identity})
        item = to_json({"type": "event", "content_type": "application/json", "length": len(payload)})
        return b"\n".join((head, item, payload, b""))


def read_dsn(dsn: str) -> tuple[Address, str]:
    """Where envelopes go, and the header that opens the door."""
    wrong = UsageError("a DSN is text like https://KEY@HOST/PROJECT; copy it from the settings of the project")
    if not isinstance(dsn, str):
        raise wrong
    try:
        parts = urlsplit(dsn)
        key, (prefix, _, project) = parts.username or "", parts.path.rpartition("/")
    except ValueError:
        raise wrong from None
    if not (_KEY.fullmatch(key) and project.isascii() and project.isdigit()) or parts.query or parts.fragment:
        raise wrong
    plain = parse(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{prefix}/api/{project}/envelope/")
    secrets = (*filter(None, (parts.password,)), key)
    auth = f"Sentry sentry_version=7, sentry_client=redrive/{VERSION}, sentry_key={key}"
    return Address(plain.url, plain.origin, plain.host, plain.path, None, secrets), auth


def _level(level: str) -> str:
    if level not in LEVELS:
        raise UsageError(f"level {level!r} is none of {', '.join(LEVELS)}")
    return level


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    for name in tags:
        if not _TAG.fullmatch(name):
            raise UsageError(f"the tag {name!r}: up to 32 letters, digits and _.:-")
    return {name: str(text).replace("\n", " ")[:TAG_CHARS_MAX] for name, text in tags.items()}


def _cause(event: Event[Any]) -> str:
    """The fingerprint of the letter that the event is about, in its headers or its data; else the event's type."""
    found = event.headers.get(FINGERPRINT_HEADER)
    if found is None:
        try:
            data = from_json(event.data_raw)
        except NOT_JSON:
            data = None
        found = data.get("fingerprint") if isinstance(data, dict) else None
    return found if isinstance(found, str) and _FINGERPRINT.fullmatch(found) else event.type


def _data(raw: bytes) -> Any:
    try:
        from_json(raw)
    except NOT_JSON:
        return {"base64": base64.b64encode(raw).decode()}
    return msgspec.Raw(raw)


def _limited(answer: Answer, now: float) -> float | None:
    """Seconds until Sentry takes errors again; None if that is not what the answer is about."""
    if answer.status != 429:
        return None
    waits = []
    for limit in answer.headers.get("x-sentry-rate-limits", "").split(","):
        seconds, _, rest = limit.strip().partition(":")
        kinds = rest.partition(":")[0].split(";")
        if seconds.isascii() and seconds.isdigit() and {"", "error", "default"} & set(kinds):
            waits.append(float(seconds[:9]))
    if waits:
        return max(waits)
    return retry_after(answer.headers.get("retry-after", ""), now) or WAIT


@named_options("sentry")
def sentry(
    dsn: str,
    *,
    name: str,
    level: Text = "error",
    message: Callable[[Event[Any]], str] | None = None,
    tags: Tags | None = None,
    group: Callable[[Event[Any]], str] | None = None,
    environment: str | None = None,
    release: str | None = None,
    timeout: str | float = "10s",
    connect_timeout: str | float = "5s",
    allow_private: bool = False,
    tls: ssl.SSLContext | None = None,
) -> Sentry:
    """A sink that makes each event an event in Sentry.

    Events are one issue if `group` gives the same text for them. Without it that is the fingerprint of the letter that
    an event is about (its header `redrive-fingerprint`, or `fingerprint` in its data), else the event's type.

    >>> sentry("https://0123456789abcdef@o1.ingest.sentry.io/42", name="sentry", environment="production")
    sentry(https://o1.ingest.sentry.io, name='sentry')
    """
    fixed = {name: text for name, text in (("environment", environment), ("release", release)) if text is not None}
    return Sentry(
        dsn, name, level=level, message=message, tags=tags or {}, group=group, fixed=fixed, timeout=timeout,
        connect_timeout=connect_timeout, allow_private=allow_private, tls=tls,
    )  # fmt: skip
