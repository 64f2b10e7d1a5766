"""Deliveries: to a local HTTP server beside the loop one would write by hand, and as lines to a file and to stdout.

The loop by hand has the same client with the same settings, ten tasks and a list of requests that were made before the
clock started: the same bodies, the same headers. It reads no log, remembers nothing and tries nothing again. It asks
aiohttp's session, as one would; we do without what the session does for each request, see `redrive.sinks.pool`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bench.job import check, orders, totals_of
from bench.lab import Figures, Stopwatch, copied, load_runner
from bench.receiver import receiver
from redrive import App, cloudevents, webhook
from redrive.sinks import file, stdout
from redrive.sinks.pool import Pool
from redrive.sinks.port import Sink

CONCURRENCY = 10
PAIRS = 3  # runs of each kind
TIMEOUT, CONNECT_TIMEOUT = 10.0, 5.0  # those of `webhook`

Message = tuple[dict[str, str], bytes]


def delivery(folder: Path, template: str, n: int) -> Figures:
    """Both, taking turns in one process: what else the machine does disturbs neither more than the other."""
    load_runner()
    log = App(copied(template, folder))
    made = [_message(event) for event in log.log("orders").read()]
    log.close()
    spent: dict[str, list[Stopwatch]] = {"ours": [], "bare": []}
    for turn in range(-1, 2 * PAIRS):
        who = "ours" if turn % 4 in (0, 3) else "bare"
        with receiver() as url:
            watch = asyncio.run(_deliver(copied(template, folder), url) if who == "ours" else _post_all(url, made))
            with urlopen(url) as page:
                check(who, json.load(page), totals_of(orders(n)))
        if turn >= 0:  # the one before them is for the imports
            spent[who].append(watch)
    seconds = {who: sum(watch.seconds for watch in watches) for who, watches in spent.items()}
    cpu = {who: sum(watch.cpu for watch in watches) for who, watches in spent.items()}
    total = n * PAIRS
    return {
        "n": n, "rate": total / seconds["ours"], "bare_rate": total / seconds["bare"],
        "cpu_rate": total / cpu["ours"], "bare_cpu_rate": total / cpu["bare"],
        "share": seconds["bare"] / seconds["ours"], "cpu_share": cpu["bare"] / cpu["ours"],
    }  # fmt: skip


def _message(event: Any) -> Message:
    headers = cloudevents.http_headers(event, cloudevents.source_of("orders"))
    return headers | {"idempotency-key": event.id}, event.data_raw


async def _post_all(url: str, made: list[Message]) -> Stopwatch:
    """Post, look at the status, next."""
    pool, left = Pool(TIMEOUT, CONNECT_TIMEOUT, allow_private=True), iter(made)
    session = pool._session  # the client itself, without what we have around it

    async def post() -> None:
        for headers, body in left:
            async with session.post(url, data=body, headers=headers) as answer:
                await answer.read()
                assert answer.status == 204

    with Stopwatch() as watch:
        await asyncio.gather(*(post() for _ in range(CONCURRENCY)))
    await pool.close()
    return watch


async def _deliver(path: str, url: str) -> Stopwatch:
    """`app.deliver` with everything it has: order of keys, retries, a breaker, progress that is synced."""
    app = App(path)
    app.deliver(
        app.log("orders"), to=webhook(url, name="crm", allow_private=True), start="first", concurrency=CONCURRENCY
    )
    with Stopwatch() as watch:
        await app.serve(until_idle=True)
    app.close()
    return watch


# ---------------------------------------------------------------- lines


def to_file(folder: Path, template: str, n: int) -> Figures:
    """A file that is synced after every block, as it is by default."""
    path = folder / "orders.jsonl"
    return _lines(folder, template, n, file(path, name="archive"), path)


def to_stdout(folder: Path, template: str, n: int) -> Figures:
    """Standard output, which leads to a file."""
    path = folder / "out.jsonl"
    with path.open("w") as out, redirect_stdout(out):
        return _lines(folder, template, n, stdout(), path)


def _lines(folder: Path, template: str, n: int, sink: Sink, path: Path) -> Figures:
    app = App(copied(template, folder))
    app.deliver(app.log("orders"), to=sink, start="first", concurrency=CONCURRENCY)
    load_runner()
    with Stopwatch() as watch:
        asyncio.run(app.serve(until_idle=True))
    sys.stdout.flush()
    app.close()
    with path.open("rb") as lines:
        check(sink.name, _totals(lines), totals_of(orders(n)))
    return watch.figures(n)


def _totals(lines: Iterable[bytes]) -> list[tuple[str, int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    for line in lines:
        data = json.loads(line)["data"]
        count, amount = sums.get(data["customer"], (0, 0))
        sums[data["customer"]] = (count + 1, amount + data["amount"])
    return [(key, *total) for key, total in sums.items()]
