"""redrive doing the job: projections and handlers, clean and with poison."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bench.job import TOTALS, UPSERT, check, is_poison, orders, totals_of
from bench.lab import Figures, Stopwatch, copied
from redrive import App, retry

CHUNK = 10_000


def build(path: Path, n: int) -> None:
    """A log of n events."""
    app = App(str(path))
    log = app.log("orders")
    made = orders(n)
    for at in range(0, n, CHUNK):
        log.append_many(
            {"type": "order.placed", "data": order.data, "key": order.key, "id": order.id}
            for order in made[at : at + CHUNK]
        )
    with app.transaction() as tx:
        tx.execute(TOTALS)
    app.close()


def timed(app: App, n: int) -> Figures:
    """Run until nothing is left: opening the file, taking the lease and handing it back are part of it."""
    with Stopwatch() as watch:
        asyncio.run(app.serve(until_idle=True))
    return watch.figures(n)


def projection(folder: Path, template: str, n: int) -> Figures:
    """One upsert per event, exactly once, in key order."""
    app = App(copied(template, folder))

    @app.projection(app.log("orders"), tables=["totals"])
    def totals(event: Any, tx: Any) -> None:
        data = event.data
        tx.execute(UPSERT, (data["customer"], data["amount"]))

    figures = timed(app, n)
    with app.reader() as tx:
        check("projection", tx.execute("SELECT * FROM totals"), totals_of(orders(n)))
    app.close()
    return figures
