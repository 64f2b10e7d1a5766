"""Webhooks: what is sent, what answers mean, and what a misbehaving server can do to us."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from redrive import Event, Ignore, Reject, UsageError, cloudevents, verify_signature, webhook
from redrive.event import check_id
from redrive.policy.classify import http_status, is_permanent
from redrive.sinks import pool
from redrive.sinks.http import ANSWER_BYTES_MAX, Busy, HttpError, NoAnswer, Unreachable
from redrive.testing import make_event
from redrive.testing.web import Babble, CutIn, Drop, Endless, Hang, HttpServer, Reply
from tests.sinks.conftest import deliver

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "a secret that both sides know"
ORDER = make_event(
    "order.placed", {"cents": 4200, "where": "Köln"}, key="Köln 1", id="order-1",
    headers={"tenant": "a", "X-Odd": "ö", "traceparent": TRACE, "tracestate": "x=1"},
)  # fmt: skip


def hook(server: HttpServer, path: str = "/hook", **options: Any) -> Any:
    return webhook(server.url + path, **{"name": "crm", "allow_private": True, "timeout": "5s", **options})


def failure(server: HttpServer, *behaviours: Any, **options: Any) -> Exception:
    server.then(*behaviours)
    with pytest.raises(Exception) as caught:  # each test says which
        deliver(hook(server, **options), ORDER)
    return caught.value


# ------------------------------------------------------------ what is sent


@pytest.mark.parametrize("headers", [{}, {"tenant": "a"}])
@pytest.mark.parametrize("key", [None, "ada", "Köln 1"])
@pytest.mark.parametrize("id", ["order-1", "order 1%"])
def test_the_headers_of_any_event_are_its_attributes(id: str, key: str | None, headers: dict[str, str]) -> None:
    """Those of an ordinary one are made by hand; both ways have to agree."""
    event = make_event("order.placed", 1, key=key, id=id, headers=headers)
    fields = cloudevents.attributes(event, "urn:x y")
    expected = {f"ce-{name}": cloudevents.header_text(text) for name, text in fields.items()}
    kind = expected.pop("ce-datacontenttype")
    assert cloudevents.http_headers(event, "urn:x y") == {"content-type": kind, **expected}


def test_a_post_that_goes_by_itself_is_that_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    with HttpServer() as server:
        for by_itself in (True, False):
            monkeypatch.setattr(pool, "goes_by_itself", by_itself)
            sink = hook(server, headers={"X-Mine": "a", "User-Agent": "mine"}, secret=None)
            deliver(sink, ORDER)
            request = server.requests.pop()
            sent.append((request.method, request.path, list(request.headers.items()), request.body))
    assert sent[0] == sent[1]
    assert dict(sent[0][2])["user-agent"] == "mine"


def test_a_release_of_the_client_that_nobody_has_read_is_used_by_its_session() -> None:
    assert all(pool.was_read(release) for release in ("3.12.0", "3.14.5"))
    assert not any(pool.was_read(release) for release in ("3.15.0", "3.1.4", "4.0.0a1"))


def test_a_binary_cloudevent_is_the_data_with_its_attributes_as_headers(server: HttpServer) -> None:
    sink = hook(server, headers={"Authorization": "Bearer x"})
    sink.log = "orders"
    deliver(sink, ORDER)
    (request,) = server.requests
    assert (request.method, request.path, request.body) == ("POST", "/hook", ORDER.raw)
    assert {name: text for name, text in request.headers.items() if name.startswith("ce-")} == {
        "ce-specversion": "1.0",
        "ce-id": "order-1",
        "ce-source": "urn:redrive:log:orders",
        "ce-type": "order.placed",
        "ce-time": "2026-01-01T00:00:00.000000Z",
        "ce-subject": "K%C3%B6ln%201",
        "ce-partitionkey": "K%C3%B6ln%201",
        "ce-tenant": "a",
        "ce-traceparent": TRACE,
        "ce-tracestate": "x=1",
        "ce-redriveheaders": "{%22X-Odd%22:%22%C3%B6%22}",
    }
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == "order-1"
    assert (request.headers["traceparent"], request.headers["tracestate"]) == (TRACE, "x=1")
    assert request.headers["authorization"] == "Bearer x"


def test_a_structured_cloudevent_comes_back_as_the_event_it_was(server: HttpServer) -> None:
    deliver(hook(server, mode="structured", source="urn:shop"), ORDER)
    (request,) = server.requests
    assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert json.loads(request.body)["source"] == "urn:shop"
    back = cloudevents.decode(request.body, 0)
    assert (back.id, back.key, back.data_raw, back.time_us) == (ORDER.id, ORDER.key, ORDER.raw, ORDER.time_us)


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_the_signature_covers_the_exact_bytes_and_holds_for_each_secret(server: HttpServer, mode: str) -> None:
    other = b"another one, that replaces it"
    deliver(hook(server, secret=[other, SECRET], mode=mode), ORDER)
    (request,) = server.requests
    for secret in (other, SECRET):
        assert verify_signature(request.body, request.headers, secret) == "order-1"


def test_an_id_of_any_letters_arrives_as_it_is(server: HttpServer) -> None:
    odd = check_id('50% of "Köln", v1.2 – ✓')
    deliver(hook(server, secret=SECRET), make_event("a", id=odd))
    (request,) = server.requests
    assert verify_signature(request.body, request.headers, SECRET) == odd


def test_an_edited_event_is_another_request(server: HttpServer) -> None:
    """Who remembers what it answered to a key would answer to the edited one that the first was wrong."""
    event = make_event("a", {"cents": 0}, id="order-1")
    for mode in ("binary", "structured"):
        deliver(hook(server, mode=mode), event, event.with_data(b'{"cents": 1}', 1), event.with_data(b"{}", 2))
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert keys == ["order-1", "order-1:1", "order-1:2"] * 2


def test_url_secret_and_headers_may_be_functions_of_the_event(server: HttpServer) -> None:
    def url(event: Event[Any]) -> str:
        return f"{server.url}/{event.headers['tenant']}"

    sink = webhook(
        url, name="tenants", allow_private=True,
        secret=lambda event: f"the secret of tenant {event.headers['tenant']}",
        headers=lambda event: {"x-tenant": event.headers["tenant"]},
    )  # fmt: skip
    events = [make_event("a", headers={"tenant": name}) for name in ("red", "blue")]
    deliver(sink, *events)
    assert [(r.path, r.headers["x-tenant"]) for r in server.requests] == [("/red", "red"), ("/blue", "blue")]
    verify_signature(server.requests[1].body, server.requests[1].headers, "the secret of tenant blue")


def test_a_bad_url_of_a_function_is_the_failure_of_that_event(server: HttpServer) -> None:
    for bad in ("ftp://x/", "http://", "nonsense", "http://a b/", "http://x/\r\nhost: y", "http://x:99999/", None):
        sink = webhook(lambda event, bad=bad: bad, name="tenants", allow_private=True)  # type: ignore[misc]
        with pytest.raises(Reject, match="URL"):
            deliver(sink, ORDER)

    def none(event: Event[Any]) -> str:
        raise Ignore("no hook")

    with pytest.raises(Ignore):
        deliver(webhook(none, name="tenants"), ORDER)


def test_connections_are_kept(server: HttpServer) -> None:
    deliver(hook(server), *[make_event("a", number) for number in range(20)])
    assert len(server.requests) == 20
    assert {request.connection for request in server.requests} == {1}


# ------------------------------------------------------------ what answers mean


@pytest.mark.parametrize(
    ("status", "permanent"),
    [
        (400, True), (401, True), (404, True), (409, True), (410, True), (422, True),
        (408, False), (425, False), (429, False), (500, False), (502, False), (503, False), (504, False),
        (301, False), (302, False), (307, False), (304, False), (599, False),
    ],
)  # fmt: skip
def test_an_answer_that_blames_the_request_is_permanent(server: HttpServer, status: int, permanent: bool) -> None:
    error = failure(server, Reply(status, {"location": f"{server.url}/elsewhere"}))
    assert (type(error), http_status(error), is_permanent(error)) == (HttpError, status, permanent)
    assert len(server.requests) == 1, "a redirect was followed, or something tried again"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206])
def test_any_success_is_a_receipt(server: HttpServer, status: int) -> None:
    server.then(Reply(status))
    deliver(hook(server), ORDER)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_says_when_to_come_back(server: HttpServer, status: int) -> None:
    error = failure(server, Reply(status, {"Retry-After": "7"}))
    assert isinstance(error, Busy)
    assert (error.after, error.status, is_permanent(error)) == (7.0, status, False)


def test_retry_after_has_a_limit_and_nonsense_in_it_is_no_advice(server: HttpServer) -> None:
    far = failure(server, Reply(503, {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}))
    assert isinstance(far, Busy) and far.after == 3600.0
    for text in ("soon", "-5", "0", "", "1e3", "Thu, 01 Jan 1970 00:00:00 GMT", "٣"):
        headers = {"Retry-After": text} if text.isascii() else {"Retry-After": "Thu, 99 Foo"}
        assert type(failure(server, Reply(503, headers))) is HttpError, text
    assert type(failure(server, Reply(500, {"Retry-After": "7"}))) is HttpError  # only 429 and 503 have a say


def test_an_error_shows_what_the_server_said_but_not_our_secrets(server: HttpServer) -> None:
    url = server.url.replace("//", "//ada:pass%20word@") + "/services/T0P-S3CRET?key=QUERYKEY"
    said = b"bad cents at /services/T0P-S3CRET?key=QUERYKEY for ada pass word Basic YWRhOnBhc3Mgd29yZA== Bearer-ABC\x00"
    server.behave = Reply(400, body=said)
    sink = webhook(url, name="crm", allow_private=True, headers={"x-token": "Bearer-ABC"})
    with pytest.raises(HttpError) as caught:
        deliver(sink, ORDER)
    shown = f"{caught.value} {caught.value!r} {sink!r} {sink._url!r}"
    assert "400 Bad Request: bad cents at /" in shown
    for secret in ("T0P-S3CRET", "QUERYKEY", "pass%20word", "pass word", "YWRhOnBhc3Mgd29yZA", "Bearer-ABC", "\x00"):
        assert secret not in shown
    assert server.requests[0].headers["authorization"] == "Basic YWRhOnBhc3Mgd29yZA=="


# ------------------------------------------------------------ servers that misbehave


@pytest.mark.parametrize("behaviour", [Drop(), CutIn(), Babble(), Babble(b"HTTP/1.1 200 OK\r\n" + b"x" * 20_000)])
def test_a_connection_that_ends_before_the_answer_is_no_receipt(server: HttpServer, behaviour: Any) -> None:
    error = failure(server, behaviour)
    assert type(error) is Unreachable and not is_permanent(error)


def test_a_server_that_hangs_is_left_after_the_timeout(server: HttpServer) -> None:
    error = failure(server, Hang(), timeout="100ms")
    assert type(error) is NoAnswer and "within 100ms" in str(error)


def test_a_server_that_is_slow_but_in_time_is_waited_for(server: HttpServer) -> None:
    server.then(Reply(delay=0.1))
    deliver(hook(server), ORDER)
    assert len(server.requests) == 1


def test_nobody_at_the_address_is_an_error_that_passes(server: HttpServer) -> None:
    server.stop()
    error = failure(server)
    assert type(error) is Unreachable and "refused" in str(error).lower() and not is_permanent(error)


def test_a_name_that_does_not_exist_is_an_error_that_passes() -> None:
    with pytest.raises(Unreachable, match="looked up"):
        deliver(webhook("http://nowhere.invalid/", name="crm"), ORDER)


def test_an_endless_answer_is_cut_off_and_its_status_counts(server: HttpServer) -> None:
    server.then(Endless(200))
    deliver(hook(server), ORDER)
    error = failure(server, Endless(500))
    assert http_status(error) == 500 and len(str(error)) < 400


def test_no_more_of_an_answer_is_kept_than_the_limit(server: HttpServer) -> None:
    async def ask() -> Any:
        sink = hook(server, timeout="100s")
        answer = await asyncio.wait_for(sink.request("POST", sink._url, {}), 20)
        await sink.close()
        return answer

    server.then(Endless(200))
    answer = asyncio.run(ask())
    assert len(answer.body) == ANSWER_BYTES_MAX and not answer.complete


def test_an_answer_is_read_in_pieces_that_need_no_memory_of_their_own(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redrive.sinks import pool

    read, sizes = pool._recv, list[int]()

    def recv(connection: Any, size: int, flags: int) -> bytes:
        sizes.append(size)
        return read(connection, size, flags)

    async def ask() -> Any:
        sink = hook(server)
        answer = await sink.request("POST", sink._url, {})
        await sink.close()
        return answer

    monkeypatch.setattr(pool, "_recv", recv)
    body = bytes(range(256)) * 200
    server.then(Reply(200, body=body))
    answer = asyncio.run(ask())
    assert (answer.body, answer.complete) == (body, True)
    assert set(sizes) == {pool._READ_BYTES_MAX} and len(sizes) >= len(body) / pool._READ_BYTES_MAX


def test_a_packed_answer_is_not_unpacked(server: HttpServer) -> None:
    """A bomb of a few bytes would fill the memory."""
    server.then(Reply(500, {"content-encoding": "gzip"}, b"not gzip at all"))
    assert "not gzip at all" in str(failure(server))
    assert server.requests[0].headers["accept-encoding"] == "identity"


def test_an_answer_cut_in_its_body_is_still_a_receipt(server: HttpServer) -> None:
    server.then(Reply(200, body=b"thank you", cut=3))
    deliver(hook(server), ORDER)
    assert len(server.requests) == 1


def test_a_server_that_comes_back_is_served_again_by_the_same_sink(server: HttpServer) -> None:
    async def story() -> None:
        sink = hook(server)
        await sink.send([ORDER])
        server.stop()
        with pytest.raises(Unreachable):
            await sink.send([ORDER])
        server.start()
        await sink.send([ORDER])
        await sink.close()

    asyncio.run(story())
    assert len(server.requests) == 2


def test_cookies_are_not_kept(server: HttpServer) -> None:
    server.then(Reply(200, {"set-cookie": "a=b"}))
    deliver(hook(server), ORDER, ORDER)
    assert "cookie" not in server.requests[1].headers


def test_a_proxy_of_the_environment_is_not_used(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a proxy no address could be checked."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9/")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    deliver(hook(server), ORDER)
    assert len(server.requests) == 1


def test_a_certificate_that_nobody_vouches_for_is_refused_and_a_context_may_vouch() -> None:
    pem = Path(__file__).with_name("server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with HttpServer(tls=context) as server:
        error = failure(server)
        assert type(error) is Unreachable and "certificate" in str(error)
        assert server.requests == []
        deliver(hook(server, tls=ssl.create_default_context(cafile=str(pem))), ORDER)
        assert len(server.requests) == 1


# ------------------------------------------------------------ probes


def probe(sink: Any) -> None:
    async def once() -> None:
        try:
            await sink.probe()
        finally:
            await sink.close()

    asyncio.run(once())


def test_a_webhook_probes_only_if_told_how(server: HttpServer) -> None:
    assert not hook(server).can_probe()
    assert hook(server, probe_method="HEAD").can_probe()
    assert hook(server, probe_url=f"{server.url}/health").can_probe()


def test_a_page_for_probes_has_to_answer_with_success(server: HttpServer) -> None:
    sink = hook(server, probe_url=f"{server.url}/health")
    probe(sink)
    assert [(request.method, request.path) for request in server.requests] == [("GET", "/health")]
    for status in (302, 404, 500, 503):
        server.then(Reply(status))
        with pytest.raises(HttpError):
            probe(sink)
    server.then(Drop(), Drop())  # aiohttp asks a second time where nothing can be done twice
    with pytest.raises(Unreachable):
        probe(sink)


def test_the_url_itself_is_well_if_it_answers_anything_but_later(server: HttpServer) -> None:
    sink = hook(server, probe_method="OPTIONS")
    for status in (200, 204, 404, 405):
        server.then(Reply(status))
        probe(sink)
    assert {(request.method, request.path) for request in server.requests} == {("OPTIONS", "/hook")}
    for status in (408, 429, 500, 503):
        server.then(Reply(status))
        with pytest.raises(HttpError):
            probe(sink)


# ------------------------------------------------------------ what is refused at the start


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"mode": "plain"},
        {"timeout": "0s"},
        {"timeout": "soon"},
        {"connect_timeout": -1},
        {"secret": ""},
        {"secret": "short"},
        {"secret": "whsec_%%%"},
        {"secret": []},
        {"headers": {"webhook-id": "x"}},
        {"headers": {"Content-Type": "text/plain"}},
        {"headers": {"Idempotency-Key": "x"}},
        {"headers": {"a b": "x"}},
        {"headers": {"x": "y\r\nz: 1"}},
        {"headers": {f"x-{number}": "" for number in range(51)}},
        {"probe_method": "POST"},
        {"probe_url": "ftp://x"},
        {"url": "http://127.0.0.1/", "allow_private": False},
        {"url": "http://[::1]/", "allow_private": False},
        {"url": lambda event: "", "probe_method": "HEAD"},
    ],
    ids=lambda options: "-".join(options),
)
def test_what_cannot_work_is_refused_at_the_start(options: dict[str, Any]) -> None:
    given = {"url": "https://example.com/hook", "name": "crm", **options}
    with pytest.raises(UsageError):
        webhook(**given)


def test_without_aiohttp_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(UsageError, match=r"redrive\[http\]"):
        webhook("https://example.com/hook", name="crm")


def test_no_message_about_a_url_quotes_it() -> None:
    for url in (
        "ftp://u:hunter2@x/hunter2",
        "http://u:hunter2@:1",
        "http://[hunter2/",
        "http://x:hunter2/",
        "hunter2 ",
    ):
        with pytest.raises(UsageError) as caught:
            webhook(url, name="crm")
        assert "hunter2" not in repr(caught.value)
