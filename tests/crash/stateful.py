"""A worker whose handler keeps its state in RocksDB; the tests kill it."""

from __future__ import annotations

from typing import Any

from redrive import App, retry
from redrive.rocksdb import RocksDB
from redrive.settings import Settings

KEYS = 4
QUICK = Settings(lease=1.0, halt_wait=0.02, halt_wait_max=0.05, crash_charges_max=100_000)


def build(path: str, folder: str) -> App:
    """With each event is written down what its state had counted, and now and then one fails at first."""
    app = App(path, name="shop", settings=QUICK)

    @app.on(
        app.log("orders"), start="first", concurrency=2, state=RocksDB(folder),
        retry=retry(attempts=50, wait="1ms", wait_max="1ms"),
    )  # fmt: skip
    def count(event: Any, ctx: Any) -> None:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event.data % 7 == 3 and ctx.attempt == 1:
            raise ValueError("at the second attempt")
        ctx.execute("INSERT INTO counted VALUES (:key, :event, :n)", {
            "key": event.key, "event": event.data, "n": ctx.state["n"],
        })  # fmt: skip
        if ctx.state["n"] % 10 == 0:  # the next one finds nothing
            ctx.state = {"n": 1_000 + ctx.state["n"]} if event.data % 2 else {}

    return app


def work(path: str, folder: str) -> None:
    """A worker process."""
    app = build(path, folder)
    app.run()
    app.close()
