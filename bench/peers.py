"""The same job with other libraries, driven the way their documentation shows, as far as SQLite allows it.

eventsourcing's SQLite recorder cannot be subscribed to, so its notifications are pulled in pages and given to the
projection one by one: less work than its own runner would do. eventsource-py runs with its subscription manager.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import uuid
from pathlib import Path
from typing import Any

from bench.job import TOTALS, UPSERT, check, orders, totals_of
from bench.lab import Figures, Stopwatch

PAGE = 500


def eventsourcing(folder: Path, n: int, durable: bool = False) -> Figures:
    """Aggregates of one event each; the tracking record and the upsert share a transaction. Exactly once."""
    import eventsourcing.sqlite as library
    from eventsourcing.application import Application
    from eventsourcing.domain import Aggregate, event
    from eventsourcing.persistence import Tracking

    class Placed(Aggregate):
        @event("Placed")
        def __init__(self, order_id: str, customer: str, amount: int, seq: int, note: str) -> None:
            self.customer = customer

    class Orders(Application[uuid.UUID]):
        name = "orders"

    class View(library.SQLiteTrackingRecorder):
        def construct_create_table_statements(self) -> list[str]:
            return [*super().construct_create_table_statements(), TOTALS.replace("TABLE", "TABLE IF NOT EXISTS")]

        def add(self, key: str, amount: int, tracking: Tracking) -> None:
            with self.datastore.transaction(commit=True) as cursor:
                self._insert_tracking(cursor, tracking)
                cursor.execute(UPSERT, (key, amount))

    if not durable:
        _relax(library)
    path = folder / "peer.db"
    app = Orders({"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)})
    made = orders(n)
    for at in range(0, n, 100):
        app.save(*(Placed(**order.data) for order in made[at : at + 100]))
    view: Any = app.factory.tracking_recorder(View)
    position = 0
    with Stopwatch() as watch:
        while page := app.recorder.select_notifications(start=position + 1, limit=PAGE):
            for notification in page:
                placed: Any = app.mapper.to_domain_event(notification)
                view.add(placed.customer, placed.amount, Tracking("orders", notification.id))
            position = page[-1].id
    app.close()
    _check("eventsourcing", path, n)
    return watch.figures(n)


def _relax(library: Any) -> None:
    """Its connections sync every commit; ours, on the same file as their log, need not. Make them equal."""
    original = library.SQLiteConnectionPool._create_connection

    def create(self: Any) -> Any:
        connection = original(self)
        connection._sqlite_conn.execute("PRAGMA synchronous = NORMAL")
        return connection

    library.SQLiteConnectionPool._create_connection = create


def eventsource_py(folder: Path, n: int) -> Figures:
    """Its projection with a session per event, its checkpoint in another transaction: at least once."""
    logging.disable(logging.CRITICAL)
    path = folder / "peer.db"
    figures = asyncio.run(_eventsource_py(path, n))
    _check("eventsource-py", path, n)
    return figures


async def _eventsource_py(path: Path, n: int) -> Figures:
    import eventsource
    from eventsource.application.subscriptions import SubscriptionConfig, SubscriptionManager
    from eventsource.ports.positions import ExpectedVersion
    from sqlalchemy import event as hooks
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    @eventsource.register_event
    class Placed(eventsource.DomainEvent):
        aggregate_type: str = "Order"
        order_id: str
        customer: str
        amount: int
        seq: int
        note: str

    globals()["Placed"] = Placed  # its handlers resolve annotations by name
    upsert = text(UPSERT.replace("(?, 1, ?)", "(:key, 1, :amount)"))
    handled, over = 0, asyncio.Event()

    class Totals(eventsource.DatabaseProjection):
        @eventsource.handles(Placed)
        async def on_placed(self, connection: Any, event: Placed) -> None:
            nonlocal handled
            await connection.execute(upsert, {"key": event.customer, "amount": event.amount})
            handled += 1
            if handled == n:
                over.set()

        async def _truncate_read_models(self) -> None: ...

    store = eventsource.SQLiteEventStore(str(path))
    schema = Path(eventsource.__file__).parent / "migrations" / "schemas" / "sqlite_all.sql"
    with sqlite3.connect(path) as connection:
        connection.executescript(schema.read_text())
        connection.execute(TOTALS)
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 30})
    hooks.listen(engine.sync_engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = NORMAL"))
    for order in orders(n):
        aggregate = uuid.uuid4()
        placed = Placed(aggregate_id=aggregate, aggregate_version=1, **order.data)
        await store.append(eventsource.StreamId(aggregate, "Order"), [placed], ExpectedVersion("any"))

    checkpoints = eventsource.SQLCheckpointRepository(engine, enable_tracing=False)
    letters = eventsource.SQLDLQRepository(engine, enable_tracing=False)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    projection = Totals(sessions, checkpoint_repo=checkpoints, dlq_repo=letters)
    manager = SubscriptionManager(
        store, eventsource.InMemoryEventBus(), checkpoints, dlq_repo=letters, enable_tracing=False
    )
    await manager.subscribe(projection, config=SubscriptionConfig(start_from="beginning", batch_size=100))
    with Stopwatch() as watch:
        task = asyncio.create_task(manager.start())
        await asyncio.wait_for(over.wait(), 120)
    for _ in range(100):  # the last one has been called, not yet committed; a stop now would cut it off
        if _applied(path) == n:
            break
        await asyncio.sleep(0.02)
    await asyncio.wait_for(manager.stop(), 10)
    task.cancel()
    await engine.dispose()
    return watch.figures(n)


def _applied(path: Path) -> int:
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT coalesce(sum(count), 0) FROM totals").fetchone()
    connection.close()
    return int(count)


def _check(who: str, path: Path, n: int) -> None:
    connection = sqlite3.connect(path)
    check(who, connection.execute("SELECT * FROM totals"), totals_of(orders(n)))
    connection.close()
