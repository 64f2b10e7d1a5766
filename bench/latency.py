"""From the call of `append` in one process to the commit of its effect in another, and what waiting costs.

The clock starts before `append`, so the producer's own sync to disk is part of every figure, and stops when the worker
tells of the commit: on the thread that has committed, before any listener is woken.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.job import TOTALS, UPSERT, Order, check, orders, totals_of
from bench.lab import ROOT, Figures, environment
from redrive import App
from redrive.observe.signals import Choosy, Settled, Signal
from redrive.runner.process import stay
from redrive.testing.servers import Databases

SETTLE_SECONDS = 1.5  # after its start a worker still looks around often


def latency(folder: Path, per_second: int, seconds: float, idle_seconds: float, server: str = "") -> Figures:
    """The consumer; it starts a producer. In a file, or on a server."""
    path, n = Databases(server).make() if server else str(folder / "log.db"), int(per_second * seconds)
    app = App(path)
    with app.transaction() as tx:
        tx.execute(TOTALS.removesuffix(" WITHOUT ROWID") if server else TOTALS)
    sent: deque[float] = deque()
    waits: list[float] = []

    @app.projection(app.log("orders"), tables=["totals"])
    def totals(event: Any, tx: Any) -> None:
        data = event.data
        tx.execute(UPSERT, (data["customer"], data["amount"]))
        sent.append(data["sent"])

    producer = ["bench.latency", path, str(per_second), str(n)]
    figures = asyncio.run(measure(app, producer, sent, waits, n, idle_seconds))
    with app.reader() as reader:
        check("latency", reader.execute("SELECT * FROM totals"), totals_of(orders(n)))
    app.close()
    if server:
        Databases(server).drop(path)
    return figures | shares(waits)


def shares(waits: list[float]) -> Figures:
    """Of how long they waited: half of them, all but one in a hundred, all."""
    waits, n = sorted(waits), len(waits)
    return {"p50_ms": waits[n // 2] * 1e3, "p99_ms": waits[n * 99 // 100] * 1e3, "max_ms": waits[-1] * 1e3}


async def measure(
    app: App, producer: list[str], sent: deque[float], waits: list[float], n: int, idle_seconds: float
) -> Figures:
    """Start the module that produces, with its arguments, and wait until all of it was heard of."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()

    class Clock(Choosy):
        """Looks at the time when it is asked whether it wants to hear of a batch, and does not."""

        def wants(self, signals: Sequence[Signal]) -> bool:
            now = time.time()
            for told in signals:
                if isinstance(told, Settled):
                    waits.extend(now - sent.popleft() for _ in range(told.applied))
            if len(waits) == n:
                loop.call_soon_threadsafe(over.set)
            return False

        def __call__(self, signals: Sequence[Signal]) -> None:
            raise AssertionError

    app.listen(Clock())
    command = [sys.executable, "-m", *producer]
    other = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdin is not None and other.stdout is not None
    await other.stdout.readline()  # it is ready
    async with app.running():
        stay()  # as `app.run()` does, which would not let us look on
        await asyncio.sleep(SETTLE_SECONDS)
        cpu = time.process_time()
        await asyncio.sleep(idle_seconds)
        idle = (time.process_time() - cpu) / idle_seconds
        cpu, started = time.process_time(), time.perf_counter()
        other.stdin.write(b"go\n")
        await asyncio.wait_for(over.wait(), 120)
        busy = (time.process_time() - cpu) / (time.perf_counter() - started)
    answer = await other.stdout.readline()
    await other.wait()
    return {"n": n, "idle_cpu": idle * 100, "busy_cpu": busy * 100, "append_p50_ms": float(answer) * 1e3}


def produce(path: str, per_second: str, n: str) -> None:
    """Append at a steady pace; an append that takes long is not made up for by a burst."""
    log = App(path).log("orders")
    paced(per_second, n, lambda order, sent: log.append("order.placed", {**order.data, "sent": sent}, key=order.key))


def paced(per_second: str, n: str, append: Callable[[Order, float], Any]) -> None:
    """Say that we are ready, wait for the word, and begin."""
    pause = 1 / float(per_second)
    made = orders(int(n))
    print("ready", flush=True)
    sys.stdin.readline()
    due = time.perf_counter()
    took = []
    for order in made:
        sent = time.time()
        append(order, sent)
        took.append(time.time() - sent)
        due = max(due + pause, time.perf_counter() - pause)
        time.sleep(max(0.0, due - time.perf_counter()))
    print(median(took), flush=True)


if __name__ == "__main__":
    produce(*sys.argv[1:])
