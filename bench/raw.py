"""The yardstick: the loop one would write by hand, with the standard library and nothing that handles failures."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from bench.job import TOTALS, UPSERT, check, orders, payload, totals_of
from bench.lab import Figures, Stopwatch, copied

PER_TRANSACTION = 100


def build(path: Path, n: int) -> None:
    """A log of n events and an empty table of totals."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(
        "CREATE TABLE events (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, payload TEXT NOT NULL)"
    )
    connection.execute(TOTALS)
    connection.execute("CREATE TABLE progress (position INTEGER NOT NULL)")
    connection.execute("INSERT INTO progress VALUES (0)")
    connection.execute("BEGIN")
    rows = ((order.id, payload(order)) for order in orders(n))
    connection.executemany("INSERT INTO events (id, payload) VALUES (?, ?)", rows)
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def catch_up(folder: Path, template: str, n: int) -> Figures:
    """Read a hundred, apply a hundred, remember the position, commit."""
    path = copied(template, folder)
    with Stopwatch() as watch:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA synchronous = NORMAL")
        execute = connection.execute
        (position,) = execute("SELECT position FROM progress").fetchone()
        select = "SELECT position, id, payload FROM events WHERE position > ? ORDER BY position LIMIT ?"
        while rows := execute(select, (position, PER_TRANSACTION)).fetchall():
            execute("BEGIN IMMEDIATE")
            for _, _, text in rows:
                data = json.loads(text)
                execute(UPSERT, (data["customer"], data["amount"]))
            position = rows[-1][0]
            execute("UPDATE progress SET position = ?", (position,))
            execute("COMMIT")
    check("raw", execute("SELECT * FROM totals"), totals_of(orders(n)))
    connection.close()
    return watch.figures(n)
