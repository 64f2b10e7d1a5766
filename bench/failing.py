"""What a failure costs: from the moment a function raises until its letter is committed, one event at a time.

Half of the events are tried again later (a retrying letter), half are refused for good (a dead letter). Both are synced
before anybody hears of them: `synchronous=FULL` in a file, `synchronous_commit` on a server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lab import Figures, Stopwatch, load_runner
from redrive import App, Reject, failpoints, retry
from redrive.observe.signals import Buried, Retried, Signal
from redrive.testing.servers import Databases

PATIENCE = 120.0  # seconds for one event

Moment = tuple[str, float]


def failing(folder: Path, n: int, server: str = "") -> Figures:
    """The next event is appended when the one before is a letter, so that no figure is of waiting in a queue."""
    address = Databases(server).make() if server else str(folder / "log.db")
    app = App(address)
    seen: list[Moment] = []

    @app.on(app.log("orders"), start="first", order="none", retry=retry(attempts=2, wait="1h", wait_max="1h"))
    async def fail(event: Any) -> None:
        is_last = event.data % 2
        seen.append(("buried" if is_last else "retried", time.perf_counter()))
        raise Reject("no such customer") if is_last else ValueError("not today")

    load_runner()
    failpoints.arm(lambda name: seen.append((name, time.perf_counter())))
    try:
        with Stopwatch() as watch:
            asyncio.run(_one_by_one(app, n))
    finally:
        failpoints.arm(None)
    with app.reader() as tx:
        counted = tx.execute(f"SELECT state, count(*) FROM {_letters(server)} GROUP BY state").fetchall()
    assert dict(counted) == {"dead": n // 2, "retrying": n - n // 2}, f"other letters than expected: {counted}"
    app.close()
    if server:
        Databases(server).drop(address)
    return watch.figures(n) | _figures(seen)


def _letters(server: str) -> str:
    return "redrive.letters" if server else "redrive_letters"


async def _one_by_one(app: App, n: int) -> None:
    loop, kept = asyncio.get_running_loop(), asyncio.Queue[None]()

    def hear(batch: Sequence[Signal]) -> None:
        for told in batch:
            if isinstance(told, Buried | Retried):
                loop.call_soon_threadsafe(kept.put_nowait, None)

    app.listen(hear)
    async with app.running():
        for number in range(n):
            await app.log("orders").append_async("order.placed", number)
            await asyncio.wait_for(kept.get(), PATIENCE)


def _figures(seen: list[Moment]) -> Figures:
    """Of each failure: the first settling that begins after it is its own, because nothing else is under way."""
    overheads: list[float] = []
    writes: list[float] = []
    for at, (what, raised) in enumerate(seen):
        if what in ("buried", "retried"):
            begun = _next(seen, at, "round.called")
            committed = _next(seen, at, "round.committed")
            overheads.append(committed - raised)
            if what == "buried":
                writes.append(committed - begun)
    return {
        "p50_ms": _at(overheads, 50), "p99_ms": _at(overheads, 99), "write_p50_ms": _at(writes, 50),
        "write_p99_ms": _at(writes, 99),
    }  # fmt: skip


def _next(seen: list[Moment], at: int, name: str) -> float:
    return next(moment for what, moment in seen[at:] if what == name)


def _at(taken: list[float], percent: int) -> float:
    return sorted(taken)[len(taken) * percent // 100] * 1e3
