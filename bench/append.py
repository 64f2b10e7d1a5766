"""Durable appends: one per transaction by hand, and a hundred producers that share commits."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from bench.job import check, orders, payload, totals_of
from bench.lab import Figures, Stopwatch
from redrive import App, Log

PRODUCERS = 100


def one_by_one(folder: Path, n: int) -> Figures:
    """What a program without group commit does: insert, commit, wait for the disk."""
    made = [(order.id, payload(order)) for order in orders(n)]
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE events (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, payload TEXT NOT NULL)"
    )
    with Stopwatch() as watch:
        for row in made:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO events (id, payload) VALUES (?, ?)", row)
            connection.execute("COMMIT")
    connection.close()
    return watch.figures(n)


def together(folder: Path, n: int) -> Figures:
    """A hundred coroutines, each waiting until its event is durable before it makes the next."""
    made = orders(n)
    app, log = _opened(folder)

    async def produce(number: int) -> None:
        for order in made[number::PRODUCERS]:
            await log.append_async("order.placed", order.data, key=order.key)

    async def main() -> Stopwatch:
        with Stopwatch() as watch:
            await asyncio.gather(*(produce(number) for number in range(PRODUCERS)))
        return watch

    watch = asyncio.run(main())
    _check(app, n)
    return watch.figures(n)


def alone(folder: Path, n: int) -> Figures:
    """redrive's own append, one after the other."""
    made = orders(n)
    app, log = _opened(folder)
    with Stopwatch() as watch:
        for order in made:
            log.append("order.placed", order.data, key=order.key)
    _check(app, n)
    return watch.figures(n)


def _opened(folder: Path) -> tuple[App, Log]:
    """A log whose tables are made, as those of `one_by_one` are, before the watch runs."""
    app = App(str(folder / "log.db"))
    log = app.log("orders")
    assert not list(log.read())
    return app, log


def _check(app: App, n: int) -> None:
    sums: dict[str, tuple[int, int]] = {}
    for event in app.log("orders").read():
        count, amount = sums.get(event.data["customer"], (0, 0))
        sums[event.data["customer"]] = (count + 1, amount + event.data["amount"])
    check("append", [(key, *total) for key, total in sums.items()], totals_of(orders(n)))
    app.close()
