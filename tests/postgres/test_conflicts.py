"""Two transactions in each other's way, or an administrator who ends a statement: nobody's fault, and tried again."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from redrive import App, no_retry
from redrive.observe.signals import Halted, Signal
from redrive.testing import Harness


@pytest.mark.parametrize("error", [psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure])
@pytest.mark.parametrize(("times", "halts"), [(1, 0), (10, 0), (11, 1)])
def test_a_conflict_costs_no_attempt_and_halts_only_where_it_goes_on(
    app: App, harness: Harness, error: type[psycopg.Error], times: int, halts: int
) -> None:
    heard: list[Signal] = []
    app.listen(heard.extend)
    left = iter(range(times))

    @app.projection(app.log("orders"), tables={"seen": "n INTEGER PRIMARY KEY"})
    def see(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data})
        if next(left, None) is not None:
            raise error("another transaction was in the way")

    for number in range(3):
        harness.append("orders", "order.placed", number, key=str(number))
    harness.run_until_idle()
    harness.advance("1m")
    assert harness.query("SELECT n FROM seen ORDER BY n") == [(0,), (1,), (2,)]
    assert harness.letters() == []
    assert sum(isinstance(one, Halted) for one in heard) == halts


@pytest.mark.parametrize(
    ("statement", "told"),
    [("LOCK TABLE busy NOWAIT", "could not obtain lock"), ("SET LOCAL transaction_read_only = on", "takes no writes")],
    ids=["55P03", "25006"],
)
def test_a_lock_that_is_not_to_be_had_and_a_server_that_takes_no_writes_cost_no_attempt(
    app: App, harness: Harness, postgres_store: str, statement: str, told: str
) -> None:
    heard: list[Signal] = []
    app.listen(heard.extend)
    with app.transaction() as tx:
        tx.execute("CREATE TABLE busy ()")
        tx.execute("CREATE TABLE seen (n INTEGER PRIMARY KEY)")
    stranger = psycopg.connect(postgres_store)
    stranger.execute("LOCK TABLE busy")

    @app.projection(app.log("orders"), tables=["seen"], retry=no_retry)
    def see(event: Any, tx: Any) -> None:
        if event.data == 1 and not stranger.closed:
            tx.execute(statement)
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data})

    for number in range(3):
        harness.append("orders", "order.placed", number, key=str(number))
    harness.run_until_idle()
    harness.advance("1m")
    stranger.close()
    harness.advance("1m")
    assert harness.query("SELECT n FROM seen ORDER BY n") == [(0,), (1,), (2,)]
    assert harness.letters() == []
    assert {told in one.reason for one in heard if isinstance(one, Halted)} == {True}


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_a_statement_that_an_administrator_cancels_costs_no_attempt(app: App, harness: Harness, kind: str) -> None:
    left = iter(range(3))
    insert = "INSERT INTO seen SELECT :n WHERE NOT :cancelled OR pg_cancel_backend(pg_backend_pid())"
    with app.transaction() as tx:
        tx.execute("CREATE TABLE seen (n INTEGER PRIMARY KEY)")

    def see(event: Any, tx: Any) -> None:
        cancelled = event.data == 1 and next(left, None) is not None
        tx.execute(insert, {"n": event.data, "cancelled": cancelled})

    if kind == "projection":
        app.projection(app.log("orders"), name="see", tables=["seen"])(see)
    else:
        app.on(app.log("orders"), name="see", start="first")(see)
    for number in range(3):
        harness.append("orders", "order.placed", number, key=str(number))
    harness.run_until_idle()
    harness.advance("1m")
    assert harness.query("SELECT n FROM seen ORDER BY n") == [(0,), (1,), (2,)]
    assert (harness.letters(), next(left, None)) == ([], None)


def test_a_statement_that_takes_longer_than_the_server_allows_is_its_events_failure(app: App, harness: Harness) -> None:
    """Otherwise one event whose statement is too slow would stop its subscription for ever."""

    @app.projection(app.log("orders"), tables={"seen": "n INTEGER PRIMARY KEY"}, retry=no_retry)
    def see(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data})
        if event.data == 1:
            tx.execute("SET LOCAL statement_timeout = '1ms'")
            tx.execute("SELECT pg_sleep(60)")

    for number in range(3):
        harness.append("orders", "order.placed", number, key=str(number))
    harness.run_until_idle()
    assert harness.query("SELECT n FROM seen ORDER BY n") == [(0,), (2,)]
    assert [letter.error_type for letter in harness.letters()] == ["psycopg.errors.QueryCanceled"]
