"""Sentry's envelope endpoint: what is sent where, and its ways of saying later."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redrive import UsageError
from redrive.policy.classify import is_permanent
from redrive.sinks import sentry
from redrive.sinks.http import Busy, HttpError
from redrive.testing import make_event
from redrive.testing.web import HttpServer, Reply, Request
from tests.sinks.conftest import deliver

KEY = "0123456789abcdef0123456789abcdef"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def sink_of(server: HttpServer, prefix: str = "", **options: Any) -> Any:
    dsn = server.url.replace("//", f"//{KEY}@") + f"{prefix}/42"
    return sentry(dsn, **{"name": "sentry", "allow_private": True, **options})


def sent(request: Request) -> dict[str, Any]:
    head, item, payload, rest = request.body.split(b"\n")
    assert rest == b""
    about = json.loads(item)
    assert (about["type"], about["length"]) == ("event", len(payload))
    found: dict[str, Any] = json.loads(payload)
    assert json.loads(head) == {"event_id": found["event_id"]}
    return found


def test_an_event_is_an_envelope_with_an_event(server: HttpServer) -> None:
    sink = sink_of(
        server, level=lambda event: "warning", message=lambda event: f"order {event.key}", tags={"team": "shop"},
        environment="production", release="shop@1",
    )  # fmt: skip
    sink.log = "orders"
    deliver(sink, make_event("order.failed", {"cents": 1}, key="a", id="x", headers={"traceparent": TRACE}))
    (request,) = server.requests
    assert request.path == "/api/42/envelope/"
    assert request.headers["content-type"] == "application/x-sentry-envelope"
    auth = dict(part.split("=") for part in request.headers["x-sentry-auth"].removeprefix("Sentry ").split(", "))
    assert (auth["sentry_version"], auth["sentry_key"]) == ("7", KEY)
    assert "authorization" not in request.headers
    body = sent(request)
    assert len(body["event_id"]) == 32 and int(body["event_id"], 16)
    assert (body["level"], body["message"]) == ("warning", {"formatted": "order a"})
    assert body["tags"] == {"type": "order.failed", "team": "shop"}
    assert (body["environment"], body["release"]) == ("production", "shop@1")
    assert body["extra"]["data"] == {"cents": 1}
    assert (body["extra"]["event"]["id"], body["extra"]["event"]["source"]) == ("x", "urn:redrive:log:orders")
    assert body["contexts"]["trace"]["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert body["timestamp"] == "2026-01-01T00:00:00.000000Z"


def test_an_event_has_one_identity_however_often_it_comes(server: HttpServer) -> None:
    event = make_event("a", id="x")
    deliver(sink_of(server), event, event, make_event("a", id="y"))
    first, again, other = (sent(request)["event_id"] for request in server.requests)
    assert first == again != other


def test_a_sentry_below_a_path_is_found(server: HttpServer) -> None:
    deliver(sink_of(server, "/sentry"), make_event("a"))
    assert server.requests[0].path == "/sentry/api/42/envelope/"


@pytest.mark.parametrize(
    ("headers", "after"),
    [
        ({"x-sentry-rate-limits": "60:error:organization"}, 60),
        ({"x-sentry-rate-limits": "60:transaction:key, 2700:default;error;security:organization:quota"}, 2700),
        ({"x-sentry-rate-limits": "60:error:key, 120::organization, 30:default:key"}, 120),
        ({"x-sentry-rate-limits": "30::organization", "retry-after": "99"}, 30),
        ({"x-sentry-rate-limits": "60:transaction:key", "retry-after": "7"}, 7),
        ({"x-sentry-rate-limits": "nonsense, ::, 5"}, 5),
        ({"x-sentry-rate-limits": "999999999:error:organization"}, 3600),
        ({"retry-after": "13"}, 13),
        ({}, 60),
    ],
    ids=str,
)
def test_a_limit_says_when_to_come_back(server: HttpServer, headers: dict[str, str], after: float) -> None:
    server.then(Reply(429, headers))
    with pytest.raises(Busy) as caught:
        deliver(sink_of(server), make_event("a"))
    assert (caught.value.after, caught.value.status) == (after, 429)


def test_other_answers_are_judged_by_their_status_and_hide_the_key(server: HttpServer) -> None:
    for status, permanent in ((400, True), (401, True), (403, True), (413, True), (500, False), (503, False)):
        server.then(Reply(status, body=f"bad sentry_key={KEY}".encode()))
        with pytest.raises(HttpError) as caught:
            deliver(sink_of(server), make_event("a"))
        assert is_permanent(caught.value) is permanent
        assert KEY not in f"{caught.value!r} {sink_of(server)!r}"


@pytest.mark.parametrize(
    "dsn",
    [
        "", "https://example.com/1", f"https://{KEY}@example.com/", f"https://{KEY}@example.com/abc", f"{KEY}@x/1",
        f"ftp://{KEY}@example.com/1", f"https://{KEY}@example.com/1?x=y", f"https://{KEY}@[example/1", None,
        f"https://{KEY}, x=y@example.com/1",
    ],
)  # fmt: skip
def test_a_dsn_that_is_none_is_refused_and_not_quoted(dsn: Any) -> None:
    with pytest.raises(UsageError) as caught:
        sentry(dsn, name="sentry")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("options", [{"level": "loud"}, {"tags": {"a b": "x"}}, {"name": ""}, {"timeout": 0}], ids=str)
def test_what_cannot_work_is_refused_at_the_start(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        sentry(f"https://{KEY}@example.com/1", **{"name": "sentry", **options})
    with pytest.raises(UsageError, match="not a public address"):
        sentry(f"https://{KEY}@127.0.0.1/1", name="sentry")


CAUSE, OTHER = "8b70c1d2e3f4", "0123456789ab"


@pytest.mark.parametrize(
    ("data", "headers", "group"),
    [
        ({"fingerprint": CAUSE, "subscription": "charge"}, {}, CAUSE),
        ({"fingerprint": CAUSE}, {"redrive-fingerprint": OTHER}, OTHER),
        (5, {"redrive-fingerprint": CAUSE}, CAUSE),
        ({"fingerprint": "of a finger"}, {}, "letter.dead"),
        ({"fingerprint": [CAUSE]}, {}, "letter.dead"),
        ({}, {"redrive-fingerprint": ""}, "letter.dead"),
        (None, {}, "letter.dead"),
    ],
)
def test_events_about_letters_are_grouped_by_their_fingerprint(
    server: HttpServer, data: Any, headers: dict[str, str], group: str
) -> None:
    """Letters of all causes were one issue: they came as events of one type."""
    deliver(sink_of(server), make_event("letter.dead", data, key="a", id="x", headers=headers))
    assert sent(server.requests[0])["fingerprint"] == ["redrive", group]


def test_events_are_grouped_by_a_function_of_the_program(server: HttpServer) -> None:
    deliver(
        sink_of(server, group=lambda event: f"{event.key}!"), make_event("letter.dead", {"fingerprint": CAUSE}, key="a")
    )
    assert sent(server.requests[0])["fingerprint"] == ["redrive", "a!"]
