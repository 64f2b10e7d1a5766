"""OpenTelemetry: events as log records, over OTLP/HTTP in its JSON encoding."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from redrive import cloudevents
from redrive.clock import SystemClock
from redrive.codec import NOT_JSON, from_json, to_json
from redrive.errors import UsageError
from redrive.event import Event
from redrive.options import named_options
from redrive.sinks.addresses import parse
from redrive.sinks.batching import BATCH_MAX, Rejected, batch_options, send_batch
from redrive.sinks.http import Answer, HttpSink, Unreachable, check_headers, secrets_in, under
from redrive.version import VERSION

PATH = "/v1/logs"
SEVERITIES = {"TRACE": 1, "DEBUG": 5, "INFO": 9, "WARN": 13, "ERROR": 17, "FATAL": 21}

TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_clock = SystemClock()

Severity = str | Callable[[Event[Any]], str]


class Otlp(HttpSink):
    """See `otlp`."""

    def __init__(
        self,
        url: str,
        name: str,
        resource: Mapping[str, str],
        severity: Severity,
        headers: Mapping[str, str],
        source: str | None,
        batch: tuple[int, float],
        **connection: Any,
    ) -> None:
        super().__init__(name, **connection)
        if not callable(severity):
            _severity(severity)
        self._address = self.check_address(parse(under(url, PATH)))
        self._resource = {"attributes": [_attribute(key, text) for key, text in resource.items()]}
        self._severity, self._headers, self._source = severity, headers, source
        self.batch_max, self.batch_wait = batch

    def __repr__(self) -> str:
        return f"otlp({self._address.origin}, name={self.name!r})"

    async def send(self, events: Sequence[Event[Any]]) -> None:
        """One export, or a few if they are large."""
        await send_batch(events, self._record, len, self._export)

    def _record(self, event: Event[Any]) -> bytes:
        source = cloudevents.source_of(self.log) if self._source is None else self._source
        level = self._severity(event) if callable(self._severity) else self._severity
        texts = {
            "cloudevents.event_id": event.id, "cloudevents.event_source": source,
            "cloudevents.event_type": event.type, "cloudevents.event_subject": event.key,
            **{f"redrive.header.{name}": text for name, text in event.headers.items()},
        }  # fmt: skip
        record: dict[str, Any] = {
            "timeUnixNano": str(event.time_us * 1_000),
            "observedTimeUnixNano": str(int(_clock.now() * 1e9)),
            "severityNumber": _severity(level),
            "severityText": level,
            "eventName": event.type,
            "body": {"stringValue": event.data_raw.decode("utf-8", "replace")},
            "attributes": [_attribute(name, text) for name, text in texts.items() if text is not None],
        }
        trace = TRACEPARENT.fullmatch(event.headers.get("traceparent", ""))
        if trace is not None:
            record |= {"traceId": trace[1], "spanId": trace[2], "flags": int(trace[3], 16)}
        return to_json(record)

    async def _export(self, records: list[bytes]) -> None:
        scope = {"name": "redrive", "version": VERSION}
        logs = {"scope": scope, "logRecords": [msgspec.Raw(record) for record in records]}
        body = to_json({"resourceLogs": [{"resource": self._resource, "scopeLogs": [logs]}]})
        headers = {**self._headers, "content-type": "application/json"}
        answer = await self.post(self._address, headers, body, secrets_in(self._headers))
        if not answer.complete:
            raise Unreachable(f"{self._address.origin}: the answer, which says what was kept, was cut short")
        count, message = _rejected(answer)
        if count:
            reason = f"{self._address.origin} rejected {count} of {len(records)} log records: {message[:200]}"
            raise Rejected(reason, count)


def _severity(level: str) -> int:
    if level not in SEVERITIES:
        raise UsageError(f"severity {level!r} is none of {', '.join(SEVERITIES)}")
    return SEVERITIES[level]


def _attribute(key: str, text: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": text}}


def _rejected(answer: Answer) -> tuple[int, str]:
    """How many records were not kept, and why. An answer that says nothing about it means none."""
    try:
        told = from_json(answer.body or b"{}")
    except NOT_JSON:
        return 0, ""
    partial = told.get("partialSuccess") if isinstance(told, dict) else None
    if not isinstance(partial, dict):
        return 0, ""
    count = str(partial.get("rejectedLogRecords") or "0")  # 64 bit are text in this JSON; some send a number
    return int(count) if count.isascii() and count.isdigit() else 0, str(partial.get("errorMessage") or "")


@named_options("otlp")
def otlp(
    url: str,
    *,
    name: str,
    resource: Mapping[str, str] | None = None,
    severity: Severity = "INFO",
    headers: Mapping[str, str] | None = None,
    timeout: str | float = "10s",
    connect_timeout: str | float = "5s",
    allow_private: bool = True,
    source: str | None = None,
    batch_max: int = BATCH_MAX,
    batch_wait: str | float = "200ms",
    tls: ssl.SSLContext | None = None,
) -> Otlp:
    """A sink that exports events to an OpenTelemetry collector, each as a log record.

    >>> otlp("http://localhost:4318", name="telemetry", resource={"service.name": "shop"})
    otlp(http://localhost:4318, name='telemetry')
    """
    return Otlp(
        url, name, {"service.name": "redrive"} if resource is None else resource, severity,
        check_headers(headers or {}), source, batch_options(batch_max, batch_wait), timeout=timeout,
        connect_timeout=connect_timeout, allow_private=allow_private, tls=tls,
    )  # fmt: skip
