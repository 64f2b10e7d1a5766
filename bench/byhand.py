"""How soon a loop written by hand has applied what another process made: the yardstick of the rows in milliseconds.

It promises less: nothing is kept of what fails, a crash applies a message of the broker twice, and who reads a file
asks every millisecond also when nothing happens. What it takes is what the machine takes, in the same minute, to
wake whoever waits and to write.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.job import TOTALS, UPSERT, check, orders, totals_of
from bench.lab import ROOT, Figures, environment
from bench.latency import paced, shares

LOOK_SECONDS = 0.001
EVENTS = "CREATE TABLE events (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, payload TEXT NOT NULL)"
BLOCK_MS = 1_000


def latency(folder: Path, per_second: int, seconds: float) -> Figures:
    """From the call that inserts and commits, synced, to the commit of the effect in another process."""
    path, n, waits = folder / "raw.db", int(per_second * seconds), list[float]()
    connection = _opened(path, "NORMAL")
    connection.execute(EVENTS)
    connection.execute(TOTALS)
    connection.execute("CREATE TABLE progress (position INTEGER NOT NULL)")
    connection.execute("INSERT INTO progress VALUES (0)")
    execute, position = connection.execute, 0
    with _producer("bench.byhand", str(path), str(per_second), str(n)):
        while len(waits) < n:
            rows = execute("SELECT position, payload FROM events WHERE position > ? LIMIT 100", (position,)).fetchall()
            if not rows:
                time.sleep(LOOK_SECONDS)
                continue
            execute("BEGIN IMMEDIATE")
            data = [json.loads(text) for _, text in rows]
            for one in data:
                execute(UPSERT, (one["customer"], one["amount"]))
            position = rows[-1][0]
            execute("UPDATE progress SET position = ?", (position,))
            execute("COMMIT")
            now = time.time()
            waits += [now - one["sent"] for one in data]
    check("latency by hand", execute("SELECT * FROM totals"), totals_of(orders(n)))
    connection.close()
    return {"n": n, **shares(waits)}


def from_redis(folder: Path, server: str, per_second: int, seconds: float) -> Figures:
    """From the call of XADD to the commit of the effect in another process."""
    import redis

    n, name, waits = int(per_second * seconds), f"steady-{uuid.uuid4()}", list[float]()
    connection = _opened(folder / "raw.db", "NORMAL")
    execute = connection.execute
    execute(TOTALS)
    with redis.Redis.from_url(server) as client:
        client.xgroup_create(name, "bench", id="0", mkstream=True)
        with _producer("bench.redis", server, name, str(per_second), str(n)):
            while len(waits) < n:
                found: Any = client.xreadgroup("bench", "one", {name: ">"}, count=100, block=BLOCK_MS)
                streams = found.values() if isinstance(found, dict) else [entries for _, entries in found or ()]
                entries = [entry for some in streams for entry in (some[0] if isinstance(found, dict) else some)]
                if not entries:
                    continue
                execute("BEGIN IMMEDIATE")
                data = [json.loads(fields[b"data"]) for _, fields in entries]
                for one in data:
                    execute(UPSERT, (one["customer"], one["amount"]))
                execute("COMMIT")
                now = time.time()
                waits += [now - one["sent"] for one in data]
                client.xack(name, "bench", *(id for id, _ in entries))
        client.delete(name)
    check("latency by hand, from Redis", execute("SELECT * FROM totals"), totals_of(orders(n)))
    connection.close()
    return {"n": n, **shares(waits)}


def _opened(path: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


@contextmanager
def _producer(module: str, *arguments: str) -> Iterator[None]:
    """Another process that has begun, until it is over."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()  # it is ready
        process.stdin.write(b"go\n")
        process.stdin.flush()
        yield


def produce(path: str, per_second: str, n: str) -> None:
    """Insert at a steady pace."""
    connection = _opened(Path(path), "FULL")

    def insert(order: Any, sent: float) -> None:
        connection.execute("BEGIN IMMEDIATE")
        row = (order.id, json.dumps({**order.data, "sent": sent}))
        connection.execute("INSERT INTO events (id, payload) VALUES (?, ?)", row)
        connection.execute("COMMIT")

    paced(per_second, n, insert)


if __name__ == "__main__":
    produce(*sys.argv[1:])
