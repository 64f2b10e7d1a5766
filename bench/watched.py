"""What watching costs: the projection job with metrics, pages and a scrape, beside the same without."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

from bench.job import UPSERT, check, orders, totals_of
from bench.lab import Figures, Stopwatch, copied, load_runner
from redrive import App
from redrive.settings import Settings
from redrive.watch import serving

PAIRS = 12  # runs of each kind, taking turns: one differs from the next by a tenth, and two per cent are to be seen


def watched(folder: Path, template: str, n: int) -> Figures:
    """Rates per second of processor time, of all threads; each run with metrics is scraped once, over HTTP."""
    load_runner()
    _run(folder, template, n, watching=True)  # imports and caches, for both
    spent: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * PAIRS):
        watching = turn % 4 in (0, 3)
        spent[watching].append(_run(folder, template, n, watching=watching))
    on, off = (n / median(spent[kind]) for kind in (True, False))
    total = sum(spent[True] + spent[False])
    return {"n": n, "rate": on, "cpu_rate": on, "off_rate": off, "share": on / off, "seconds": total}


def _run(folder: Path, template: str, n: int, *, watching: bool) -> float:
    app = App(copied(template, folder), settings=Settings(http="127.0.0.1:0"))

    @app.projection(app.log("orders"), tables=["totals"])
    def totals(event: Any, tx: Any) -> None:
        data = event.data
        tx.execute(UPSERT, (data["customer"], data["amount"]))

    with serving(app) if watching else nullcontext() as where, Stopwatch() as watch:
        asyncio.run(app.serve(until_idle=True))
        if where is not None:
            with urlopen(f"http://{where[0]}:{where[1]}/metrics") as page:
                text = page.read().decode()
            assert f'redrive_applied_total{{subscription="totals"}} {n:.1f}' in text or n >= 1e6
    with app.reader() as tx:
        check("watched", tx.execute("SELECT * FROM totals"), totals_of(orders(n)))
    app.close()
    return watch.cpu
