"""What watching costs: the projection job with metrics, pages and a scrape, beside the same without.

The job is four times as long as elsewhere, which makes it a scrape in one or two seconds: few scrape as often.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import nullcontext
from pathlib import Path
from statistics import mean
from typing import Any

from bench.job import UPSERT, Totals, check, orders, totals_of
from bench.lab import Figures, Stopwatch, copied, load_runner
from redrive import App
from redrive.settings import Settings
from redrive.watch import serving

QUARTETS = 15  # with, without, without, with
QUIETEST = (
    6  # runs of each kind that are compared: neighbours only ever add to what a run costs, up to two thirds of it
)


def watched(folder: Path, template: str, n: int) -> Figures:
    """Rates per second of processor time, of all threads; each run with metrics is scraped once, over HTTP."""
    load_runner()
    expected = totals_of(orders(n))

    def run(*, watching: bool) -> float:
        return _run(folder, template, n, expected, watching=watching)

    run(watching=True)  # imports and caches, for both
    spent: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(QUARTETS):
        for watching in (True, False, False, True):
            spent[watching].append(run(watching=watching))
    on, off = (n / mean(sorted(spent[kind])[:QUIETEST]) for kind in (True, False))
    total = sum(spent[True] + spent[False])
    return {"n": n, "rate": on, "cpu_rate": on, "off_rate": off, "share": on / off, "seconds": total}


def _run(folder: Path, template: str, n: int, expected: Totals, *, watching: bool) -> float:
    app = App(copied(template, folder), settings=Settings(http="127.0.0.1:0"))

    @app.projection(app.log("orders"), tables=["totals"])
    def totals(event: Any, tx: Any) -> None:
        data = event.data
        tx.execute(UPSERT, (data["customer"], data["amount"]))

    with serving(app) if watching else nullcontext() as where, Stopwatch() as watch:
        asyncio.run(app.serve(until_idle=True))
        if where is not None:
            text = _scraped(where)
            assert f'redrive_applied_total{{subscription="totals"}} {n:.1f}' in text or n >= 1e6
    with app.reader() as tx:
        check("watched", tx.execute("SELECT * FROM totals"), expected)
    app.close()
    return watch.cpu


def _scraped(where: tuple[str, int]) -> str:
    """The page, by as little as can be: who scrapes is elsewhere, and what that costs is not counted."""
    with socket.create_connection(where) as connection, connection.makefile("rb") as answer:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return answer.read().decode()
