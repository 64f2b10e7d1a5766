"""`log.track` as its caller sees it: how long one call takes, and how many eight threads can make in a second.

Afterwards every event must be in the log: what is fast because it is lost does not count.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from bench.job import check, orders, totals_of
from bench.lab import Figures, Stopwatch
from redrive import App

THREADS = 8
PATIENCE = 120.0  # seconds for the store to catch up


def one_caller(folder: Path, n: int) -> Figures:
    """Each call on the clock, one after the other, while the events are being stored beside it."""
    made = orders(n)
    app = App(str(folder / "log.db"))
    log = app.log("orders")
    log.track("warm.up")
    log.flush()
    taken = []
    clock = time.perf_counter
    with Stopwatch() as watch:
        for order in made:
            begun = clock()
            log.track("order.placed", order.data, key=order.key)
            taken.append(clock() - begun)
    _check(app, n)
    taken.sort()
    return watch.figures(n) | {"p50_us": taken[n // 2] * 1e6, "p99_ms": taken[n * 99 // 100] * 1e3}


def many_callers(folder: Path, n: int) -> Figures:
    """Eight threads that do nothing else."""
    made = orders(n)
    app = App(str(folder / "log.db"))
    log = app.log("orders")
    log.track("warm.up")
    log.flush()
    ready = threading.Barrier(THREADS + 1)

    def produce(number: int) -> None:
        mine = made[number::THREADS]
        ready.wait()
        for order in mine:
            log.track("order.placed", order.data, key=order.key)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    with Stopwatch() as watch:
        for thread in threads:
            thread.join()
    _check(app, n)
    return watch.figures(n)


def _check(app: App, n: int) -> None:
    log = app.log("orders")
    assert log.flush(PATIENCE), "not everything was stored"
    sums: dict[str, tuple[int, int]] = {}
    for event in log.read():
        if event.type == "order.placed":
            count, amount = sums.get(event.data["customer"], (0, 0))
            sums[event.data["customer"]] = (count + 1, amount + event.data["amount"])
    check("track", [(key, *total) for key, total in sums.items()], totals_of(orders(n)))
    app.close()
