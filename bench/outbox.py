"""The outbox: what waits in the store is carried to a Valkey stream, key order kept, and read back from there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from bench.job import Order, check, orders, totals_of
from bench.lab import Figures, Stopwatch, load_runner
from redrive import App
from redrive.redis import Stream
from redrive.testing.brokers import valkey

PIECE = 10_000  # events in one append


def relay(folder: Path, n: int) -> Figures:
    """From the first event to the last that is settled as delivered; the appends are made before."""
    job = orders(n)
    app = App(str(folder / "shop.db"))
    with valkey() as url:
        stream = Stream(url, "orders", partitions=1)
        outbox = app.outbox(stream)
        for at in range(0, n, PIECE):
            outbox.append_many(
                {"type": "order.placed", "data": one.data, "key": one.key, "id": one.id} for one in job[at : at + PIECE]
            )
        load_runner()
        asyncio.run(stream.sink("warm").probe())  # loads the client
        with Stopwatch() as watch:
            asyncio.run(app.serve(until_idle=True))
        app.close()
        with stream.connect() as server:
            _check([fields for _, fields in server.xrange("orders")], job)  # type: ignore[union-attr]
    return watch.figures(n) | {"cpu_us": 1e6 * watch.cpu / n}


def _check(found: list[dict[bytes, bytes]], job: list[Order]) -> None:
    arrived = [
        Order(one[b"ce_id"].decode(), one[b"ce_partitionkey"].decode(), json.loads(one[b"data"])) for one in found
    ]
    check("outbox", ((key, *total) for key, total in totals_of(arrived).items()), totals_of(job))
    by_key: dict[str, int] = {}
    for one in arrived:
        assert by_key.get(one.key, -1) < one.data["seq"], "an event of a key overtook another"
        by_key[one.key] = one.data["seq"]
