"""Typed events through the engine: what fits becomes an object, what does not becomes a dead letter at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

import redrive
from redrive import App, EventError, UsageError
from redrive.testing import Harness


@redrive.event("typed.struct")
class StructPlaced(msgspec.Struct):
    cents: int


@redrive.event("typed.dataclass")
@dataclass
class DataPlaced:
    cents: int


@redrive.event("typed.pydantic")
class ModelPlaced(BaseModel):
    cents: int


@redrive.event("typed.grown", schema=3)
class Grown(msgspec.Struct):
    cents: int
    currency: str


CLASSES = pytest.mark.parametrize("cls", [StructPlaced, DataPlaced, ModelPlaced])


def name_of(cls: Any) -> str:
    return str(cls.__redrive_event__[0])


def raw(harness: Harness, kind: str, data: bytes, *, key: str | None = None, schema: int = 1) -> None:
    """An event as another program, or another version of this one, may have stored it."""
    with harness.app.runtime.store.transaction() as tx:
        log = tx.logs.id_of("orders", create=True)
        version = len(tx.logs.of_key(log, key, 0, 100)) + 1 if key else None
        values = (log, f"raw-{tx.logs.last(log)}", kind, key, version, schema, 0, None, data)
        insert = "INSERT INTO redrive_events (log, id, type, key, version, schema, time_us, headers, data)"
        tx.execute(f"{harness.own(insert)} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


@CLASSES
@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_a_function_gets_an_instance_of_the_class_it_filters_by(
    app: App, harness: Harness, cls: Any, kind: str
) -> None:
    seen = []
    if kind == "projection":
        app.projection(app.log("orders"), cls, name="see")(lambda event, tx: seen.append(event.data))
    else:
        app.on(app.log("orders"), cls, name="see", start="first")(lambda event, ctx: seen.append(event.data))
    event = harness.append("orders", cls(cents=4200), key="a")
    harness.append("orders", "other.type", 1)
    harness.run_until_idle()
    assert seen == [cls(cents=4200)]
    assert (event.type, event.schema) == (name_of(cls), 1)


@CLASSES
def test_a_type_and_a_dict_is_the_same_event_as_the_object(app: App, harness: Harness, cls: Any) -> None:
    one = harness.append("orders", cls(cents=1))
    other = harness.append("orders", name_of(cls), {"cents": 1})
    assert (one.type, one.raw, one.data) == (other.type, other.raw, other.data)


@CLASSES
@pytest.mark.parametrize("data", [b'{"cents": "many"}', b'{"dollars": 1}', b"[]", b"{not json", b'"\xff"', b""])
def test_data_that_does_not_fit_is_a_dead_letter_at_once_with_the_reason(
    app: App, harness: Harness, cls: Any, data: bytes
) -> None:
    seen = []

    @app.on(app.log("orders"), cls, start="first")
    def charge(event, ctx):
        seen.append(event.data.cents)

    raw(harness, name_of(cls), data, key="a")
    raw(harness, name_of(cls), b'{"cents": 2}', key="a")
    raw(harness, name_of(cls), b'{"cents": 3}', key="b")
    harness.advance("1h")
    assert seen == [3], "the lane of the envelope's key waits behind the unreadable event"
    first, follower = harness.letters()
    assert (first.state, first.reason, first.attempts, first.lane) == ("dead", "undecodable", 1, "a")
    assert (follower.state, follower.reason) == ("retrying", "behind_head")
    assert first.error_message.startswith(f"{name_of(cls)} (schema 1): ")


def test_the_reason_never_quotes_the_payload(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), ModelPlaced, start="first")
    def charge(event, ctx):
        event.data  # noqa: B018

    raw(harness, "typed.pydantic", b'{"cents": "4111-1111-1111-1111"}')
    harness.run_until_idle()
    [letter] = harness.letters()
    [(trace,)] = harness.query("SELECT traceback FROM redrive_attempts")
    assert "4111" not in letter.error_message + trace


def test_plain_data_that_is_not_json_is_undecodable_in_a_projection_too(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables={"seen": "n INTEGER"})
    def seen(event, tx):
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data["n"]})

    raw(harness, "order.placed", b"\xff\xfe", key="a")
    raw(harness, "order.placed", b'{"n": 1}', key="b")
    harness.run_until_idle()
    assert harness.query("SELECT n FROM seen") == [(1,)]
    assert [(letter.reason, letter.lane) for letter in harness.letters()] == [("undecodable", "a")]


def test_a_function_that_never_looks_at_the_data_is_not_stopped_by_it(app: App, harness: Harness) -> None:
    seen = []
    app.on(app.log("orders"), start="first", name="count")(lambda event, ctx: seen.append(event.type))
    raw(harness, "order.placed", b"{not json")
    harness.run_until_idle()
    assert (seen, harness.letters()) == (["order.placed"], [])


def test_old_data_is_brought_up_to_date_step_by_step(app: App, harness: Harness) -> None:
    seen = []

    @app.upcast("typed.grown", 1)
    def dollars_to_cents(data):
        return {"cents": data["dollars"] * 100}

    @app.upcast("typed.grown", 2)
    def with_currency(data):
        return {**data, "currency": "EUR"}

    @app.on(app.log("orders"), Grown, start="first")
    def charge(event, ctx):
        seen.append((event.schema, event.data))

    raw(harness, "typed.grown", b'{"dollars": 2}', schema=1)
    raw(harness, "typed.grown", b'{"cents": 5}', schema=2)
    harness.append("orders", Grown(7, "USD"))
    harness.run_until_idle()
    assert seen == [(1, Grown(200, "EUR")), (2, Grown(5, "EUR")), (3, Grown(7, "USD"))]


def test_an_upcast_that_fails_and_a_schema_from_the_future_are_undecodable(app: App, harness: Harness) -> None:
    @app.upcast("typed.grown", 1)
    def broken(data):
        return data["no such key"]

    @app.upcast("typed.grown", 2)
    def fine(data):
        return {**data, "currency": "EUR"}

    @app.on(app.log("orders"), Grown, start="first")
    def charge(event, ctx):
        event.data  # noqa: B018

    raw(harness, "typed.grown", b'{"dollars": 2}', schema=1)
    raw(harness, "typed.grown", b'{"cents": 5}', schema=9)
    harness.run_until_idle()
    old, future = harness.letters()
    assert "the upcast from schema 1 failed" in old.error_message
    assert "deploy the newer version" in future.error_message
    assert {old.reason, future.reason} == {"undecodable"}


def test_a_missing_upcast_stops_the_start_and_not_an_event(app: App, harness: Harness) -> None:
    app.upcast("typed.grown", 1)(lambda data: data)
    app.on(app.log("orders"), Grown, start="first")(lambda event, ctx: None)
    with pytest.raises(UsageError, match="no upcast from schema 2"):
        harness.run_until_idle()


def test_a_typed_event_is_emitted_like_a_plain_one(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), StructPlaced, start="first")
    def charge(event, ctx):
        ctx.emit(app.log("receipts"), DataPlaced(event.data.cents))

    @app.projection(app.log("orders"), StructPlaced)
    def project(event, tx):
        tx.emit(app.log("books"), ModelPlaced(cents=event.data.cents))

    harness.append("orders", StructPlaced(5), key="a")
    harness.run_until_idle()
    assert harness.emitted("receipts") == [("typed.dataclass", DataPlaced(5))]
    assert harness.emitted("books") == [("typed.pydantic", ModelPlaced(cents=5))]


def test_an_object_under_another_name_is_refused(app: App, harness: Harness) -> None:
    with pytest.raises(EventError, match="cannot be appended as"):
        harness.append("orders", "order.placed", StructPlaced(1))


def test_an_undecorated_object_is_refused(app: App, harness: Harness) -> None:
    with pytest.raises(UsageError, match=r"@redrive\.event"):
        harness.append("orders", object())
    with pytest.raises(UsageError, match="decorate the class"):
        app.on(app.log("orders"), dict)(lambda event, ctx: None)
