"""What a program leaves on a connection that it was lent: half-read cursors, factories. Nobody else meets them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Event, Tx, UsageError, no_retry
from redrive.settings import Settings

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT i FROM n, redrive_meta"


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[App]:
    app = App(tmp_path / "shop.db", settings=Settings(busy_timeout=0.5))
    yield app
    app.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[App]:
    """As another process would."""
    app = App(tmp_path / "shop.db", settings=Settings(busy_timeout=0.5))
    yield app
    app.close()


def half_read(tx: Tx) -> sqlite3.Cursor:
    cursor: sqlite3.Cursor = tx.execute(NUMBERS)
    assert cursor.fetchone() == (1,)
    return cursor


def test_a_cursor_that_outlives_its_reader_keeps_nobody_in_the_past(mine: App) -> None:
    orders = mine.log("orders")
    orders.append("order.placed")
    with mine.reader() as tx:
        left = half_read(tx)
    orders.append("order.placed")
    assert len(list(orders.read())) == 2
    with pytest.raises(sqlite3.ProgrammingError, match="closed cursor"):
        left.fetchone()


def test_a_cursor_that_outlives_its_transaction_locks_nobody_out(mine: App, other: App) -> None:
    orders = mine.log("orders")
    with mine.transaction() as tx:
        left = half_read(tx)
        orders.append("order.placed", tx=tx)
    other.log("orders").append("order.placed")
    assert orders.append("order.placed").position == 3
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        left.fetchone()


def test_a_cursor_that_a_projection_keeps_does_not_halt_it(mine: App, other: App) -> None:
    orders, left = mine.log("orders"), []

    @mine.projection(orders, tables={"counted": "position INTEGER PRIMARY KEY"})
    def counted(event: Event[Any], tx: Tx) -> None:
        tx.execute("INSERT INTO counted VALUES (?)", (event.position,))
        left.append(half_read(tx))

    orders.append("order.placed")
    mine.run(until_idle=True)
    other.log("orders").append("order.placed")
    mine.run(until_idle=True)
    assert len(left) >= 2
    with mine.reader() as tx:
        assert tx.execute("SELECT position FROM counted").fetchall() == [(1,), (2,)]


def test_rows_that_a_program_wants_as_dicts_are_its_own_affair(mine: App) -> None:
    def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    orders = mine.log("orders")
    with mine.transaction() as tx:
        tx.connection.row_factory, tx.connection.text_factory = as_dict, bytes
        assert tx.execute("SELECT 'a' AS a").fetchone() == {"a": b"a"}
        orders.append("order.placed", key="k", tx=tx)
    with mine.reader() as tx:
        tx.connection.row_factory, tx.connection.text_factory = as_dict, bytes
        assert tx.execute("SELECT 'a' AS a").fetchone() == {"a": b"a"}
    assert orders.append("order.placed", key="k").version == 2
    assert [event.key for event in orders.read()] == ["k", "k"]
    with mine.reader() as tx:
        assert tx.execute("SELECT 'a'").fetchone() == ("a",)


def test_a_function_that_closes_the_connection_has_failed_and_nobody_else_notices(mine: App) -> None:
    orders = mine.log("orders")

    @mine.projection(orders, tables={"counted": "position INTEGER PRIMARY KEY"}, retry=no_retry)
    def counted(event: Event[Any], tx: Tx) -> None:
        tx.execute("INSERT INTO counted VALUES (?)", (event.position,))
        if event.data == "last":
            tx.connection.close()

    orders.append("order.placed", key="a")
    orders.append("order.placed", "last", key="b")
    orders.append("order.placed", key="a")
    mine.run(until_idle=True)
    [letter] = mine.operate("ada").letters.list("dead")
    assert "leave it open" in letter.error_message
    with mine.reader() as tx:
        assert tx.execute("SELECT position FROM counted").fetchall() == [(1,), (3,)]
        with pytest.raises(UsageError, match="leave it open"):
            tx.connection.close()
