"""SQLite may end a transaction by itself (full disk, interrupt); a function that does not care must not matter."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from redrive import App, StoreError, no_retry
from redrive.testing import Harness

ENTRIES = "CREATE TABLE entries (n INTEGER)"
MANY = """INSERT INTO entries WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < 10000)
SELECT n FROM up"""


def interrupt(connection: Any) -> None:
    """What a full disk does: the statement fails, and with it the whole transaction is gone."""
    connection.set_progress_handler(lambda: 1, 100)
    try:
        with pytest.raises(sqlite3.OperationalError):
            connection.execute(MANY)
    finally:
        connection.set_progress_handler(None, 0)
    assert not connection.in_transaction


@pytest.mark.parametrize("is_careful", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_projection_that_catches_the_error_and_goes_on_writes_nothing_outside_of_a_transaction(
    is_careful: bool, goes_on: bool
) -> None:
    app = App("/nonexistent/shop.db")
    calls = []

    @app.projection(app.log("orders"), tables={"applied": "id TEXT"})
    def stubborn(event: Any, tx: Any) -> None:
        calls.append(event.id)
        tx.execute("INSERT INTO applied VALUES (:id)", {"id": event.id})
        if len(calls) == 2:
            interrupt(tx.connection)
            if goes_on:
                tx.execute("INSERT INTO applied VALUES (:id)", {"id": event.id})

    with Harness(app) as harness:
        with app.transaction() as tx:
            tx.execute(ENTRIES)
        if is_careful:
            app.runtime.store._be_careful()  # type: ignore[attr-defined]
        for name in "abc":
            harness.append("orders", "order.placed", id=name)
        harness.advance("1m")
        assert harness.query("SELECT id FROM applied") == [("a",), ("b",), ("c",)]
        assert harness.letters() == []  # the disk's fault, not the event's
        assert [one.sound for one in app.operate("ada").verify()] == [True]


def test_a_business_transaction_that_sqlite_ended_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    with app.transaction() as tx:
        tx.execute(ENTRIES)
    with pytest.raises(StoreError, match="ended the transaction"), app.transaction() as tx:  # noqa: PT012
        interrupt(tx.connection)
        app.log("orders").append("order.placed", tx=tx)
        tx.execute("INSERT INTO entries VALUES (1)")
    with app.reader() as reader:
        assert reader.execute("SELECT count(*) FROM entries").fetchone() == (0,)
    assert list(app.log("orders").read()) == []
    app.close()


@pytest.mark.parametrize(
    "pragma",
    [
        "query_only = 1", "Locking_Mode = EXCLUSIVE", "journal_mode = DELETE", "wal_autocheckpoint(1000)",
        "max_page_count = 1", "count_changes = 1",
    ],
)  # fmt: skip
def test_nobody_sets_what_the_connection_of_all_is_for(tmp_path: Path, pragma: str) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders, done = app.log("orders"), []

    @app.projection(orders, retry=no_retry)
    def careless(event: Any, tx: Any) -> None:
        tx.execute(f"PRAGMA {event.data}" if event.data else "SELECT 1")
        done.append(event.position)

    orders.append("order.placed", pragma, key="a")
    orders.append("order.placed", None, key="b")
    app.run(until_idle=True)
    assert done[-1:] == [2]
    assert [(one.position, one.error_message) for one in app.operate().letters.list()] == [(1, "not authorized")]
    for block in (app.transaction, app.reader):
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"), block() as tx:
            tx.execute(f"PRAGMA {pragma}")
        with block() as tx:
            assert tx.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)  # to ask is free
    app.close()


@pytest.mark.parametrize("fails", [0, 1], ids=["at first", "after a failure"])
def test_event_in_the_way_of_its_own_statement_is_a_letter(tmp_path: Path, fails: int) -> None:
    """SQLITE_LOCKED: no other process can be its cause, so that waiting for the store would be for ever."""
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")

    @app.projection(orders, tables={"seen": "n INTEGER"}, retry=no_retry)
    def see(event: Any, tx: Any) -> None:
        if event.data == "fails":
            raise ValueError(event.data)
        if event.data == "drops":
            tx.execute("CREATE TABLE scratch (n INTEGER)")
            tx.execute("INSERT INTO scratch VALUES (1), (2)")
            for _ in tx.execute("SELECT n FROM scratch"):
                tx.execute("DROP TABLE scratch")
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.position})

    for name in ["fails"] * fails + ["drops", "good"]:
        orders.append("order.placed", name, key=name)
    app.run(until_idle=True)
    assert [one.error_type for one in app.operate().letters.list()][fails:] == ["sqlite3.OperationalError"]
    with app.reader() as reader:
        assert reader.execute("SELECT n FROM seen").fetchall() == [(fails + 2,)]
    assert all(verdict.sound for verdict in app.operate().verify())
    app.close()


def test_event_that_finds_its_search_index_damaged_is_a_letter(tmp_path: Path) -> None:
    """FTS5 says "database disk image is malformed" of an index that its table does not match; the file is well."""
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    with app.transaction() as tx:
        tx.execute("CREATE TABLE texts (words TEXT)")
        tx.execute("CREATE VIRTUAL TABLE found USING fts5(words, content='texts')")
        tx.execute("INSERT INTO found (rowid, words) VALUES (1, 'hello')")

    @app.projection(orders, tables={"seen": "n INTEGER"}, retry=no_retry)
    def see(event: Any, tx: Any) -> None:
        if event.data == "checks":
            tx.execute("INSERT INTO found (found, rank) VALUES ('integrity-check', 1)")
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.position})

    for name in ("checks", "good"):
        orders.append("order.placed", name, key=name)
    app.run(until_idle=True)
    assert [one.error_message for one in app.operate().letters.list()] == ["database disk image is malformed"]
    with app.reader() as reader:
        assert reader.execute("SELECT n FROM seen").fetchall() == [(2,)]
    app.close()


@pytest.mark.parametrize("fails", [0, 1], ids=["at first", "after a failure"])
@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "in lists"])
@pytest.mark.parametrize("then", ["raises", "keeps the cursor"])
def test_event_that_leaves_changed_rows_unread_stops_nothing(
    tmp_path: Path, fails: int, batch: bool, then: str
) -> None:
    """No savepoint can be made while an UPDATE … RETURNING is in progress, and the traceback keeps its cursor alive."""
    app = App(str(tmp_path / "shop.db"))
    orders, kept = app.log("orders"), []

    def apply(event: Any, tx: Any) -> None:
        if event.data == "fails":
            raise ValueError(event.data)
        if event.data == "leaves":
            cursor = tx.execute("INSERT INTO seen VALUES (-1), (-2) RETURNING n")
            cursor.fetchone()
            if then == "raises":
                raise ValueError("after one row")
            kept.append(cursor)
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.position})

    def see(event: Any, tx: Any) -> None:
        for one in event if batch else [event]:
            apply(one, tx)

    app.projection(orders, name="see", tables={"seen": "n INTEGER"}, retry=no_retry, batch=batch)(see)
    for name in ["fails"] * fails + ["leaves", "good"]:
        orders.append("order.placed", name, key=name)
    app.run(until_idle=True)
    letters = [one.error_message for one in app.operate().letters.list()][fails:]
    expected = [fails + 2] if then == "raises" else [-2, -1, fails + 1, fails + 2]
    assert letters == (["after one row"] if then == "raises" else [])
    with app.reader() as reader:
        assert reader.execute("SELECT n FROM seen ORDER BY n").fetchall() == [(n,) for n in expected]
    assert all(verdict.sound for verdict in app.operate().verify())
    app.close()


def test_transaction_is_committed_though_changed_rows_are_unread(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    with app.transaction() as tx:
        tx.execute("CREATE TABLE seen (n INTEGER)")
        cursor = tx.execute("INSERT INTO seen VALUES (1), (2) RETURNING n")
        assert cursor.fetchone() == (1,)
        app.log("orders").append("order.placed", tx=tx)
    with app.reader() as reader:
        assert reader.execute("SELECT n FROM seen").fetchall() == [(1,), (2,)]
    assert len(list(app.log("orders").read())) == 1
    app.close()


def test_a_statement_that_merely_fails_ends_no_transaction(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    with app.transaction() as tx:
        tx.execute("CREATE TABLE picky (n INTEGER NOT NULL)")
        with pytest.raises(sqlite3.IntegrityError):
            tx.execute("INSERT INTO picky VALUES (NULL)")
        tx.execute("INSERT INTO picky VALUES (1)")
    with app.reader() as reader:
        assert reader.execute("SELECT count(*) FROM picky").fetchone() == (1,)
    app.close()
