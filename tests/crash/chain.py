"""A worker between two brokers: a stream is read, a table and a state are kept, and what follows is sent on."""

from __future__ import annotations

from typing import Any

from redrive import App
from redrive.redis import Stream
from redrive.settings import Settings

KEYS = 5
QUICK = Settings(lease=1.0, halt_wait=0.02, halt_wait_max=0.05, crash_charges_max=100_000)  # the tests kill, not events


def build(path: str, url: str) -> App:
    """Each key's numbers are added up, in a table and in its state; every sum is told."""
    app = App(path, name="shop", settings=QUICK)
    orders, sums = Stream(url, "orders", partitions=1), Stream(url, "sums", partitions=2)
    app.outbox(sums, keep="0s")

    @app.on(orders)
    def add(event: Any, ctx: Any) -> None:
        ctx.state["sum"] = ctx.state.get("sum", 0) + event.data
        ctx.execute("INSERT INTO given (key, n) VALUES (:key, :n)", {"key": event.key, "n": event.data})
        ctx.emit(sums, "sum.changed", {"n": event.data, "sum": ctx.state["sum"]})

    return app


def prepare(path: str, url: str) -> None:
    """The user's own table."""
    app = build(path, url)
    with app.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS given (key TEXT NOT NULL, n INTEGER NOT NULL)")
    app.close()


def work(path: str, url: str, until_idle: bool = False) -> None:
    """A worker process."""
    app = build(path, url)
    app.run(until_idle=until_idle)
    app.close()
