"""OTLP/HTTP logs: the records, and answers that say that not all of them were kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from redrive import Reject, UsageError
from redrive.policy.classify import is_permanent
from redrive.sinks import SomeFailed, otlp
from redrive.sinks.http import Busy, HttpError, Unreachable
from redrive.testing import make_event
from redrive.testing.web import Endless, HttpServer, Reply, Request
from tests.sinks.conftest import deliver

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def records(request: Request) -> list[dict[str, Any]]:
    (resource,) = json.loads(request.body)["resourceLogs"]
    (scope,) = resource["scopeLogs"]
    found: list[dict[str, Any]] = scope["logRecords"]
    return found


def attributes(of: dict[str, Any]) -> dict[str, str]:
    return {one["key"]: one["value"]["stringValue"] for one in of["attributes"]}


def test_an_event_is_a_log_record(server: HttpServer) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    sink = otlp(server.url, name="telemetry", resource={"service.name": "shop"}, headers={"api-key": "x"})
    sink.log = "orders"
    deliver(
        sink,
        make_event("order.placed", {"cents": 1}, key="a", id="x", time=noon, headers={"traceparent": TRACE}),
        make_event("order.paid", id="y"),
    )
    (request,) = server.requests
    assert (request.path, request.headers["api-key"]) == ("/v1/logs", "x")
    assert request.headers["content-type"] == "application/json"
    body = json.loads(request.body)["resourceLogs"][0]
    assert attributes(body["resource"]) == {"service.name": "shop"}
    assert body["scopeLogs"][0]["scope"]["name"] == "redrive"
    first, second = records(request)
    observed = first.pop("observedTimeUnixNano")
    assert int(observed) > 1_700_000_000 * 10**9
    assert attributes(first) == {
        "cloudevents.event_id": "x",
        "cloudevents.event_source": "urn:redrive:log:orders",
        "cloudevents.event_type": "order.placed",
        "cloudevents.event_subject": "a",
        "redrive.header.traceparent": TRACE,
    }
    del first["attributes"]
    assert first == {
        "timeUnixNano": str(int(noon.timestamp()) * 10**9),
        "severityNumber": 9,
        "severityText": "INFO",
        "eventName": "order.placed",
        "body": {"stringValue": '{"cents":1}'},
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "b7ad6b7169203331",
        "flags": 1,
    }
    assert "traceId" not in second


@pytest.mark.parametrize("trace", ["", "nonsense", f"00-{'0' * 32}-b7ad6b7169203331-01", TRACE.upper()])
def test_a_traceparent_that_is_none_is_left_out(server: HttpServer, trace: str) -> None:
    deliver(otlp(server.url, name="telemetry"), make_event("a", headers={"traceparent": trace}))
    assert "traceId" not in records(server.requests[0])[0]


def test_severity_may_be_a_function_of_the_event(server: HttpServer) -> None:
    sink = otlp(server.url, name="t", severity=lambda event: "ERROR" if "failed" in event.type else "DEBUG")
    deliver(sink, make_event("order.failed"), make_event("order.paid"))
    assert [(one["severityNumber"], one["severityText"]) for one in records(server.requests[0])] == [
        (17, "ERROR"),
        (5, "DEBUG"),
    ]


def keeping(*refused: str, as_text: bool = True) -> Any:
    def answer(request: Request) -> Reply:
        count = sum(attributes(one)["cloudevents.event_id"] in refused for one in records(request))
        told = {"rejectedLogRecords": str(count) if as_text else count, "errorMessage": "too large"}
        return Reply(200, body=json.dumps({"partialSuccess": told} if count else {}).encode())

    return answer


@pytest.mark.parametrize("as_text", [True, False])
def test_records_that_were_not_kept_are_found_and_permanent(server: HttpServer, as_text: bool) -> None:
    server.behave = keeping("id-2", "id-5", as_text=as_text)
    with pytest.raises(SomeFailed) as caught:
        deliver(otlp(server.url, name="telemetry"), *[make_event("a", id=f"id-{n}") for n in range(8)])
    assert set(caught.value.errors) == {2, 5}
    assert all(isinstance(error, Reject) and "too large" in str(error) for error in caught.value.errors.values())


def test_nothing_kept_is_not_asked_about_again(server: HttpServer) -> None:
    ids = [f"id-{n}" for n in range(8)]
    server.behave = keeping(*ids)
    with pytest.raises(SomeFailed) as caught:
        deliver(otlp(server.url, name="telemetry"), *[make_event("a", id=one) for one in ids])
    assert set(caught.value.errors) == set(range(8))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"null", b"[]", b"\x0a\x00", b'{"partialSuccess":{}}', b'{"partialSuccess":null}',
     b'{"partialSuccess":{"rejectedLogRecords":"0","errorMessage":"deprecated"}}',
     b'{"partialSuccess":{"rejectedLogRecords":"many"}}'],
)  # fmt: skip
def test_success_that_says_nothing_else_is_a_receipt(server: HttpServer, body: bytes) -> None:
    server.then(Reply(200, body=body))
    deliver(otlp(server.url, name="telemetry"), make_event("a"))
    assert len(server.requests) == 1


def test_an_answer_that_was_cut_may_have_said_that_something_was_lost(server: HttpServer) -> None:
    for behaviour in (Reply(200, body=b'{"partialSuccess":{"rejectedLog', cut=10), Endless(200)):
        server.then(behaviour)
        with pytest.raises(Unreachable, match="cut short"):
            deliver(otlp(server.url, name="telemetry"), make_event("a"))


def test_answers_about_the_place_pass(server: HttpServer) -> None:
    server.then(Reply(503, {"retry-after": "9"}), Reply(502), Reply(429))
    for kind in (Busy, HttpError, HttpError):
        with pytest.raises(kind) as caught:
            deliver(otlp(server.url, name="telemetry"), make_event("a"), make_event("a"))
        assert not is_permanent(caught.value)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "options", [{"severity": "LOUD"}, {"url": "x"}, {"headers": {"a": "\n"}}, {"name": ""}], ids=str
)
def test_what_cannot_work_is_refused_at_the_start(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        otlp(**{"url": "http://localhost:4318", "name": "telemetry", **options})
