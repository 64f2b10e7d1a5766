"""Appending, or opening the store, while this very process holds the write lock through a connection of its own.

Waiting would never help: each program runs in a process of its own with a `busy_timeout` of an hour.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from redrive import App, StoreError, sqlite3
from redrive.errors import StoreBusy
from redrive.settings import Settings

BEGIN = """
import sqlite3, sys, threading
from redrive import App
from redrive.errors import StoreBusy
from redrive.settings import Settings
app = App("shop.db", settings=Settings(busy_timeout=3600.0))
orders = app.log("orders")

def refused(step):
    try:
        step()
    except StoreBusy as error:
        print(error)
    else:
        sys.exit("it was not refused")

def idle_thread():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
ADVICE = (
    "this process itself holds the write lock: another of its connections has an open transaction. Commit it before "
    "you append, or write inside `with app.transaction() as tx:` and append with tx=tx"
)


def said(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


OPEN = """
orders.append("order.placed", 1)
conn = sqlite3.connect("shop.db")
conn.execute("CREATE TABLE IF NOT EXISTS mine (n)")
conn.execute("INSERT INTO mine VALUES (1)")
"""


def test_append_is_refused_at_once_inside_ones_own_transaction(tmp_path: Path) -> None:
    program = f"""{OPEN}
refused(lambda: orders.append("order.placed", 2))
refused(lambda: orders.append_many([{{"type": "order.placed"}}]))
conn.commit()
orders.append("order.placed", 3)
print([event.data for event in orders.read()])
"""
    lines = said(program, tmp_path).splitlines()
    assert lines[0].endswith(ADVICE), lines
    assert lines[1:] == [lines[0], "[1, 3]"]


@pytest.mark.parametrize(
    "place",
    {
        "a local variable": """
def handle(conn):
    refused(lambda: orders.append("order.placed", 2))
handle(conn)
""",
        "an attribute": """
class Repository:
    def __init__(self, conn):
        self.conn = conn
    def save(self):
        refused(lambda: orders.append("order.placed", 2))
repository = Repository(conn)
del conn
repository.save()
""",
    }.items(),
    ids=lambda item: item[0],
)
def test_append_is_refused_at_once_although_other_threads_run(tmp_path: Path, place: tuple[str, str]) -> None:
    assert ADVICE in said(f"idle_thread()\n{OPEN}\n{place[1]}", tmp_path)


@pytest.mark.parametrize("kind", ["Session", "Connection"])
def test_append_is_refused_at_once_inside_a_transaction_of_sqlalchemy(tmp_path: Path, kind: str) -> None:
    program = f"""
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
idle_thread()
orders.append("order.placed", 1)
engine = create_engine("sqlite:///shop.db")

def handle(db):
    db.execute(text("CREATE TABLE mine (n)"))
    db.execute(text("INSERT INTO mine VALUES (1)"))
    refused(lambda: orders.append("order.placed", 2))
    db.commit()
    orders.append("order.placed", 3)

with {"Session(engine)" if kind == "Session" else "engine.connect()"} as db:
    handle(db)
"""
    assert ADVICE in said(program, tmp_path)


def test_append_is_refused_at_once_inside_the_transaction_of_another_app(tmp_path: Path) -> None:
    program = """
idle_thread()
orders.append("order.placed", 1)
other = App("shop.db")
with other.transaction():
    refused(lambda: orders.append("order.placed", 2))
"""
    assert ADVICE in said(program, tmp_path)


def test_a_store_is_not_opened_inside_ones_own_transaction(tmp_path: Path) -> None:
    """A file that is not in WAL mode yet; then one that is, and has no tables of ours."""
    for mode in ("delete", "wal"):
        program = f"""
conn = sqlite3.connect("{mode}.db")
conn.execute("PRAGMA journal_mode = {mode}")
conn.execute("CREATE TABLE IF NOT EXISTS mine (n)")
conn.execute("INSERT INTO mine VALUES (1)")
fresh = App("{mode}.db", settings=Settings(busy_timeout=3600.0))
refused(lambda: fresh.log("orders").append("order.placed", 2))
conn.commit()
fresh.log("orders").append("order.placed", 3)
"""
        words = said(program, tmp_path)
        assert "this process itself holds" in words and "Commit it before" in words, words


def test_append_waits_for_a_transaction_of_another_thread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """That one may commit any moment. After a second a warning says what may be wrong."""
    app = App(str(tmp_path / "shop.db"))
    app.log("orders").append("order.placed", 1)
    begun, appended = threading.Event(), threading.Event()

    def write() -> None:
        with sqlite3.connect(tmp_path / "shop.db") as conn:
            conn.execute("CREATE TABLE mine (n)")
            conn.execute("INSERT INTO mine VALUES (1)")
            begun.set()
            while not caplog.records:
                appended.wait(0.02)
        conn.close()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    assert begun.wait(30)
    app.log("orders").append("order.placed", 2)
    thread.join(30)
    app.close()
    [record] = caplog.records
    assert (record.levelname, "this process itself holds the write lock" in record.getMessage()) == ("WARNING", True)


def test_a_wait_that_was_in_vain_names_the_connection_of_another_thread(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"), settings=Settings(busy_timeout=0.05))
    app.log("orders").append("order.placed", 1)
    begun, over = threading.Event(), threading.Event()

    def write() -> None:
        with sqlite3.connect(tmp_path / "shop.db") as conn:
            conn.execute("CREATE TABLE mine (n)")
            conn.execute("INSERT INTO mine VALUES (1)")
            begun.set()
            over.wait(30)
        conn.close()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    assert begun.wait(30)
    with pytest.raises(StoreBusy, match="this process itself holds the write lock"):
        app.log("orders").append("order.placed", 2)
    over.set()
    thread.join(30)
    app.close()


def test_a_lock_of_another_process_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"), settings=Settings(busy_timeout=0.05))
    app.log("orders").append("order.placed", 1)
    program = (
        "import sqlite3, sys; c = sqlite3.connect('shop.db', isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=rf"another process holds the write lock .* it is process {other.pid} "):
            app.log("orders").append("order.placed", 2)
        other.communicate("")
    app.log("orders").append("order.placed", 3)
    app.close()
