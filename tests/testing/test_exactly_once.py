"""The check that users run on their own functions: it passes honest ones and catches the usual mistakes."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Reject, UsageError, retry
from redrive.testing import check_exactly_once

EVENTS = [("orders", "order.placed", {"cents": cents}, key) for cents, key in [(1, "a"), (2, "b"), (3, "a"), (4, "c")]]


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(str(tmp_path / "untouched.db"))


def declare_honest(app: App) -> None:
    @app.projection(app.log("orders"), tables={"revenue": "key TEXT PRIMARY KEY, cents INTEGER"})
    def revenue(event, tx):
        tx.execute(
            "INSERT INTO revenue VALUES (:key, :cents) ON CONFLICT (key) DO UPDATE SET cents = cents + excluded.cents",
            {"key": event.key, "cents": event.data["cents"]},
        )
        if event.data["cents"] == 4:
            tx.emit(app.log("alerts"), "large", event.data["cents"])

    @app.on(app.log("orders"), start="first", retry=retry(attempts=3, wait="1s"))
    def receipt(event, ctx):
        if event.data["cents"] == 2 and ctx.attempt == 1:
            raise OSError("try again")
        if event.key == "c":
            raise Reject("no")
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.emit(app.log("receipts"), "sent", ctx.state["n"])


def test_an_honest_app_passes_and_every_place_it_goes_through_was_tried(app: App) -> None:
    declare_honest(app)
    runs = check_exactly_once(app, EVENTS)
    assert runs > 30


def test_what_is_observed_may_be_chosen(app: App) -> None:
    declare_honest(app)
    seen = []

    def observe(query: Any) -> Any:
        seen.append(query("SELECT key, cents FROM revenue ORDER BY key"))
        return seen[-1]

    check_exactly_once(app, EVENTS, observe, hits_max=1)
    assert seen[0] == [("a", 4), ("b", 2), ("c", 4)]


def failure(app: App, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        check_exactly_once(app, EVENTS, **options)
    return str(caught.value)


def test_a_projection_that_counts_in_a_global_variable_is_caught(app: App) -> None:
    total = [0]

    @app.projection(app.log("orders"), tables={"revenue": "cents INTEGER"})
    def revenue(event, tx):
        total[0] += event.data["cents"]
        tx.execute("DELETE FROM revenue")
        tx.execute("INSERT INTO revenue VALUES (:cents)", {"cents": total[0]})

    assert "a second, undisturbed run" in failure(app)


def test_a_global_variable_that_is_reset_before_each_run_is_caught_by_the_restart(app: App) -> None:
    total = [0]

    @app.projection(app.log("orders"), tables={"revenue": "cents INTEGER"})
    def revenue(event, tx):
        total[0] += event.data["cents"]
        tx.execute("DELETE FROM revenue")
        tx.execute("INSERT INTO revenue VALUES (:cents)", {"cents": total[0]})

    said = failure(app, before_each=lambda: total.__setitem__(0, 0))
    assert "a crash at batch." in said
    assert "expected: {'table revenue': [(10,)]}" in said
    assert "a global variable" in said


def test_a_handler_that_writes_with_a_connection_of_its_own_is_caught(app: App, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    other.execute("CREATE TABLE charges (cents INTEGER)")

    @app.on(app.log("orders"), start="first")
    def charge(event, ctx):
        other.execute("INSERT INTO charges VALUES (?)", (event.data["cents"],))

    said = failure(
        app,
        observe=lambda query: other.execute("SELECT count(*), sum(cents) FROM charges").fetchall(),
        before_each=lambda: other.execute("DELETE FROM charges"),
    )
    assert "a crash at round.called (hit 1)" in said
    assert "ctx.idempotency_key" in said
    other.close()


def test_a_handler_that_uses_the_idempotency_key_passes(app: App) -> None:
    gateway: dict[str, int] = {}

    @app.on(app.log("orders"), start="first")
    def charge(event, ctx):
        gateway.setdefault(ctx.idempotency_key, event.data["cents"])

    runs = check_exactly_once(app, EVENTS, lambda query: sorted(gateway.values()), before_each=gateway.clear)
    assert runs > 10


def test_typed_events_and_dicts_are_fed_as_they_are(app: App) -> None:
    @app.projection(app.log("orders"), tables={"seen": "id TEXT, type TEXT"})
    def seen(event, tx):
        tx.execute("INSERT INTO seen VALUES (:id, :type)", {"id": event.id, "type": event.type})

    orders = app.log("orders")
    ids: list[Any] = []
    events = [{"log": orders, "type": "a", "id": "given"}, (orders, "b"), ["orders", "c", 1]]
    check_exactly_once(app, events, lambda query: ids.append(query("SELECT * FROM seen")) or ids[-1], hits_max=1)
    assert ids[0] == [("given", "a"), ("event-1", "b"), ("event-2", "c")]


@pytest.mark.parametrize("wrong", [[], ["orders"], [("orders",)], [("orders", "a", 1, "k", "more")]])
def test_events_that_are_none_are_refused(app: App, wrong: Any) -> None:
    with pytest.raises(UsageError):
        check_exactly_once(app, wrong)


@pytest.mark.parametrize("item", [{"type": "order.placed"}, {"log": "orders"}, "order.placed", ("orders",)])
def test_an_event_without_its_log_or_type_is_refused(item: Any) -> None:
    with pytest.raises(UsageError, match="an event is"):
        check_exactly_once(App("/nonexistent/x.db"), [item])
