"""A worker is killed in the middle of its work: how long until its successor commits something."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.job import UPSERT, check, orders, totals_of
from bench.lab import ROOT, Figures, copied, environment, load_runner


def restart(folder: Path, template: str, n: int) -> Figures:
    """One process dies, another goes on; both are like any worker."""
    path = copied(template, folder)
    command = [sys.executable, "-m", "bench.restart", path]
    victim = subprocess.run([*command, str(n // 2)], cwd=ROOT, env=environment(), capture_output=True, check=False)
    if victim.returncode != -signal.SIGKILL:
        raise RuntimeError(f"it was to be killed, but ended with {victim.returncode}: {victim.stderr[-500:]!r}")
    heir = subprocess.run([*command, "0"], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    first, everything = map(float, heir.stdout.split())
    _check(path, n)
    return {"first_ms": first * 1e3, "rest_rate": (n - n // 2) / everything}


def _check(path: str, n: int) -> None:
    import sqlite3

    connection = sqlite3.connect(path)
    check("after SIGKILL", connection.execute("SELECT * FROM totals"), totals_of(orders(n)))
    connection.close()


def work(path: str, die_after: int) -> None:
    """The worker. Time is counted from the moment when the imports are over."""
    import asyncio
    import time

    from redrive import App
    from redrive.observe.signals import Settled, Signal

    load_runner()
    started = time.perf_counter()
    app = App(path)
    commits: list[float] = []
    called = 0

    @app.projection(app.log("orders"), tables=["totals"])
    def totals(event: Any, tx: Any) -> None:
        nonlocal called
        called += 1
        if called == die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        data = event.data
        tx.execute(UPSERT, (data["customer"], data["amount"]))

    @app.listen
    def on_signals(batch: Sequence[Signal]) -> None:
        if any(isinstance(told, Settled) for told in batch):
            commits.append(time.perf_counter() - started)

    asyncio.run(app.serve(until_idle=True))
    print(commits[0], time.perf_counter() - started)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
