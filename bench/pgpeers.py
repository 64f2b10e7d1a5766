"""The same job on Postgres with other libraries, driven the way their documentation shows.

Nobody waits for the disk, as redrive does not: the database itself says `synchronous_commit = off`. The clock of a peer
stops at its last event, before its own tidying up. The settings beside each name are those with which it was fastest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from bench.job import check, orders, payload, totals_of
from bench.lab import Figures, Stopwatch
from bench.postgres import RAW_UPSERT, TOTALS
from redrive.testing.servers import Databases

WRITTEN_AT_ONCE = 500
SECONDS_MAX = 120.0  # until the last event is applied
PGQUEUER_BATCH = 200  # its guide: more than 10 when jobs are short
PROCRASTINATE_JOBS = 30  # at a time; the figure of its guide


@contextmanager
def _database(server: str, who: str, n: int) -> Iterator[str]:
    """A database with an empty table of totals; in the end they must be right."""
    databases = Databases(server)
    url = databases.make()
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{urlsplit(url).path[1:]}" SET synchronous_commit = off'.encode())
            connection.execute(TOTALS.encode())
        yield url
        with psycopg.connect(url) as connection:
            check(who, connection.execute("SELECT * FROM totals").fetchall(), totals_of(orders(n)))
    finally:
        databases.drop(url)


def _settle(url: str) -> None:
    """What was written is a log that has been there for a while."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def eventsourcing(folder: Path, server: str, n: int) -> Figures:
    """Its runner, subscribed to the application; tracking record and upsert share a transaction: exactly once."""
    with _database(server, "eventsourcing on Postgres", n) as url:
        return _eventsourcing(url, n)


def _eventsourcing(url: str, n: int) -> Figures:
    from eventsourcing.application import Application
    from eventsourcing.domain import Aggregate, event
    from eventsourcing.persistence import Tracking
    from eventsourcing.postgres import PostgresTrackingRecorder
    from eventsourcing.projection import Projection, ProjectionRunner

    left, over = n, threading.Event()

    class Placed(Aggregate):
        @event("Placed")
        def __init__(self, order_id: str, customer: str, amount: int, seq: int, note: str) -> None:
            self.customer = customer

    class Orders(Application[uuid.UUID]):
        name = "orders"

    class View(PostgresTrackingRecorder):
        def add(self, key: str, amount: int, tracking: Tracking) -> None:
            with self.datastore.transaction(commit=True) as cursor:
                self._insert_tracking(cursor, tracking)
                cursor.execute(RAW_UPSERT, (key, amount), prepare=True)

    class Totals(Projection[View]):
        name = "totals"

        def process_event(self, domain_event: Any, tracking: Tracking) -> None:
            nonlocal left
            self.view.add(domain_event.customer, domain_event.amount, tracking)
            left -= 1
            if not left:
                over.set()

    where = urlsplit(url)
    env = {"PERSISTENCE_MODULE": "eventsourcing.postgres", "POSTGRES_DBNAME": where.path[1:],
           "POSTGRES_HOST": str(where.hostname), "POSTGRES_PORT": str(where.port),
           "POSTGRES_USER": str(where.username), "POSTGRES_PASSWORD": "trusted"}  # fmt: skip
    app = Orders(env)
    made = orders(n)
    for at in range(0, n, WRITTEN_AT_ONCE):
        app.save(*(Placed(**order.data) for order in made[at : at + WRITTEN_AT_ONCE]))
    app.close()
    _settle(url)
    runner: Any = ProjectionRunner
    with Stopwatch() as watch, runner(application_class=Orders, projection_class=Totals, view_class=View, env=env):
        if not over.wait(SECONDS_MAX):
            raise TimeoutError(f"{left} of {n} events are not applied")
        watch.stop()
    return watch.figures(n)


def pgqueuer(folder: Path, server: str, n: int, batch: int = PGQUEUER_BATCH) -> Figures:
    """On asyncpg and uvloop, like its own command; a job's upsert and its end are two transactions: at least once."""
    import uvloop

    with _database(server, "pgqueuer", n) as url:
        return uvloop.run(_pgqueuer(url, n, batch))


async def _pgqueuer(url: str, n: int, batch: int) -> Figures:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.queries import Queries

    logging.disable(logging.CRITICAL)
    left = n
    upsert = RAW_UPSERT.replace("%s", "$1", 1).replace("%s", "$2::bigint")
    connection = await asyncpg.connect(url)
    pool = await asyncpg.create_pool(url, min_size=5, max_size=20)
    queue, queries = PgQueuer.from_asyncpg_connection(connection), Queries.from_asyncpg_connection(connection)
    await queries.install()
    await queries.optimize_autovacuum()
    made = orders(n)
    for at in range(0, n, WRITTEN_AT_ONCE):
        some: list[bytes | None] = [payload(order).encode() for order in made[at : at + WRITTEN_AT_ONCE]]
        await queries.enqueue(["order"] * len(some), some, [0] * len(some))
    _settle(url)

    @queue.entrypoint("order")
    async def on_order(job: Any) -> None:
        nonlocal left
        data = json.loads(job.payload)
        await pool.execute(upsert, data["customer"], data["amount"])
        left -= 1
        if not left:
            watch.stop()
            queue.shutdown.set()

    with Stopwatch() as watch:
        await asyncio.wait_for(queue.run(batch_size=batch), SECONDS_MAX)
    await pool.close()
    await connection.close()
    return watch.figures(n)


def procrastinate(folder: Path, server: str, n: int, jobs: int = PROCRASTINATE_JOBS) -> Figures:
    """Its asynchronous worker; a job's upsert and its end are two transactions: at least once."""
    with _database(server, "procrastinate", n) as url:
        return asyncio.run(_procrastinate(url, n, jobs))


async def _procrastinate(url: str, n: int, jobs: int) -> Figures:
    from procrastinate import App, PsycopgConnector
    from psycopg_pool import AsyncConnectionPool

    logging.disable(logging.CRITICAL)
    left = n
    app = App(connector=PsycopgConnector(conninfo=url, min_size=5, max_size=20))
    pool: Any = AsyncConnectionPool(url, min_size=5, max_size=20, open=False, kwargs={"autocommit": True})

    @app.task(queue="orders")
    async def on_order(**data: Any) -> None:
        nonlocal left
        async with pool.connection() as connection:
            await connection.execute(RAW_UPSERT, (data["customer"], data["amount"]))
        left -= 1
        if not left:
            watch.stop()

    async with app.open_async(), pool:
        await app.schema_manager.apply_schema_async()
        made = orders(n)
        for at in range(0, n, WRITTEN_AT_ONCE):
            await on_order.batch_defer_async(*(order.data for order in made[at : at + WRITTEN_AT_ONCE]))
        _settle(url)
        with Stopwatch() as watch:
            run = app.run_worker_async(wait=False, concurrency=jobs, install_signal_handlers=False)
            await asyncio.wait_for(run, SECONDS_MAX)
    return watch.figures(n)
