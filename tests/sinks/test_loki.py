"""Loki's push API: streams, timestamps, tenants, and what its answers mean."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import UsageError
from redrive.policy.classify import is_permanent
from redrive.sinks import SomeFailed, loki, loki_push
from redrive.sinks.http import Busy, HttpError
from redrive.testing import make_event
from redrive.testing.web import HttpServer, Reply, Request
from tests.sinks.conftest import deliver

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pushed(request: Request) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(request.body)["streams"]
    return found


def test_events_are_pushed_as_lines_in_streams(server: HttpServer) -> None:
    server.behave = Reply(204)
    sink = loki(server.url, name="logs", tenant="shop", labels={"app": "shop", "type": lambda event: event.type})
    sink.log = "orders"
    events = [
        make_event("order.placed", {"n": 1}, key="a", id="x", time=NOON),
        make_event("order.paid", {"n": 2}, id="y", time=NOON),
        make_event("order.placed", {"n": 3}, id="z", time=NOON),
    ]
    deliver(sink, *events)
    (request,) = server.requests
    assert (request.path, request.headers["x-scope-orgid"]) == ("/loki/api/v1/push", "shop")
    assert request.headers["content-type"] == "application/json"
    streams = pushed(request)
    assert [stream["stream"] for stream in streams] == [
        {"app": "shop", "type": "order.placed"},
        {"app": "shop", "type": "order.paid"},
    ]
    ns = int(NOON.timestamp()) * 10**9
    assert [[value[0] for value in stream["values"]] for stream in streams] == [
        [str(ns), str(ns)],
        [str(ns)],
    ]
    first = json.loads(streams[0]["values"][0][1])
    assert (first["id"], first["source"], first["data"]) == ("x", "urn:redrive:log:orders", {"n": 1})


def test_timestamps_of_a_stream_are_in_order_and_the_same_each_time(server: HttpServer) -> None:
    events = [make_event("a", n, time=NOON + timedelta(seconds=s), position=n) for n, s in enumerate((5, 3, 9, 3, 0))]
    sink = loki(server.url, name="logs")
    deliver(sink, *events)
    deliver(sink, *events[2:])
    first, second = ([value for stream in pushed(request) for value in stream["values"]] for request in server.requests)
    assert [json.loads(value[1])["data"] for value in first] == [4, 1, 3, 0, 2]
    assert [int(value[0]) for value in first] == sorted(int(value[0]) for value in first)
    assert all(value in first for value in second), "Loki knows what it has by its time and text"


def test_there_are_never_too_many_streams(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loki_push, "STREAMS_MAX", 3)
    sink = loki(server.url, name="logs", labels={"app": "shop", "key": lambda event: event.key})
    deliver(sink, *[make_event("a", key=f"k{n}") for n in range(6)])
    found = [stream["stream"] for stream in pushed(server.requests[0])]
    assert found == [{"app": "shop", "key": key} for key in ("k0", "k1", "k2", "other")]
    deliver(sink, make_event("a", key="k1"))
    assert pushed(server.requests[1])[0]["stream"]["key"] == "k1"


def test_an_entry_that_loki_calls_too_old_is_named_and_permanent(server: HttpServer) -> None:
    def answer(request: Request) -> Reply:
        lines = [json.loads(value[1])["id"] for stream in pushed(request) for value in stream["values"]]
        return (
            Reply(400, body=b"entry too far behind, oldest acceptable timestamp is: x")
            if "id-3" in lines
            else Reply(204)
        )

    server.behave = answer
    with pytest.raises(SomeFailed) as caught:
        deliver(loki(server.url, name="logs"), *[make_event("a", id=f"id-{n}") for n in range(8)])
    ((index, error),) = caught.value.errors.items()
    assert index == 3 and is_permanent(error) and "too far behind" in str(error)


def test_loki_that_is_full_is_left_alone_for_a_while(server: HttpServer) -> None:
    server.then(Reply(429, body=b"ingestion rate limit exceeded"), Reply(429, {"retry-after": "5"}), Reply(500))
    for kind in (HttpError, Busy, HttpError):
        with pytest.raises(kind) as caught:
            deliver(loki(server.url, name="logs"), *[make_event("a") for _ in range(5)])
        assert not is_permanent(caught.value)
    assert len(server.requests) == 3


def test_a_label_function_that_fails_is_the_failure_of_that_event(server: HttpServer) -> None:
    sink = loki(server.url, name="logs", labels={"tenant": lambda event: event.headers["tenant"]})
    with pytest.raises(SomeFailed) as caught:
        deliver(sink, make_event("a", headers={"tenant": "x"}), make_event("a"))
    assert {index: type(error) for index, error in caught.value.errors.items()} == {1: KeyError}
    assert len(server.requests) == 1


def test_a_whole_url_is_used_as_it_is_and_credentials_are_not_shown(server: HttpServer) -> None:
    url = server.url.replace("//", "//1234:glc_token@") + "/loki/api/v1/push"
    sink = loki(url, name="logs", headers={"X-Extra": "1"})
    deliver(sink, make_event("a"))
    (request,) = server.requests
    assert (request.path, request.headers["x-extra"]) == ("/loki/api/v1/push", "1")
    assert request.headers["authorization"].startswith("Basic ")
    assert "glc_token" not in repr(sink)


@pytest.mark.parametrize(
    "options",
    [
        {"labels": {}}, {"labels": {"a-b": "x"}}, {"labels": {"__x": "y"}}, {"labels": {f"l{n}": "" for n in range(16)}
        }, {"tenant": "a\nb"}, {"url": "loki:3100"}, {"batch_max": 0}, {"batch_wait": "soon"}, {"timeout": "0s"},
        {"url": "http://127.0.0.1", "allow_private": False},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_work_is_refused_at_the_start(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        loki(**{"url": "http://loki:3100", "name": "logs", **options})
