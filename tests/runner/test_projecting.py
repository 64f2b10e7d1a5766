"""Projections: inside the transaction, in batches, with tables of their own, once and only once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive import App, Event, Tx, UsageError, no_retry, retry
from redrive.settings import Settings
from redrive.testing import Harness

SEEN = {"seen": "n INTEGER"}


def put(harness: Harness, *numbers: int) -> None:
    for number in numbers:
        harness.append("orders", "order.placed", {"n": number}, key=f"k{number % 3}")


def seen(harness: Harness) -> list[int]:
    return [n for (n,) in harness.query("SELECT n FROM seen ORDER BY rowid")]


def test_a_function_that_takes_a_list_gets_what_is_there(app: App, harness: Harness) -> None:
    sizes = []

    @app.projection(app.log("orders"), batch=True, tables=SEEN)
    def project(events, tx):
        sizes.append(len(events))
        for event in events:
            tx.execute("INSERT INTO seen VALUES (?)", [event.data["n"]])

    put(harness, *range(7))
    harness.run_until_idle()
    put(harness, 7)
    harness.run_until_idle()
    assert sizes == [7, 1]
    assert seen(harness) == list(range(8))


def test_a_list_that_fails_is_run_again_one_event_at_a_time(app: App, harness: Harness) -> None:
    sizes = []

    @app.projection(app.log("orders"), batch=True, tables=SEEN, retry=no_retry)
    def project(events, tx):
        sizes.append(len(events))
        for event in events:
            tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data["n"]})
            if event.data["n"] == 4:
                raise OSError

    put(harness, *range(9))
    harness.run_until_idle()
    assert sizes[0] == 9
    assert sizes[-5:] == [1] * 5
    assert seen(harness) == [0, 1, 2, 3, 5, 6, 8], "7 is of the same key as 4 and waits behind it"
    assert [(letter.state, letter.lane) for letter in harness.letters()] == [("dead", "k1"), ("retrying", "k1")]


def test_a_list_leaves_out_events_that_wait_behind_a_letter(app: App, harness: Harness) -> None:
    lists = []

    @app.projection(app.log("orders"), batch=True, tables=SEEN, retry=no_retry)
    def project(events, tx):
        lists.append([event.data["n"] for event in events])
        if 1 in lists[-1]:
            raise OSError

    put(harness, 1)
    harness.run_until_idle()
    put(harness, 2, 3, 4, 5)
    harness.run_until_idle()
    assert lists[-1] == [2, 3, 5]


def test_an_emission_of_a_list_comes_once_however_often_the_list_is_tried(app: App, harness: Harness) -> None:
    tries = []

    @app.projection(app.log("orders"), batch=True)
    def project(events, tx):
        tries.append(len(events))
        for event in events:
            tx.emit(app.log("out"), "copied", event.data["n"], key=event.key)
        if len(tries) in (2, 3):
            raise OSError

    put(harness, 1, 2, 3)
    harness.advance("1m")
    assert sorted(data for _, data in harness.emitted("out")) == [1, 2, 3]


def test_an_emission_of_a_list_must_name_its_key(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), batch=True)
    def project(events, tx):
        tx.emit(app.log("out"), "copied")

    put(harness, 1)
    harness.run_until_idle()
    [letter] = harness.letters()
    assert (letter.reason, "needs key=" in letter.error_message) == ("permanent", True)


def test_one_failing_event_among_many_costs_one_letter_and_nothing_else(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=SEEN, retry=no_retry)
    def project(event, tx):
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data["n"]})
        if event.data["n"] % 10 == 7:
            raise ValueError(event.data["n"])

    for number in range(100):
        harness.append("orders", "order.placed", {"n": number}, key=str(number))
    harness.run_until_idle()
    assert seen(harness) == [n for n in range(100) if n % 10 != 7]
    assert len(harness.letters("dead")) == 10


def test_a_batch_is_bounded_by_count(app: App, start: Any) -> None:
    harness = start(app, settings=Settings(batch_max=10, lease=1e6, poll_min=1e6, poll_max=1e6))

    @app.projection(app.log("orders"), tables=SEEN)
    def project(event, tx):
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data["n"]})

    put(harness, *range(25))
    harness.run_until_idle()
    assert seen(harness) == list(range(25))
    settled = [signal.applied for signal in harness.signals if type(signal).__name__ == "Settled"]
    assert settled == [10, 10, 5]


def test_a_batch_is_bounded_by_the_time_it_holds_the_write_lock(app: App, start: Any) -> None:
    harness = start(app, settings=Settings(batch_time_max=0.05, lease=1e6, poll_min=1e6, poll_max=1e6))

    @app.projection(app.log("orders"), tables=SEEN)
    def project(event, tx):
        harness.clock.advance(0.01)
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data["n"]})

    put(harness, *range(100))
    harness.run_until_idle()
    assert seen(harness) == list(range(100))
    settled = [signal.applied for signal in harness.signals if type(signal).__name__ == "Settled"]
    assert max(settled) < 30


def test_a_table_with_columns_is_created_and_one_without_is_yours(app: App, harness: Harness) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")

    @app.projection(app.log("orders"), tables=["mine"])
    def one(event, tx):
        tx.execute("INSERT INTO mine VALUES (1)")

    @app.projection(app.log("orders"), tables={"theirs": "n INTEGER PRIMARY KEY, m TEXT NOT NULL DEFAULT 'x'"})
    def two(event, tx):
        tx.execute("INSERT INTO theirs (n) VALUES (1)")

    put(harness, 1)
    harness.run_until_idle()
    assert harness.query("SELECT * FROM mine") == [(1,)]
    assert harness.query("SELECT * FROM theirs") == [(1, "x")]
    assert harness.query("SELECT name, columns IS NULL FROM redrive_tables ORDER BY name") == [
        ("mine", 1),
        ("theirs", 0),
    ]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "END", "BEGIN"])
def test_a_projection_cannot_end_the_transaction_it_runs_in(app: App, harness: Harness, statement: str) -> None:
    @app.projection(app.log("orders"), tables=SEEN, retry=no_retry)
    def project(event, tx):
        tx.execute("INSERT INTO seen VALUES (1)")
        tx.execute(statement)

    put(harness, 1)
    harness.run_until_idle()
    assert seen(harness) == []
    [letter] = harness.letters()
    assert letter.state == "dead"
    if statement != "BEGIN" or harness.on_postgres:
        assert letter.error_type == ("redrive.errors.UsageError" if harness.on_postgres else "sqlite3.DatabaseError")


def test_commit_on_the_raw_connection_is_refused_too(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=SEEN, retry=no_retry)
    def project(event, tx):
        tx.execute("INSERT INTO seen VALUES (1)")
        tx.connection.commit()

    put(harness, 1)
    harness.run_until_idle()
    assert (seen(harness), [letter.state for letter in harness.letters()]) == ([], ["dead"])


def test_append_inside_a_projection_is_refused_and_names_emit(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), retry=retry())
    def project(event, tx):
        app.log("out").append("copied")

    put(harness, 1)
    harness.run_until_idle()
    [letter] = harness.letters()
    assert (letter.state, letter.reason) == ("dead", "permanent")
    assert "tx.emit" in letter.error_message


def test_an_emission_is_appended_with_its_event_or_not_at_all(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), retry=no_retry)
    def project(event, tx):
        tx.emit(app.log("out"), "copied", event.data["n"], headers={"from": "orders"})
        if event.data["n"] == 2:
            raise OSError

    put(harness, 1, 2, 3)
    harness.run_until_idle()
    assert harness.emitted("out") == [("copied", 1), ("copied", 3)]
    first = next(app.log("out").read())
    assert (first.key, first.headers) == ("k1", {"from": "orders"})


def test_a_projection_that_emits_runs_durably_from_then_on(app: App, harness: Harness) -> None:
    calls = []

    @app.projection(app.log("orders"))
    def project(event, tx):
        calls.append(event.data["n"])
        tx.emit(app.log("out"), "copied", event.data["n"])

    put(harness, 1, 2)
    harness.run_until_idle()
    assert calls == [1, 1, 2], "rolled back at the first emission, run again on the durable connection"
    put(harness, 3)
    harness.run_until_idle()
    assert calls == [1, 1, 2, 3]


def test_a_swallowed_emission_error_does_not_swallow_the_escalation(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"))
    def project(event, tx):
        try:
            tx.emit(app.log("out"), "copied", event.data["n"])
        except Exception:
            raise AssertionError from None

    put(harness, 1)
    harness.run_until_idle()
    assert harness.emitted("out") == [("copied", 1)]


def test_the_ids_of_emissions_are_the_same_at_every_attempt(app: App, harness: Harness) -> None:
    ids = []

    @app.projection(app.log("orders"))
    def project(event, tx):
        tx.emit(app.log("out"), "one")
        tx.emit(app.log("out"), "two")
        found = tx.execute(harness.own("SELECT id FROM redrive_events WHERE log <> 1 ORDER BY position"))
        ids.append(found.fetchall())
        if len(ids) < 3:
            raise OSError

    put(harness, 1)
    harness.advance("1m")
    assert ids[0] == ids[-1]
    assert len(harness.emitted("out")) == 2


def test_a_projection_reads_its_own_writes_of_the_same_batch(app: App, harness: Harness) -> None:
    counts = []

    @app.projection(app.log("orders"), tables=SEEN)
    def project(event, tx):
        counts.append(tx.execute("SELECT count(*) FROM seen").fetchone()[0])
        tx.execute("INSERT INTO seen VALUES (1)")

    put(harness, 1, 2, 3)
    harness.run_until_idle()
    assert counts == [0, 1, 2]


def test_a_statement_that_fails_in_a_projection_is_the_events_failure(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables={"unique_n": "n INTEGER PRIMARY KEY"}, retry=no_retry)
    def project(event, tx):
        tx.execute("INSERT INTO unique_n VALUES (:n)", {"n": event.data["n"]})

    put(harness, 1, 1, 2)
    harness.run_until_idle()
    assert harness.query("SELECT n FROM unique_n ORDER BY n") == [(1,), (2,)]
    expected = "psycopg.errors.UniqueViolation" if harness.on_postgres else "sqlite3.IntegrityError"
    assert [letter.error_type for letter in harness.letters()] == [expected]


def test_emit_belongs_to_projections(app: App, harness: Harness) -> None:
    with app.transaction() as tx, pytest.raises(UsageError, match="append"):
        tx.emit(app.log("out"), "copied")


def test_a_filter_passes_over_what_it_does_not_ask_for(app: App, harness: Harness) -> None:
    kinds = []
    app.projection(app.log("orders"), "order.*", "user.born", name="p")(lambda event, tx: kinds.append(event.type))
    for kind in ("order.placed", "user.died", "user.born", "ordering", "order.paid"):
        harness.append("orders", kind)
    harness.run_until_idle()
    assert kinds == ["order.placed", "user.born", "order.paid"]
    assert harness.query("SELECT applied, position FROM redrive_progress") == [(3, 5)]


def test_a_missing_table_is_the_events_failure_and_is_retried(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=["mine"])
    def project(event, tx):
        tx.execute("INSERT INTO mine VALUES (1)")

    put(harness, 1)
    harness.run_until_idle()
    expected = "psycopg.errors.UndefinedTable" if harness.on_postgres else "sqlite3.OperationalError"
    assert harness.letters()[0].error_type == expected
    with app.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")
    harness.advance("1m")
    assert harness.query("SELECT * FROM mine") == [(1,)]


def test_a_reader_sees_only_what_is_committed(app: App, harness: Harness) -> None:
    outside = []

    @app.projection(app.log("orders"), tables=SEEN)
    def project(event, tx):
        tx.execute("INSERT INTO seen VALUES (1)")
        with closing((psycopg if harness.on_postgres else sqlite3).connect(harness.path)) as other:
            outside.append(other.execute("SELECT count(*) FROM seen").fetchone()[0])

    put(harness, 1, 2)
    harness.run_until_idle()
    assert outside == [0, 0]
    assert len(seen(harness)) == 2


def test_the_letters_of_a_batch_show_the_users_error_alone(tmp_path: Path) -> None:
    app = App(str(tmp_path / "x.db"))
    log = app.log("orders")

    @app.projection(log, tables={"t": "n INTEGER"}, order="none", retry=no_retry)
    def broken(event: Event[Any], tx: Tx) -> None:
        if event.data:
            raise ValueError(f"no {event.data}")

    with Harness(app) as harness:
        for number in (0, 1, 0, 2, 0):
            harness.append(log, "x", number)
        harness.run_until_idle()
        traces = harness.query("SELECT traceback FROM redrive_attempts ORDER BY id")
    assert len(traces) == 2
    assert all("which led to" not in trace and "ValueError: no" in trace for (trace,) in traces)
