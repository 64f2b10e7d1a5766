"""Several workers on one Postgres: how much faster two are than one, and how soon one takes over from another.

`python -m bench.fleet address lease` is a worker.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.job import UPSERT, check, orders, totals_of
from bench.lab import ROOT, Figures, environment
from bench.postgres import copy_of
from bench.redrives import build_log
from redrive import App
from redrive.settings import Settings
from redrive.units import show_duration

SECONDS_MAX = 120.0
LOOK_SECONDS = 0.005
PARTITIONS = 2
OWNERS = "SELECT count(DISTINCT owner), count(owner) FROM redrive.progress"


def declare(url: str, lease: str, partitions: int) -> App:
    """The program that every worker runs."""
    app = App(url, settings=Settings(lease=float(lease)))

    @app.projection(app.log("orders"), tables=["totals"], partitions=partitions)
    def totals(event: Any, tx: Any) -> None:
        data = event.data
        tx.execute(UPSERT, (data["customer"], data["amount"]))

    return app


@contextmanager
def worker(url: str, lease: float, partitions: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that works until it is told to stop."""
    command = [sys.executable, "-m", "bench.fleet", url, str(lease), str(partitions)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(connection: psycopg.Connection[Any], query: str, reached: Callable[[Any], bool]) -> None:
    """Look until a row is as it should be."""
    deadline = time.monotonic() + SECONDS_MAX
    while not reached(connection.execute(query.encode()).fetchone()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {show_duration(SECONDS_MAX)} it is still not so: {query}")
        time.sleep(LOOK_SECONDS)


def together(folder: Path, server: str, template: str, n: int, workers: int, lease: float) -> Figures:
    """All workers own their partitions; then n events appear at once, and are applied by so many processes."""
    with copy_of(server, template) as url, psycopg.connect(url, autocommit=True) as look:
        hands = [worker(url, lease, PARTITIONS) for _ in range(workers)]
        for hand in hands:
            hand.__enter__()
        try:
            until(look, OWNERS, lambda row: row == (workers, PARTITIONS))
            app = App(url)
            with app.transaction() as tx:
                build_log(app, n, tx)
            started = time.perf_counter()
            until(look, "SELECT sum(applied) FROM redrive.progress", lambda row: row[0] == n)
            seconds = time.perf_counter() - started
            app.close()
        finally:
            for hand in hands:
                hand.__exit__(None, None, None)
        check("workers", look.execute("SELECT * FROM totals").fetchall(), totals_of(orders(n)))
    return {"n": n, "rate": n / seconds, "seconds": seconds}


def take_over(folder: Path, server: str, template: str, lease: float) -> Figures:
    """From the end of one worker, by SIGKILL and by SIGTERM, to the first commit of the other; beyond its lease."""
    found = {}
    for name, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGTERM)):
        with copy_of(server, template) as url, psycopg.connect(url, autocommit=True) as look:
            log = App(url).log("orders")
            with worker(url, lease, 1) as first:
                log.append("order.placed", orders(1)[0].data)
                until(look, "SELECT sum(applied) FROM redrive.progress", lambda row: row[0] == 1)
                with worker(url, lease, 1):
                    until(look, "SELECT count(*) FROM redrive.workers", lambda row: row[0] == 2)
                    first.send_signal(number)
                    started = time.perf_counter()
                    log.append("order.placed", orders(2)[1].data)
                    until(look, "SELECT sum(applied) FROM redrive.progress", lambda row: row[0] == 2)
                    found[f"{name}_seconds"] = time.perf_counter() - started
    return found | {"n": 2, "beyond_lease_seconds": found["killed_seconds"] - lease}


if __name__ == "__main__":
    declare(sys.argv[1], sys.argv[2], int(sys.argv[3])).run()
