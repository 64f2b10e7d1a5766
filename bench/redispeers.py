"""The same job with other consumers of Redis, each fed by its own producer and driven as its documentation shows.

They acknowledge after the call: a crash in between applies an order twice. Each has one upsert per message on one
connection that does not wait for the disk, which is less than a transaction with a marker would cost them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from pathlib import Path
from typing import Any

from bench.job import UPSERT, check, orders, totals_of
from bench.lab import Figures, Stopwatch
from bench.redis import PER_READ, table

SECONDS_MAX = 120.0


class Counter:
    """The table of a contestant, and how many orders are still to come."""

    def __init__(self, folder: Path, n: int) -> None:
        self.connection, self.left, self.over = table(folder / "peer.db"), n, threading.Event()
        self.n, self._lock = n, threading.Lock()

    def add(self, data: dict[str, Any]) -> None:
        """One order."""
        with self._lock:
            self.connection.execute(UPSERT, (data["customer"], data["amount"]))
            self._count(1)

    def add_all(self, batch: list[dict[str, Any]]) -> None:
        """Many, in one transaction."""
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        for data in batch:
            execute(UPSERT, (data["customer"], data["amount"]))
        execute("COMMIT")
        self._count(len(batch))

    def _count(self, done: int) -> None:
        self.left -= done
        if self.left <= 0:
            self.over.set()

    def check(self, who: str) -> None:
        """Was the job done?"""
        check(who, self.connection.execute("SELECT * FROM totals"), totals_of(orders(self.n)))
        self.connection.close()


def faststream(folder: Path, server: str, n: int, batch: bool = False) -> Figures:
    """A subscriber in a group: called for each message, or with `batch=True` for a hundred, which fail together."""
    logging.disable(logging.CRITICAL)
    counter = Counter(folder, n)
    figures = asyncio.run(_faststream(server, counter, batch))
    counter.check("faststream")
    return figures


async def _faststream(server: str, counter: Counter, batch: bool) -> Figures:
    from faststream.redis import RedisBroker, StreamSub

    broker, name, loop = RedisBroker(server), f"faststream-{uuid.uuid4()}", asyncio.get_running_loop()
    await broker.connect()
    await broker._connection.xgroup_create(name, "bench", id="0", mkstream=True)  # type: ignore[attr-defined]
    for order in orders(counter.n):
        await broker.publish(order.data, stream=name)
    sub: Any = StreamSub(name, group="bench", consumer="one", batch=batch, max_records=PER_READ)
    if batch:

        @broker.subscriber(stream=sub)
        async def totals(messages: list[dict[str, Any]]) -> None:
            counter.add_all(messages)

    else:

        @broker.subscriber(stream=sub)
        async def total(message: dict[str, Any]) -> None:
            counter.add(message)

    with Stopwatch() as watch:
        await broker.start()
        await loop.run_in_executor(None, counter.over.wait, SECONDS_MAX)
    await broker.stop()
    return watch.figures(counter.n)


def dramatiq(folder: Path, server: str, n: int) -> Figures:
    """An actor; one thread is the fastest for a function that takes a few microseconds."""
    import dramatiq as library
    from dramatiq.brokers.redis import RedisBroker

    counter, name = Counter(folder, n), f"bench-{uuid.uuid4().hex}"
    broker = RedisBroker(url=server, namespace=name)
    library.set_broker(broker)

    @library.actor
    def total(data: dict[str, Any]) -> None:
        counter.add(data)

    for order in orders(n):
        total.send(order.data)
    worker = library.Worker(broker, worker_threads=1)
    with Stopwatch() as watch:
        worker.start()
        counter.over.wait(SECONDS_MAX)
    worker.stop()
    counter.check("dramatiq")
    broker.flush_all()
    broker.close()
    return watch.figures(n)


def taskiq(folder: Path, server: str, n: int) -> Figures:
    """A task on its broker with acknowledgements."""
    logging.disable(logging.CRITICAL)
    counter = Counter(folder, n)
    # Not asyncio.run: its receiver ends neither when it is told to nor when it is cancelled.
    figures = asyncio.new_event_loop().run_until_complete(_taskiq(server, counter))
    counter.check("taskiq")
    return figures


async def _taskiq(server: str, counter: Counter) -> Figures:
    from taskiq.api import run_receiver_task
    from taskiq_redis import RedisStreamBroker

    broker, loop = RedisStreamBroker(server, f"taskiq-{uuid.uuid4()}", consumer_id="0"), asyncio.get_running_loop()

    @broker.task
    async def total(data: dict[str, Any]) -> None:
        counter.add(data)

    await broker.startup()
    for order in orders(counter.n):
        await total.kiq(order.data)
    with Stopwatch() as watch:
        receiving = asyncio.create_task(run_receiver_task(broker))
        await loop.run_in_executor(None, counter.over.wait, SECONDS_MAX)
    del receiving
    return watch.figures(counter.n)
