"""A stream of orders into a table: redrive beside the loop one would write by hand, and what a log of markers costs.

The server is a Valkey that keeps everything in memory. Nobody waits for the disk, but for what redrive must have
synced before it acknowledges.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from bench.job import KEYS, TOTALS, UPSERT, check, orders, payload, totals_of
from bench.lab import Figures, Stopwatch, copied
from bench.latency import measure, paced, shares
from bench.redrives import timed
from redrive import App
from redrive.event import NewEvent
from redrive.redis import Stream
from redrive.redis.group import GroupReader  # imported when a stream is opened, else: no part of what is measured
from redrive.store import landed

STREAM = "orders"
_LOADED = GroupReader
PER_READ = 100
CHUNK = 500  # entries written in one round trip
LONG_AGO_MS = 1_600_000_000_000
PER_LANDING = 50_000  # of those from before


def fill(url: str, n: int) -> str:
    """A stream of n orders; nobody who reads it changes it."""
    with redis.Redis.from_url(url) as server:
        pipe = server.pipeline(transaction=False)
        for number, order in enumerate(orders(n), 1):
            pipe.xadd(STREAM, {"type": "order.placed", "key": order.key, "data": payload(order)})
            if number % CHUNK == 0 or number == n:
                pipe.execute()
    return url


@contextmanager
def own_group(server: redis.Redis) -> Iterator[str]:
    """A group of this run's own, from the first entry on."""
    group = f"bench-{uuid.uuid4()}"
    server.xgroup_create(STREAM, group, id="0")
    try:
        yield group
    finally:
        server.xgroup_destroy(STREAM, group)


def table(path: Path) -> sqlite3.Connection:
    """An empty table of totals that does not wait for the disk."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(TOTALS)
    return connection


def raw(folder: Path, server: str, n: int) -> Figures:
    """Read a hundred, apply a hundred in a transaction, acknowledge a hundred. A crash in between doubles them."""
    with redis.Redis.from_url(server) as client, own_group(client) as group, Stopwatch() as watch:
        connection = table(folder / "raw.db")
        execute, left = connection.execute, n
        while left:
            found: Any = client.xreadgroup(group, "one", {STREAM: ">"}, count=PER_READ)
            entries = found[STREAM.encode()][0] if isinstance(found, dict) else found[0][1]
            execute("BEGIN IMMEDIATE")
            for _, fields in entries:
                data = json.loads(fields[b"data"])
                execute(UPSERT, (data["customer"], data["amount"]))
            execute("COMMIT")
            client.xack(STREAM, group, *(id for id, _ in entries))
            left -= len(entries)
        watch.stop()
        check("raw on Redis", execute("SELECT * FROM totals"), totals_of(orders(n)))
        connection.close()
    return watch.figures(n)


def projection(folder: Path, server: str, n: int, ordered: bool, template: str = "") -> Figures:
    """One upsert per entry, exactly once: in key order, or through a group."""
    path = copied(template, folder) if template else str(folder / "run.db")
    app = App(path, name=f"bench-{uuid.uuid4()}")
    _declare(app, server, ordered=ordered)
    app.log(STREAM).append("store.made")  # the file is there before the clock runs, as it is for the others
    figures = timed(app, n)
    with app.reader() as tx:
        check("from Redis", tx.execute("SELECT * FROM totals"), totals_of(orders(n)))
    app.close()
    return figures


def _declare(app: App, server: str, *, ordered: bool, name: str = STREAM, sent: deque[float] | None = None) -> None:
    stream = Stream(server, name, partitions=1 if ordered else None)

    @app.projection(
        stream, "order.placed", order="key" if ordered else "none",
        tables={"totals": TOTALS.partition("(")[2].rpartition(")")[0]},
    )  # fmt: skip
    def totals(event: Any, tx: Any) -> None:
        data = event.data
        tx.execute(UPSERT, (data["customer"], data["amount"]))
        if sent is not None:
            sent.append(data["sent"])


def build_grown(path: Path, server: str, rows: int) -> None:
    """A log that holds so many entries from before, all of them seen by the function that does not want them."""
    app, elsewhere = App(str(path), name=f"bench-{uuid.uuid4()}"), f"{server.rpartition('/')[0]}/1"
    _declare(app, elsewhere, ordered=False)  # where the stream is empty: nothing lands, and nothing counts as read
    app.run(until_idle=True)
    store: Any = app.runtime.store
    for at in range(0, rows, PER_LANDING):
        events = []
        for number in range(at, min(at + PER_LANDING, rows)):
            id, key = f"{STREAM}:{LONG_AGO_MS + number}-0", f"customer-{number % KEYS:04d}"
            events.append(NewEvent(id, "long.ago", key, 1, 0, None, b"null", None, False))
        with store.transaction(durable=False) as tx:
            landed.append_new(tx.logs, tx.sql, f"redis:{STREAM}", events, is_first=True)
    app.run(until_idle=True)
    app.close()
    with redis.Redis.from_url(elsewhere) as client:
        client.delete(STREAM)


def latency(folder: Path, server: str, per_second: int, seconds: float, idle_seconds: float) -> Figures:
    """From the call of XADD in one process to the commit of its effect in another."""
    n, name = int(per_second * seconds), f"steady-{uuid.uuid4()}"
    app = App(str(folder / "run.db"), name="bench")
    sent: deque[float] = deque()
    waits: list[float] = []
    _declare(app, server, ordered=True, name=name, sent=sent)
    producer = ["bench.redis", server, name, str(per_second), str(n)]
    figures = asyncio.run(measure(app, producer, sent, waits, n, idle_seconds))
    with app.reader() as tx:
        check("latency on Redis", tx.execute("SELECT * FROM totals"), totals_of(orders(n)))
    app.close()
    with redis.Redis.from_url(server) as client:
        client.delete(name)
    return figures | shares(waits)


def produce(server: str, name: str, per_second: str, n: str) -> None:
    """Add at a steady pace."""
    with redis.Redis.from_url(server) as client:
        paced(per_second, n, lambda order, sent: client.xadd(
            name, {"type": "order.placed", "key": order.key, "data": json.dumps({**order.data, "sent": sent})}
        ))  # fmt: skip


if __name__ == "__main__":
    produce(*sys.argv[1:])
