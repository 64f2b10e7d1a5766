"""Statements that do not wait for each other: what a function sees, and what becomes of one that fails late."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.dialects import postgresql

from redrive import App, Reject, StoreError, retry
from redrive.runner.strides import STRIDE_MAX
from redrive.store.postgres import PostgresStore
from redrive.store.postgres.pipe import KNOWN_MAX, UNANSWERED_MAX
from redrive.testing import Harness
from redrive.testing.servers import empty

SEEN = {"seen": "n INTEGER PRIMARY KEY CHECK (n <> 13)"}
EVENTS = 300


@pytest.fixture
def store(postgres_store: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_store, inline=True)
    with store.transaction() as tx:
        tx.execute("CREATE TABLE seen (n INTEGER PRIMARY KEY CHECK (n <> 13))")
    yield store
    store.close()
    empty(postgres_store)


def fill(harness: Harness, count: int = EVENTS) -> None:
    for number in range(count):
        harness.append("orders", "order.placed", number)


def seen(harness: Harness) -> list[int]:
    return [n for (n,) in harness.query("SELECT n FROM seen ORDER BY n")]


# ---------------------------------------------------------------- what a function sees


def test_a_function_sees_what_it_wrote_by_whatever_means_it_looks(app: App, harness: Harness) -> None:
    wrong = []

    @app.projection(app.log("orders"), tables=SEEN)
    def project(event: Any, tx: Any) -> None:
        n = event.data
        inserted = tx.execute("INSERT INTO seen VALUES (:n)", {"n": n})
        nothing = tx.execute("UPDATE seen SET n = n WHERE n < 0")
        (count,) = tx.execute("SELECT count(*) FROM seen").fetchone()
        (same,) = tx.connection.execute("SELECT count(*) FROM seen").fetchone()
        if (inserted.rowcount, nothing.rowcount, inserted.statusmessage, count, same) != (1, 0, "INSERT 0 1", n, n):
            wrong.append(n)

    harness.append("orders", "order.placed", 1)
    harness.append("orders", "order.placed", 2)
    harness.run_until_idle()
    assert (seen(harness), wrong) == ([1, 2], [])


def test_what_returns_no_rows_has_none_to_fetch(store: PostgresStore) -> None:
    with store.transaction() as tx:
        project = tx.pipelined(lambda n, tx: sent.append(tx.execute("INSERT INTO seen VALUES (?)", (n,))))
        sent: list[Any] = []
        project(1, tx)
        with pytest.raises(psycopg.ProgrammingError):
            sent[0].fetchone()
        with pytest.raises(psycopg.ProgrammingError), sent[0] as cursor:
            list(cursor)
        assert sent[0].description is None
        assert tx.answers() is None


def test_the_connection_may_copy_open_savepoints_and_be_in_a_pipeline_of_its_own(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=SEEN)
    def project(event: Any, tx: Any) -> None:
        n = 10 * event.data
        tx.execute("INSERT INTO seen VALUES (?)", (n,))
        with tx.connection.cursor().copy("COPY seen FROM STDIN") as copy:
            copy.write_row((n + 1,))
        tx.execute("INSERT INTO seen VALUES (?)", (n + 2,))
        with pytest.raises(psycopg.errors.UniqueViolation), tx.connection.transaction():
            tx.connection.execute("INSERT INTO seen VALUES (%s)", (n + 2,))
        with tx.connection.pipeline():
            tx.connection.execute("INSERT INTO seen VALUES (%s)", (n + 4,))
            tx.execute("INSERT INTO seen VALUES (?)", (n + 5,))

    for number in (1, 2):
        harness.append("orders", "order.placed", number)
    harness.run_until_idle()
    assert seen(harness) == [10, 11, 12, 14, 15, 20, 21, 22, 24, 25]
    assert harness.letters() == []


def test_sqlalchemy_builds_and_the_connection_runs(app: App, harness: Harness) -> None:
    table = sqlalchemy.Table("seen", sqlalchemy.MetaData(), sqlalchemy.Column("n", sqlalchemy.Integer))
    dialect = postgresql.psycopg.dialect()  # type: ignore[no-untyped-call]

    @app.projection(app.log("orders"), tables=SEEN)
    def project(event: Any, tx: Any) -> None:
        compiled = postgresql.insert(table).values(n=event.data).on_conflict_do_nothing().compile(dialect=dialect)
        tx.connection.execute(str(compiled), compiled.params)

    fill(harness, 5)
    harness.run_until_idle()
    assert seen(harness) == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------- how long it waits


def test_a_batch_waits_for_the_server_a_few_times_however_many_its_statements_are(store: PostgresStore) -> None:
    with tempfile.TemporaryFile() as trace, store.transaction() as tx:
        tx.connection.pgconn.trace(trace.fileno())
        project = tx.pipelined(lambda n, tx: tx.execute("INSERT INTO seen VALUES (?)", (n,)))
        for number in range(100, 100 + EVENTS):
            project(number, tx)
        assert tx.answers() is None
        tx.connection.pgconn.untrace()
        trace.seek(0)
        sent = Counter(line.split()[4] for line in trace if line.split()[2] == b"F")
    assert sent[b"Execute"] == 1 + EVENTS  # BEGIN
    assert sent[b"Parse"] == 1 + 2  # the first time, and when it is used again
    assert sent[b"Sync"] == 1
    assert sent[b"Flush"] <= 2 * EVENTS / UNANSWERED_MAX


def test_more_statements_than_are_kept_prepared(store: PostgresStore) -> None:
    with store.transaction() as tx:
        for _ in range(3):
            project = tx.pipelined(lambda n, tx: tx.execute(f"UPDATE seen SET n = {n} WHERE n = ?", (n,)))
            for number in range(100, 100 + KNOWN_MAX + 50):
                project(number, tx)
                project(number, tx)
            assert tx.answers() is None
        (count,) = tx.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'redrive%'").fetchone()
        assert count <= KNOWN_MAX


def test_a_server_that_was_told_to_forget_its_plans_is_told_them_again(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=SEEN)
    def project(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (?)", (event.data + 100,))
        if event.data == 20:
            tx.connection.execute("DEALLOCATE ALL")

    fill(harness, 50)
    harness.run_until_idle()
    assert seen(harness) == list(range(100, 150))
    assert harness.letters() == []


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_statement_that_fails_is_its_own_events_failure(app: App, harness: Harness, order: Any) -> None:
    """The constraint refuses 13 and what is there already; the neighbours are applied once, whoever was called when."""

    @app.projection(app.log("orders"), tables=SEEN, order=order, retry=retry(attempts=2, wait="0s", wait_max="0s"))
    def project(event: Any, tx: Any) -> None:
        n = event.data
        tx.execute("INSERT INTO seen VALUES (?)", (n if n % 40 != 20 else n - 1,))

    fill(harness)
    harness.run_until_idle()
    bad = [n for n in range(EVENTS) if n == 13 or n % 40 == 20]
    assert seen(harness) == [n for n in range(EVENTS) if n not in bad]
    letters = harness.letters("dead")
    assert [(letter.position - 1, letter.attempts) for letter in letters] == [(n, 2) for n in bad]
    assert {letter.error_type for letter in letters} == {
        "psycopg.errors.CheckViolation", "psycopg.errors.UniqueViolation",
    }  # fmt: skip


UNLUCKY = """CREATE FUNCTION unlucky() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'unlucky' USING ERRCODE = 'UN013'; END $$"""


def test_an_error_with_a_code_of_the_users_own_is_not_taken_for_the_servers(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=SEEN, order="none", retry=retry(attempts=1))
    def project(event: Any, tx: Any) -> None:
        n = event.data
        tx.execute("INSERT INTO seen VALUES (unlucky())" if n == 7 else f"INSERT INTO seen VALUES ({n})")

    with app.transaction() as tx:
        tx.execute(UNLUCKY)
    fill(harness, 12)
    harness.run_until_idle()
    assert [letter.position - 1 for letter in harness.letters("dead")] == [7]
    assert seen(harness) == [n for n in range(12) if n != 7]


def test_a_function_hears_of_an_error_where_it_happens_and_may_say_what_it_means(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=SEEN)
    def project(event: Any, tx: Any) -> None:
        try:
            tx.execute("INSERT INTO seen VALUES (?)", (event.data,))
        except psycopg.errors.CheckViolation:
            raise Reject(f"{event.data} is unlucky") from None

    fill(harness, 40)
    harness.run_until_idle()
    (letter,) = harness.letters("dead")
    assert (letter.reason, letter.error_message) == ("rejected", "13 is unlucky")
    assert seen(harness) == [n for n in range(40) if n != 13]


def test_an_error_of_python_does_not_hide_one_of_the_server_before_it(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=SEEN, order="none", retry=retry(attempts=1))
    def project(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (?)", (event.data,))
        if event.data in (13, 14):
            raise ValueError(event.data)

    fill(harness, 20)
    harness.run_until_idle()
    assert [(letter.position - 1, letter.error_type) for letter in harness.letters("dead")] == [
        (13, "psycopg.errors.CheckViolation"), (14, "ValueError"),
    ]  # fmt: skip


def test_a_late_error_costs_one_batch_and_then_one_stride(app: App, harness: Harness) -> None:
    calls: Counter[int] = Counter()

    @app.projection(app.log("orders"), tables={"seen": "n INTEGER CHECK (n % 100 <> 13)"}, order="none",
                    retry=retry(attempts=1))  # fmt: skip
    def project(event: Any, tx: Any) -> None:
        calls[event.data] += 1
        tx.execute("INSERT INTO seen VALUES (?)", (event.data,))

    fill(harness, 600)
    harness.run_until_idle()
    assert len(harness.letters("dead")) == 6
    # All at once, then each stride, then what lies before the culprit in its stride, then the culprit by itself.
    assert max(calls.values()) <= 4
    assert sum(calls.values()) <= 2 * 600 + 6 * (2 * STRIDE_MAX + UNANSWERED_MAX)


def test_a_call_that_raises_is_taken_back_and_nobody_else_is_called_again(app: App, harness: Harness) -> None:
    calls: Counter[int] = Counter()

    @app.projection(app.log("orders"), tables=SEEN, order="none", retry=retry(attempts=3, wait="0s", wait_max="0s"))
    def project(event: Any, tx: Any) -> None:
        n = event.data + 100
        calls[n] += 1
        tx.execute("INSERT INTO seen VALUES (?)", (n,))
        if n % 40 == 20:
            raise ValueError(n)

    fill(harness)
    harness.run_until_idle()
    bad = [n for n in range(100, 100 + EVENTS) if n % 40 == 20]
    assert seen(harness) == [n for n in range(100, 100 + EVENTS) if n not in bad]
    assert [(letter.position + 99, letter.attempts) for letter in harness.letters("dead")] == [(n, 3) for n in bad]
    assert {n: count for n, count in calls.items() if count != 1} == dict.fromkeys(bad, 3)


@pytest.mark.parametrize("by", ["a question", "many statements", "the connection"])
def test_a_call_of_which_something_was_sent_before_it_raised_is_undone(app: App, harness: Harness, by: str) -> None:
    @app.projection(app.log("orders"), tables=SEEN, order="none", retry=retry(attempts=2, wait="0s", wait_max="0s"))
    def project(event: Any, tx: Any) -> None:
        n = 1000 * (event.data + 1)
        if by == "the connection":
            tx.connection.execute("INSERT INTO seen VALUES (%s)", (n,))
        else:
            tx.execute("INSERT INTO seen VALUES (?)", (n,))
        if by == "a question":
            assert tx.execute("UPDATE seen SET n = n WHERE n = ?", (n,)).rowcount == 1
        elif by == "many statements":
            for more in range(1, 2 * UNANSWERED_MAX):
                tx.execute("INSERT INTO seen VALUES (?)", (n + more,))
        if event.data in (3, 4, 9):
            raise ValueError(event.data)

    fill(harness, 12)
    harness.run_until_idle()
    assert [n // 1000 - 1 for n in seen(harness) if n % 1000 == 0] == [0, 1, 2, 5, 6, 7, 8, 10, 11]
    assert {n // 1000 - 1 for n in seen(harness)}.isdisjoint({3, 4, 9})
    assert [(letter.position - 1, letter.attempts) for letter in harness.letters("dead")] == [(3, 2), (4, 2), (9, 2)]


def test_a_statement_that_fails_in_a_later_attempt_is_told_as_that_attempts_failure(app: App, harness: Harness) -> None:
    tries: Counter[int] = Counter()

    @app.projection(app.log("orders"), tables=SEEN, order="none", retry=retry(attempts=2, wait="0s", wait_max="0s"))
    def project(event: Any, tx: Any) -> None:
        n = event.data
        tries[n] += 1
        tx.execute("INSERT INTO seen VALUES (?)", (13 if n == 20 and tries[n] > 1 else n + 100,))
        if n in (10, 20, 30):
            raise ValueError(n)

    fill(harness, 40)
    harness.run_until_idle()
    assert seen(harness) == [n + 100 for n in range(40) if n not in (10, 20, 30)]
    dead = {letter.position - 1: (letter.attempts, letter.error_type) for letter in harness.letters("dead")}
    assert dead == {10: (2, "ValueError"), 20: (2, "psycopg.errors.CheckViolation"), 30: (2, "ValueError")}


def test_one_that_succeeds_at_the_second_attempt_is_applied_in_its_place(app: App, harness: Harness) -> None:
    tried: set[int] = set()

    @app.projection(app.log("orders"), tables={"seen": "n INTEGER, at SERIAL"}, order="none",
                    retry=retry(attempts=2, wait="0s", wait_max="0s"))  # fmt: skip
    def project(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen (n) VALUES (?)", (event.data,))
        if event.data % 10 == 5 and event.data not in tried:
            tried.add(event.data)
            raise ValueError(event.data)

    fill(harness, 40)
    harness.run_until_idle()
    assert [n for (n,) in harness.query("SELECT n FROM seen ORDER BY at")] == list(range(40))
    assert [letter.position - 1 for letter in harness.letters("applied")] == [5, 15, 25, 35]


def test_a_list_whose_statement_fails_late_is_run_one_by_one(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"), tables=SEEN, batch=True, order="none", retry=retry(attempts=1))
    def project(events: Any, tx: Any) -> None:
        for event in events:
            tx.execute("INSERT INTO seen VALUES (?)", (event.data,))

    fill(harness, 30)
    harness.run_until_idle()
    assert [letter.position - 1 for letter in harness.letters("dead")] == [13]
    assert seen(harness) == [n for n in range(30) if n != 13]


def insert(n: int, tx: Any) -> None:
    tx.execute("INSERT INTO seen VALUES (?)", (n,))


def run(store: PostgresStore, inside: Callable[[Any], None]) -> None:
    with store.transaction() as tx:
        inside(tx)


def test_a_connection_that_is_lost_under_way_is_nobodys_failure(store: PostgresStore, postgres_store: str) -> None:
    def lose(tx: Any) -> None:
        project = tx.pipelined(insert)
        project(1, tx)
        with psycopg.connect(postgres_store, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (tx.connection.info.backend_pid,))
        for number in range(2, 2 + UNANSWERED_MAX):
            project(number, tx)
        tx.answers()

    with pytest.raises(StoreError):
        run(store, lose)
    with store.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM seen").fetchall() == [(0,)]


def test_nothing_that_was_sent_stays_behind_in_the_next_transaction(store: PostgresStore) -> None:
    def leave(tx: Any) -> None:
        tx.pipelined(insert)(13, tx)
        raise KeyError("an error of ours")

    with pytest.raises(KeyError):
        run(store, leave)
    with store.transaction() as tx:
        assert tx.execute("INSERT INTO seen VALUES (?)", (1,)).rowcount == 1
    with store.reading() as tx:
        assert tx.execute("SELECT n FROM seen").fetchall() == [(1,)]
