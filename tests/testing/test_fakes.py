"""Fakes: an event and a ctx for tests of a single function, with the checks of the real ones."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

import redrive
from redrive import App, EventError, UsageError
from redrive.testing import FakeCtx, make_event

app = App("/nonexistent/x.db")
alerts, other = app.log("alerts"), app.log("other")


@redrive.event("fakes.placed", schema=2)
class Placed(msgspec.Struct):
    cents: int


def watch(event, ctx):
    """The function under test."""
    ctx.state["failures"] = ctx.state.get("failures", 0) + 1
    if ctx.state["failures"] == 3:
        ctx.emit(alerts, "account.locked", {"user": ctx.key})
        ctx.execute("UPDATE users SET locked = 1 WHERE name = :name", {"name": ctx.key})


def test_a_function_is_tested_without_a_store() -> None:
    ctx = FakeCtx(make_event("login.failed", key="ada"), state={"failures": 2})
    watch(ctx.event, ctx)
    assert ctx.state == {"failures": 3}
    assert ctx.emitted(alerts) == [("account.locked", {"user": "ada"})]
    assert ctx.emitted("other") == []
    assert ctx.executed == [("UPDATE users SET locked = 1 WHERE name = :name", {"name": "ada"})]


def test_a_ctx_has_what_the_real_one_has() -> None:
    ctx = FakeCtx(make_event("x", id="e"), key="k", attempt=3, deps="a connection", epoch=7, name="charge")
    assert (ctx.key, ctx.attempt, ctx.deps, ctx.epoch) == ("k", 3, "a connection", 7)
    assert ctx.idempotency_key == "charge:e"
    assert FakeCtx().event.type == "test.event"


def test_a_ctx_refuses_what_the_real_one_refuses() -> None:
    with pytest.raises(UsageError, match="needs a key"):
        FakeCtx().state  # noqa: B018
    with pytest.raises(EventError, match="NaN"):
        FakeCtx().emit(alerts, "x", float("nan"))
    with pytest.raises(UsageError, match="takes a log"):
        FakeCtx().emit("alerts", "x")


def test_an_event_has_all_its_fields() -> None:
    time = datetime(2026, 5, 1, tzinfo=UTC)
    event = make_event("order.placed", {"n": 1}, key="a", id="e", position=7, version=3, headers={"h": "v"}, time=time)
    assert (event.type, event.data, event.key, event.id) == ("order.placed", {"n": 1}, "a", "e")
    assert (event.position, event.version, event.headers, event.time) == (7, 3, {"h": "v"}, time)


def test_an_event_may_be_typed() -> None:
    event = make_event(Placed(5), key="a")
    assert (event.type, event.schema, event.data, event.version) == ("fakes.placed", 2, Placed(5), 1)


def test_an_event_that_could_not_be_appended_cannot_be_made() -> None:
    with pytest.raises(EventError):
        make_event("two words")
    with pytest.raises(EventError):
        make_event("order.placed", {"n": float("inf")})


def test_two_events_made_alike_are_alike() -> None:
    assert make_event("order.placed", 1) == make_event("order.placed", 1)
