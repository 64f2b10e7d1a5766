"""`?1` in statements, for Pythons that take it for a name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from redrive import App
from redrive.store.sqlite import connection
from redrive.store.sqlite.numbered import Numbered, unnumbered


@pytest.mark.parametrize(
    ("sql", "plain", "order"),
    [
        ("SELECT ?, ?", "SELECT ?, ?", ()),
        ("SELECT :a", "SELECT :a", ()),
        ("SELECT ?2, ?1, ?2", "SELECT ?, ?, ?", (1, 0, 1)),
        ("VALUES (?1, ?, ?), (?1, ?, ?)", "VALUES (?, ?, ?), (?, ?, ?)", (0, 1, 2, 0, 3, 4)),
        ("SELECT '?1''?2', \"?3\", ?1 -- ?4", "SELECT '?1''?2', \"?3\", ? -- ?4", (0,)),
        ("SELECT ?10 /* ?2\n?3 */", "SELECT ? /* ?2\n?3 */", (9,)),
    ],
)
def test_each_value_is_given_as_often_as_it_is_asked_for(sql: str, plain: str, order: tuple[int, ...]) -> None:
    assert unnumbered(sql) == (plain, order)


def test_sqlite_means_the_same_by_the_numbers() -> None:
    with closing(sqlite3.connect(":memory:")) as usual, closing(sqlite3.connect(":memory:", factory=Numbered)) as ours:
        for sql in ("SELECT ?2, ?1, ?2, ?", "SELECT ?, ?3, ?1", "SELECT ?1 || '?2', ?, ?"):
            assert ours.execute(sql, ("a", "b", "c")).fetchall() == usual.execute(sql, ("a", "b", "c")).fetchall()
        ours.execute("CREATE TABLE t (a, b)")
        ours.executemany("INSERT INTO t VALUES (?1, ?1)", [(1,), (2,)])
        ours.executemany("INSERT INTO t VALUES (?2, ?1)", [(3, 4)])
        ours.execute("INSERT INTO t VALUES (:a, :a)", {"a": 5})
        assert ours.execute("SELECT * FROM t").fetchall() == [(1, 1), (2, 2), (4, 3), (5, 5)]


def test_an_app_works_on_such_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IS_NEEDED", True)
    app = App(tmp_path / "shop.db")
    orders, receipts = app.log("orders"), app.log("receipts")

    @app.on(orders, start="first")
    def charge(event, ctx):
        if event.data == 7:
            raise LookupError
        ctx.emit(receipts, "paid", event.data)

    orders.append_many([{"type": "order.placed", "data": n, "key": f"{n % 3}"} for n in range(40)])
    app.run(until_idle=True)
    paid = [event.data for event in receipts.read()]
    assert len(paid) == len(set(paid)) == 29
    assert [verdict.sound for verdict in app.operate().verify()] == [True]
    app.close()
