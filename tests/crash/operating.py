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


def hold(path: str, flakes: str) -> None:
    """Hold a key everywhere and some keys of each subscription, change one of the holds, and set letters' due times."""
    app = build(path, flakes)
    ops = app.operate("crash test")
    ops.holds.hold(None, "crash test", key="k3")
    for status in ops.status():
        ops.holds.hold(status.subscription, "crash test", prefix="k1")
    ops.holds.hold(None, "crash test", key="k3", until="1d")
    for letter in ops.letters.list("retrying", limit=500):
        ops.letters.postpone(letter.id, "50ms", "crash test")
        ops.letters.now(letter.id, "crash test")
    app.close()


def release(path: str, flakes: str) -> None:
    """Release whatever is held."""
    app = build(path, flakes)
    desk = app.operate("crash test").holds
    for one in desk.list():
        named = {"prefix": one.key[:-1]} if one.is_prefix else {"key": one.key}
        desk.release(one.subscription, "crash test", **named)
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
