"""What a user's function may do with a Postgres transaction, and what becomes of the errors it meets there."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
import pytest

from redrive import App, EventError, UsageError, no_retry
from redrive.testing import Harness

TABLES = {"seen": "n INTEGER PRIMARY KEY"}


def put(harness: Harness, *numbers: int) -> None:
    for at, number in enumerate(numbers):
        harness.append("orders", "order.placed", number, key=f"k{at}")


def seen(harness: Harness) -> list[int]:
    return [n for (n,) in harness.query("SELECT n FROM seen ORDER BY n")]


@pytest.mark.parametrize("batch", [False, True])
def test_an_error_that_was_passed_over_fails_its_own_event_and_no_other(
    app: App, harness: Harness, batch: bool
) -> None:
    def one(event: Any, tx: Any) -> None:
        with suppress(psycopg.Error):  # on SQLite this would be fine
            tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data})

    def many(events: Any, tx: Any) -> None:
        for event in events:
            one(event, tx)

    app.projection(app.log("orders"), name="f", tables=TABLES, batch=batch, retry=no_retry)(many if batch else one)
    put(harness, 1, 2, 2, 3)
    harness.run_until_idle()
    assert seen(harness) == [1, 2, 3]
    [letter] = harness.letters()
    assert (letter.position, letter.error_type) == (3, "redrive.errors.UsageError")
    assert "duplicate key" in letter.error_message
    assert "tx.connection.transaction()" in letter.error_message


def test_a_savepoint_of_the_drivers_own_lets_a_function_go_on(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=TABLES)
    def f(event, tx):
        try:
            with tx.connection.transaction():
                tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data})
        except psycopg.errors.UniqueViolation:
            tx.execute("UPDATE seen SET n = -n WHERE n = :n", {"n": event.data})

    put(harness, 1, 2, 2, 3)
    harness.run_until_idle()
    assert (seen(harness), harness.letters()) == ([-2, 1, 3], [])


@pytest.mark.parametrize(
    "end",
    [
        lambda tx: tx.connection.commit(),
        lambda tx: tx.connection.rollback(),
        lambda tx: tx.connection.execute("COMMIT"),
        lambda tx: tx.connection.execute(b"  -- done\nROLLBACK"),
        lambda tx: tx.connection.cursor().execute(psycopg.sql.SQL("END")),
        lambda tx: tx.execute("INSERT INTO seen VALUES (7); COMMIT"),
        lambda tx: tx.connection.cursor().executemany("COMMIT", [()]),
        lambda tx: list(tx.connection.cursor().stream("COMMIT")),
        lambda tx: tx.connection.execute("INSERT INTO seen VALUES (7); SAVEPOINT mine"),
        lambda tx: tx.execute('SAVEPOINT U&"mine"'),
        lambda tx: tx.executemany("ROLLBACK TO redrive_point", [()]),
        lambda tx: tx.connection.cursor().executemany("RELEASE redrive_point", [()]),
    ],
    ids=[
        "commit()",
        "rollback()",
        "execute",
        "bytes",
        "cursor",
        "two statements",
        "many",
        "stream",
        "savepoint among others",
        "unreadable name",
        "many savepoints",
        "many of a cursor",
    ],
)
def test_a_function_cannot_end_the_transaction(app: App, harness: Harness, end: Any) -> None:
    @app.projection(app.log("orders"), tables=TABLES, retry=no_retry)
    def f(event, tx):
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data})
        if event.data == 2:
            end(tx)

    put(harness, 1, 2, 3)
    harness.run_until_idle()
    assert seen(harness) == [1, 3]
    assert [(letter.position, letter.error_type) for letter in harness.letters()] == [(2, "redrive.errors.UsageError")]


def test_a_transaction_of_ones_own_that_passed_over_an_error_is_refused_as_a_whole(app: App, harness: Harness) -> None:
    def swallow() -> None:
        with app.transaction() as tx:
            tx.execute("CREATE TABLE mine (n INTEGER)")
            with pytest.raises(psycopg.errors.UndefinedTable):
                tx.execute("SELECT * FROM nowhere")
            app.log("orders").append("order.placed", tx=tx)

    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        swallow()
    assert list(app.log("orders").read()) == []


@pytest.mark.parametrize("field", ["key", "id"])
@pytest.mark.parametrize("count", [1, 3])
def test_what_postgres_cannot_store_is_refused_at_append(app: App, harness: Harness, field: str, count: int) -> None:
    good = [{"type": "fine", "key": f"k{n}"} for n in range(count - 1)]
    with pytest.raises(EventError, match=r"\\x00"):
        app.log("orders").append_many([*good, {"type": "bad", "key": "k", field: "a\0b"}])
    assert list(app.log("orders").read()) == []
    app.log("orders").append("fine", {"text": "a\0b"}, key="k")
    assert next(app.log("orders").read()).data == {"text": "a\0b"}


def test_an_error_message_may_hold_anything(app: App, harness: Harness) -> None:
    @app.on(app.log("orders"), start="first", retry=no_retry)
    def f(event, ctx):
        raise ValueError("a\0b \udcff")

    put(harness, 1)
    harness.run_until_idle()
    [letter] = harness.letters()
    assert letter.error_message == "a\\0b \\udcff"


def test_a_text_that_postgres_cannot_hold_is_told_apart_from_trouble(app: App, harness: Harness) -> None:
    with pytest.raises(EventError, match=r"U\+0000"):
        app.log("orders").read_key("a\0b")


def test_parameters_are_checked_before_the_server_sees_them(app: App, harness: Harness) -> None:
    with app.transaction() as tx:
        with pytest.raises(UsageError, match=":b"):
            tx.execute("SELECT :a, :b", {"a": 1})
        assert tx.execute("SELECT :a::int + 1", {"a": 1}).fetchall() == [(2,)]
