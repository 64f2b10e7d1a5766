"""Ctrl-C in the middle of SQLite's question whether a statement is allowed is Ctrl-C, not a refusal."""

from __future__ import annotations

import _thread
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from redrive.store.sqlite.connection import Guard
from redrive.store.sqlite.store import SqliteStore


@pytest.fixture
def struck_at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ctrl-C, once, while the guard is asked for this action."""
    asked = Guard.__call__

    def arm(action: int) -> None:
        def call(self: Guard, what: int, *rest: Any) -> int:
            if what == action:
                monkeypatch.setattr(Guard, "__call__", asked)
                signal.raise_signal(signal.SIGINT)
            return asked(self, what, *rest)

        monkeypatch.setattr(Guard, "__call__", call)

    monkeypatch.setattr(Guard, "__call__", asked)
    return arm


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = SqliteStore(str(tmp_path / "s.db"), inline=True)
    yield made
    made.close()


def test_a_reader_ends(store: SqliteStore, struck_at: Any) -> None:
    struck_at(sqlite3.SQLITE_READ)
    with pytest.raises(KeyboardInterrupt), store.reading() as tx:
        tx.execute("SELECT name FROM redrive_subscriptions WHERE name = 'one never asked before'")
    with store.reading() as tx:
        assert tx.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("action", [sqlite3.SQLITE_INSERT, sqlite3.SQLITE_TRANSACTION])
def test_a_transaction_is_undone(store: SqliteStore, struck_at: Any, action: int) -> None:
    with store.transaction() as tx:
        tx.execute("CREATE TABLE mine (id INTEGER)")

    def interrupted() -> None:
        with store.transaction() as tx:
            tx.execute("INSERT INTO mine VALUES (1)")
            struck_at(action)
            tx.execute("INSERT INTO mine VALUES (2)")
            for number in range(300):  # all that was prepared is forgotten, so that COMMIT is asked about as well
                tx.execute(f"SELECT {number}")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with store.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM mine").fetchone() == (0,)
        tx.execute("INSERT INTO mine VALUES (3)")
    with store.reading() as tx:
        assert tx.execute("SELECT id FROM mine").fetchall() == [(3,)]


def test_a_refusal_stays_a_refusal(store: SqliteStore) -> None:
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"), store.transaction() as tx:
        tx.execute("COMMIT")
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"), store.reading() as tx:
        tx.execute("ROLLBACK")


def test_who_answers_ctrl_c_by_itself_gets_the_error(store: SqliteStore, struck_at: Any) -> None:
    heard: list[int] = []

    def answer(number: int, _: object) -> None:
        heard.append(number)
        raise RuntimeError("the program's own way to stop")

    former = signal.signal(signal.SIGINT, answer)
    try:
        struck_at(sqlite3.SQLITE_READ)
        with pytest.raises(sqlite3.DatabaseError), store.reading() as tx:
            tx.execute("SELECT name FROM redrive_subscriptions WHERE name = 'nor this one'")
    finally:
        signal.signal(signal.SIGINT, former)
    assert heard == [signal.SIGINT]


def test_a_reader_ends_that_is_struck_while_its_statement_runs(store: SqliteStore) -> None:
    """The next thing that runs is what belongs to the end of its cursor: what is raised in there is dropped."""
    strike = "SELECT CASE i WHEN 2 THEN strike(:number) END FROM (SELECT 1 AS i UNION ALL SELECT 2)"

    def interrupted() -> None:
        with store.reading() as tx:
            tx.connection.create_function("strike", 1, _thread.interrupt_main)
            tx.connection.execute(strike, {"number": signal.SIGINT}).fetchall()

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_a_reader_that_asks_much_keeps_in_mind_what_is_still_read(store: SqliteStore) -> None:
    with store.reading() as tx:
        connection: Any = tx.connection
        left = connection.execute("SELECT 1 UNION ALL SELECT 2")
        for _ in range(1000):
            connection.execute("SELECT 1").fetchall()
        assert len(connection._cursors) <= 200
    with pytest.raises(sqlite3.ProgrammingError, match="closed cursor"):
        left.fetchone()
