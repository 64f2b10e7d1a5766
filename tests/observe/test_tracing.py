"""Traces: the parent of an event travels with it and with what it causes; spans cost nothing to who has none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redrive import App
from redrive.observe import tracing
from redrive.testing import Harness

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "vendor=1"


def test_the_parent_of_an_event_is_carried_through_handlers_and_projections(
    tmp_path: Path, backend: str | None
) -> None:
    app = App(str(tmp_path / "untouched.db"))
    orders, paid, booked = app.log("orders"), app.log("paid"), app.log("booked")

    @app.on(orders, start="first")
    def pay(event: Any, ctx: Any) -> None:
        ctx.emit(paid, "paid", {}, headers={"tenant": "t1"})
        ctx.emit(paid, "paid.apart", {}, headers={"traceparent": PARENT.replace("0af7", "ffff")})

    @app.projection(paid)
    def book(event: Any, tx: Any) -> None:
        tx.emit(booked, "booked", {})

    with Harness(app, backend) as harness:
        harness.append(orders, "placed", headers={"traceparent": PARENT, "tracestate": STATE, "other": "x"})
        harness.append(orders, "placed")
        harness.run_until_idle()
        found = [event.headers for log in (paid, booked) for event in log.read()]
    apart = PARENT.replace("0af7", "ffff")
    assert found[:2] == [{"tenant": "t1", "traceparent": PARENT, "tracestate": STATE}, {"traceparent": apart}]
    assert found[2:4] == [{"tenant": "t1"}, {"traceparent": apart}]
    assert found[4:] == [
        {"traceparent": PARENT, "tracestate": STATE}, {"traceparent": apart}, {}, {"traceparent": apart},
    ]  # fmt: skip


def test_a_program_without_opentelemetry_gets_no_headers_and_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    given = {"tenant": "t1"}
    assert tracing.traced(given) is given and tracing.traced(None) is None
    assert not tracing.is_tracing()


def test_opentelemetry_is_never_imported_by_us(tmp_path: Path) -> None:
    code = (
        "import sys, redrive\n"
        "app = redrive.App('shop.db')\n"
        "app.on(app.log('orders'), start='first', name='see')(lambda event, ctx: None)\n"
        "app.log('orders').append('x')\n"
        "app.run(until_idle=True)\n"
        "assert not any(name.startswith(('opentelemetry', 'prometheus_client')) for name in sys.modules)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


PROGRAM = """
import json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redrive import App, Ignore, Reject, no_retry

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)

app = App("shop.db")
orders, paid = app.log("orders"), app.log("paid")

@app.on(orders, start="first", retry=no_retry)
async def pay(event, ctx):
    if event.type == "rejected":
        raise Reject("secret")
    if event.type == "ignored":
        raise Ignore("not for us")
    ctx.emit(paid, "paid", {})

@app.on(orders, "placed", start="first")
def mail(event):
    pass

@app.projection(paid)
def book(event, tx):
    pass

@app.projection(paid, batch=True)
def book_many(events, tx):
    pass

with trace.get_tracer("test").start_as_current_span("request"):
    for kind in ("placed", "rejected", "ignored"):
        orders.append(kind, {})
app.run(until_idle=True)
app.close()
print(json.dumps([
    {"name": one.name, "span": one.context.span_id, "parent": one.parent and one.parent.span_id,
     "trace": one.context.trace_id, "kind": one.kind.name, "status": one.status.status_code.name,
     "described": one.status.description, "events": len(one.events), **dict(one.attributes)}
    for one in spans.get_finished_spans()
]))
"""


def test_with_a_tracer_each_call_is_a_span_that_continues_the_trace_of_its_event(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len({one["trace"] for one in found}) == 1
    [request] = [one for one in found if one["name"] == "request"]
    pays = {one["redrive.event.type"]: one for one in found if one["name"] == "process pay"}
    assert {one["parent"] for one in pays.values()} == {request["span"]}
    assert {kind: one["status"] for kind, one in pays.items()} == {
        "placed": "UNSET", "rejected": "ERROR", "ignored": "UNSET",
    }  # fmt: skip
    assert pays["rejected"]["error.type"] == "Reject"
    assert "secret" not in done.stdout and pays["rejected"]["events"] == 0
    [mail] = [one for one in found if one["name"] == "process mail"]
    assert (mail["parent"], mail["redrive.attempt"], mail["kind"]) == (request["span"], 1, "CONSUMER")
    assert mail["messaging.destination.name"] == "orders"
    for name in ("process book", "process book_many"):
        [one] = [one for one in found if one["name"] == name]
        assert one["parent"] == pays["placed"]["span"]  # emitted inside that call
    assert one["messaging.batch.message_count"] == 1


DELIVERING = """
import json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redrive import App, no_retry, webhook
from redrive.sinks import loki
from redrive.testing.web import HttpServer, Reply

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)

app = App("shop.db")
orders = app.log("orders")
with HttpServer() as server:
    server.behave = lambda request: Reply(422 if b"refuse" in request.body and request.path == "/crm" else 200)
    to = [webhook(server.url + "/crm", name="crm", allow_private=True), loki(server.url, name="loki")]
    app.deliver(orders, to=to, start="first", retry=no_retry)
    with trace.get_tracer("test").start_as_current_span("request"):
        orders.append("placed", "take", id="taken")
        orders.append("placed", "refuse", id="refused")
    app.run(until_idle=True)
    app.close()
    requests = [[one.path, one.headers.get("ce-id"), one.headers["traceparent"]] for one in server.requests]
print(json.dumps([requests, [
    {"name": one.name, "span": f"{one.context.span_id:016x}", "parent": one.parent and f"{one.parent.span_id:016x}",
     "trace": f"{one.context.trace_id:032x}", "kind": one.kind.name, "status": one.status.status_code.name,
     **dict(one.attributes)}
    for one in spans.get_finished_spans()
]]))
"""


def test_a_delivery_is_a_span_and_its_request_carries_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(DELIVERING)
    done = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    requests, found = json.loads(done.stdout)
    [request] = [one for one in found if one["name"] == "request"]
    delivered = {one["messaging.message.id"]: one for one in found if one["name"] == "deliver crm"}
    assert {id: one["status"] for id, one in delivered.items()} == {"taken": "UNSET", "refused": "ERROR"}
    for one in delivered.values():
        assert (one["parent"], one["kind"], one["messaging.operation.type"]) == (request["span"], "CLIENT", "send")
    assert delivered["refused"]["error.type"] == "HttpError"
    sent = {id: _without_flags(parent) for path, id, parent in requests if path == "/crm"}
    assert sent == {id: f"00-{one['trace']}-{one['span']}" for id, one in delivered.items()}
    pushed = [one for one in found if one["name"] == "deliver loki"]
    pushes = [_without_flags(parent) for path, _, parent in requests if path != "/crm"]
    assert sorted(pushes) == sorted(f"00-{one['trace']}-{one['span']}" for one in pushed)
    assert sum(one["messaging.batch.message_count"] for one in pushed) == 2


def _without_flags(parent: str) -> str:
    return parent.rpartition("-")[0]  # releases of the SDK differ in them
