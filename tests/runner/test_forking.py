"""Forks: SQLite handles and threads must not cross one; both sides go on with their own."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import App

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_child(work: Callable[[], object]) -> int:
    """Run in a forked process; its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_child_appends_and_both_go_on(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    orders.append("fine", "parent 1")
    assert in_child(lambda: orders.append("fine", "child")) == 0
    orders.append("fine", "parent 2")
    assert [event.data for event in orders.read()] == ["parent 1", "child", "parent 2"]
    app.close()


def test_a_child_runs_subscriptions_of_its_own(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))

    @app.projection(app.log("orders"), tables={"seen": "pid INTEGER"})
    def project(event, tx):
        tx.execute("INSERT INTO seen VALUES (:pid)", {"pid": os.getpid()})

    app.log("orders").append("fine", 1)
    app.run(until_idle=True)
    app.log("orders").append("fine", 2)
    assert in_child(lambda: app.run(until_idle=True)) == 0
    app.log("orders").append("fine", 3)
    app.run(until_idle=True)
    with app.reader() as tx:
        pids = [pid for (pid,) in tx.execute("SELECT pid FROM seen ORDER BY rowid")]
    assert pids[0] == pids[2] == os.getpid()
    assert pids[1] != os.getpid()
    app.close()


def test_a_child_forked_in_the_middle_of_a_transaction_leaves_it_alone(tmp_path: Path) -> None:
    """SQLite forbids even closing an inherited connection: it would roll back what the parent is writing."""
    app = App(str(tmp_path / "shop.db"))
    with app.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER PRIMARY KEY)")

    def look() -> None:
        with app.reader() as reader:
            assert reader.execute("SELECT count(*) FROM mine").fetchone() == (0,)
        gc.collect()

    with app.transaction() as tx:
        tx.connection.executemany("INSERT INTO mine VALUES (?)", [(n,) for n in range(5_000)])
        assert in_child(look) == 0
        assert tx.execute("SELECT count(*) FROM mine WHERE n >= 0").fetchone() == (5_000,)
        app.log("orders").append("fine", tx=tx)
    with app.reader() as reader:
        assert reader.execute("SELECT count(*) FROM mine").fetchone() == (5_000,)
        assert reader.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    app.close()


def test_a_child_has_another_identity(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    mine = app.runtime.env.owner

    def differs() -> None:
        assert app.runtime.env.owner != mine

    assert in_child(differs) == 0
    assert app.runtime.env.owner == mine


def test_a_fork_waits_until_no_thread_of_ours_is_inside_sqlite(tmp_path: Path) -> None:
    """SQLite's own locks would be held for ever in the child, and its first connection would hang."""
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    orders.append("fine", 0)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            orders.append("fine", "parent")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)  # a child that hangs is killed, and fails the test
                code = 1
                try:
                    orders.append("fine", "child")
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        over.set()
        writer.join()
    assert [event.data for event in orders.read()].count("child") == 30
    app.close()
