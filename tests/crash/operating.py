"""What operators do, as processes that can be killed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from misbehaving import wait_for_file
from worker_app import build


def replay(path: str, flakes: str) -> None:
    """Send everything that a bug buried round again, a letter at a time."""
    app = build(path, flakes)
    desk = app.operate("crash test").letters
    for letter in desk.list("dead", limit=500):
        if letter.reason == "attempts_exhausted":
            desk.replay(letter.id, "the bug is fixed")
    app.close()


def reset(path: str, flakes: str, name: str) -> None:
    """Take a projection back to its start."""
    app = build(path, flakes)
    app.operate("crash test").reset(name, "crash test")
    app.close()


def hold_the_write_lock(path: str, held: str, gate: str) -> None:
    """A stranger's transaction that takes its time: until the gate's file exists."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")
    Path(held).touch()
    wait_for_file(gate)
    connection.execute("COMMIT")
    connection.close()
