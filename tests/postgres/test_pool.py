"""All connections of the pool are in use: who asks for one is told, no attempt is spent, and work goes on by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from redrive import App, StoreError
from redrive.observe.signals import Halted, Resumed, Settled, Signal
from redrive.settings import Settings
from redrive.store.postgres.store import PostgresStore

SETTINGS = Settings(pool_max=2, busy_timeout=0.2, halt_wait=0.02, halt_wait_max=0.05)
PATIENCE = 90.0  # seconds until something counts as never; a busy machine may need many


class Heard:
    """Waits for what listeners are told."""

    def __init__(self) -> None:
        self.facts: list[Signal] = []
        self._news = threading.Condition()

    def __call__(self, facts: Sequence[Signal]) -> None:
        with self._news:
            self.facts += facts
            self._news.notify_all()

    def wait(self, kind: type[Signal], name: str) -> Any:
        def found() -> Any:
            return next((fact for fact in self.facts if isinstance(fact, kind) and fact.subscription == name), None)

        with self._news:
            assert self._news.wait_for(found, PATIENCE), f"no {kind.__name__} of {name}"
            return found()


@contextmanager
def held(app: App, kind: str) -> Iterator[None]:
    """Somebody's reader or transaction that lasts, in a thread of its own."""
    begun, gate = threading.Event(), threading.Event()

    def hold() -> None:
        with getattr(app, kind)() as tx:
            tx.execute("SELECT 1").fetchall()
            begun.set()
            gate.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        yield
    finally:
        gate.set()
        thread.join()


def test_a_pool_that_users_have_emptied_costs_no_attempt(postgres_url: str) -> None:
    app, heard, attempts = App(postgres_url, settings=SETTINGS), Heard(), []
    orders = app.log("orders")

    @app.projection(orders, tables={"counted": "n INTEGER"})
    def count(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO counted VALUES (:n)", {"n": event.data})

    @app.on(orders, start="first")
    def look(event: Any, ctx: Any) -> None:
        attempts.append(ctx.attempt)
        with app.reader() as tx:
            assert tx.execute("SELECT 1").fetchone() == (1,)

    @app.on(orders, start="first", key_by=lambda event: "one")
    def remember(event: Any, ctx: Any) -> None:
        ctx.state["sum"] = ctx.state.get("sum", 0) + event.data

    app.listen(heard)

    async def main() -> None:
        async with app.running():
            with held(app, "reader"), held(app, "transaction"):
                with pytest.raises(StoreError, match=r"all 2 are in use.*pool_max"):
                    orders.append("order.placed", 1)  # in the caller's thread
                with pytest.raises(StoreError, match="pool_max"), app.transaction():
                    pass
                await orders.append_async("order.placed", 2)  # by the engine, whose connection is its own
                await asyncio.to_thread(heard.wait, Settled, "count")
                for name in ("look", "remember"):
                    halted = await asyncio.to_thread(heard.wait, Halted, name)
                    assert "all 2 are in use" in halted.reason
            for name in ("look", "remember"):
                await asyncio.to_thread(heard.wait, Resumed, name)
                await asyncio.to_thread(heard.wait, Settled, name)
            orders.append("order.placed", 3)

    with closing(app):
        asyncio.run(main())
        app.run(until_idle=True)
        assert set(attempts) == {1}
        assert app.operate().letters.list() == []
        assert {(row.subscription, row.applied) for row in app.operate().status()} == {
            ("count", 2), ("look", 2), ("remember", 2),
        }  # fmt: skip
        assert all(verdict.sound for verdict in app.operate().verify())


@pytest.mark.parametrize("kind", ["looking", "reading", "transaction"])
@pytest.mark.parametrize("inline", [True, False])  # the engine's own connection, and one of the pool
def test_a_connection_that_was_ended_while_nobody_used_it_is_replaced(
    postgres_url: str, kind: str, inline: bool
) -> None:
    with closing(PostgresStore(postgres_url, inline=inline)) as store:
        with store.transaction() as tx:
            tx.books.set("test", "kept")
            ended = tx.connection.info.backend_pid
        with psycopg.connect(postgres_url) as other:
            assert other.execute("SELECT pg_terminate_backend(%s, 5000)", (ended,)).fetchone() == (True,)
        begins = {
            "looking": lambda: store.reading(snapshot=False),
            "reading": store.reading,
            "transaction": store.transaction,
        }
        with begins[kind]() as tx:
            assert tx.books.get("test") == "kept"
            assert tx.connection.info.backend_pid != ended
