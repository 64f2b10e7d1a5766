"""redrive doing the job: projections and handlers, clean and with poison, checked to the last event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.job import KEYS, TOTALS, UPSERT, Order, WrongTotals, check, is_poison, orders, totals_of
from bench.lab import Figures, Stopwatch, copied, load_runner
from redrive import App, retry
from redrive.observe.signals import Buried, Settled, Signal

CHUNK = 10_000
ATTEMPTS = 3


class Poison(Exception):
    """What a poisonous order raises."""


def build(path: Path, n: int) -> None:
    """A log of n events and an empty table of totals."""
    app = App(str(path))
    build_log(app, n)
    with app.transaction() as tx:
        tx.execute(TOTALS)
    app.close()


def build_log(app: App, n: int, tx: Any = None) -> None:
    """The orders as events, in one transaction or in several."""
    log, made = app.log("orders"), orders(n)
    for at in range(0, n, CHUNK):
        log.append_many(_items(made[at : at + CHUNK]), tx=tx)


def _items(chunk: list[Order]) -> Iterator[dict[str, Any]]:
    for order in chunk:
        yield {"type": "order.placed", "data": order.data, "key": order.key}


def timed(app: App, n: int) -> Figures:
    """Run until nothing is left: opening the file, taking the lease and handing it back are part of it."""
    load_runner()
    with Stopwatch() as watch:
        asyncio.run(app.serve(until_idle=True))
    return watch.figures(n)


async def timed_until(app: App, n: int) -> Figures:
    """Run until n events are applied or buried; retries that wait for their time are waited for."""
    load_runner()
    over, loop, left = asyncio.Event(), asyncio.get_running_loop(), n

    def count(batch: Sequence[Signal]) -> None:
        nonlocal left
        for told in batch:
            left -= told.applied if isinstance(told, Settled) else isinstance(told, Buried)
        if left <= 0:
            loop.call_soon_threadsafe(over.set)

    app.listen(count)
    with Stopwatch() as watch:
        async with app.running():
            await asyncio.wait_for(over.wait(), 120)
    return watch.figures(n)


# ---------------------------------------------------------------- projections


def projection(folder: Path, template: str, n: int, stride: int = 0) -> Figures:
    """One upsert per event, exactly once, in key order; how much memory it took on the way."""
    _set_stride(stride)
    app = App(copied(template, folder))

    @app.projection(app.log("orders"), tables=["totals"])
    def totals(event: Any, tx: Any) -> None:
        data = event.data
        tx.execute(UPSERT, (data["customer"], data["amount"]))

    before = memory("VmRSS")
    figures = timed(app, n)
    figures["grown_mb"] = memory("VmHWM") - before
    with app.reader() as tx:
        check("projection", tx.execute("SELECT * FROM totals"), totals_of(orders(n)))
    app.close()
    return figures


def unordered(
    folder: Path, template: str, n: int, poison: bool, order: str = "none", stride: int = 0, wait: str = "0s"
) -> Figures:
    """The same function twice: with poison in it, or reading the same events without."""
    _set_stride(stride)
    app = App(copied(template, folder))
    rule = retry(attempts=ATTEMPTS, wait=wait, wait_max=wait)

    @app.projection(app.log("orders"), tables=["totals"], order=order, retry=rule)  # type: ignore[arg-type]
    def totals(event: Any, tx: Any) -> None:
        data = event.data
        tx.execute(UPSERT, (data["customer"], data["amount"]))
        if is_poison(data) and poison:
            raise Poison(f"order {data['seq']} cannot be applied")

    figures = asyncio.run(timed_until(app, n))
    made = orders(n)
    bad = [made_order for made_order in made if poison and made_order.is_poison]
    with app.reader() as tx:
        if order == "none":
            good = [made_order for made_order in made if not (poison and made_order.is_poison)]
            check("with poison", tx.execute("SELECT * FROM totals"), totals_of(good))
        _check_letters(tx, bad, order)
    app.close()
    return figures


def _check_letters(tx: Any, bad: list[Order], order: str) -> None:
    """Every poisonous order is a dead letter after its attempts, with its own error; nothing else is one."""
    rows = tx.execute("SELECT position, attempts, error_type, error_message FROM redrive_letters WHERE state = 'dead'")
    found = {position: rest for position, *rest in rows}
    expected = {order.data["seq"] + 1: order for order in bad}
    if order == "none":
        check_letters(set(found), bad)
    for position, (attempts, error, message) in found.items():
        wanted = f"order {expected[position].data['seq']} cannot be applied"
        if (attempts, error.rpartition(".")[2], message) != (ATTEMPTS, "Poison", wanted):
            raise WrongTotals(f"the letter at {position} says {attempts}, {error}, {message}")


def check_letters(positions: set[int], bad: list[Order]) -> None:
    """Is each of these orders a dead letter, and nothing else?"""
    if positions != {order.data["seq"] + 1 for order in bad}:
        raise WrongTotals(f"{len(positions)} dead letters, not {len(bad)}")


def _set_stride(stride: int) -> None:
    if stride:
        from redrive.runner import strides
        from redrive.store.sqlite.store import SqliteStore

        strides.STRIDE_MIN = strides.STRIDE_MAX = stride
        SqliteStore.can_hold = False  # else nothing would run in strides


def memory(which: str) -> float:
    """Resident memory in MB: VmRSS, what there is now, or VmHWM, the most there was. Only Linux tells."""
    try:  # getrusage would count what the parent had before it started us
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return 0.0
    line = next(line for line in status.splitlines() if line.startswith(which))
    return int(line.split()[1]) * 1024 / 1e6


# ---------------------------------------------------------------- handlers


def handler(folder: Path, template: str, n: int, kind: str, concurrency: int = 1) -> Figures:
    """No effects: the function adds up in memory. A key never runs twice at a time, so no lock is needed."""
    app = App(copied(template, folder))
    sums: dict[str, tuple[int, int]] = {f"customer-{number:04d}": (0, 0) for number in range(KEYS)}

    def add(event: Any) -> None:
        data = event.data
        count, amount = sums[data["customer"]]
        sums[data["customer"]] = (count + 1, amount + data["amount"])

    if kind == "async":

        @app.on(app.log("orders"), start="first", concurrency=concurrency)
        async def on_order(event: Any, ctx: Any) -> None:
            add(event)

    else:

        @app.on(app.log("orders"), start="first", concurrency=concurrency)
        def on_order_in_thread(event: Any, ctx: Any) -> None:
            add(event)

    figures = timed(app, n)
    rows = [(key, count, amount) for key, (count, amount) in sums.items() if count]
    check(f"{kind} handler", rows, totals_of(orders(n)))
    app.close()
    return figures


def stateful(folder: Path, template: str, n: int) -> Figures:
    """The totals in keyed state."""
    app = App(copied(template, folder))

    @app.on(app.log("orders"), start="first")
    async def total(event: Any, ctx: Any) -> None:
        state = ctx.state
        state["count"] = state.get("count", 0) + 1
        state["amount"] = state.get("amount", 0) + event.data["amount"]

    figures = timed(app, n)
    with app.reader() as tx:
        rows = tx.execute("SELECT key, data FROM redrive_state").fetchall()
    states = [(key, json.loads(data)) for key, data in rows]
    check("keyed state", [(key, state["count"], state["amount"]) for key, state in states], totals_of(orders(n)))
    app.close()
    return figures


def emitting(folder: Path, template: str, n: int) -> Figures:
    """One event for one event."""
    app = App(copied(template, folder))
    receipts = app.log("receipts")

    @app.on(app.log("orders"), start="first")
    async def receipt(event: Any, ctx: Any) -> None:
        ctx.emit(receipts, "receipt.sent", {"amount": event.data["amount"]})

    figures = timed(app, n)
    sums: dict[str, tuple[int, int]] = {}
    for event in receipts.read():
        assert event.key is not None
        count, amount = sums.get(event.key, (0, 0))
        sums[event.key] = (count + 1, amount + event.data["amount"])
    check("emissions", [(key, *total) for key, total in sums.items()], totals_of(orders(n)))
    app.close()
    return figures
