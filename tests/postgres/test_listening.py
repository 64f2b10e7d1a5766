"""Who waits is woken by the thread that hears of a commit; and what a connection remembers of the logs stays true."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

import redrive.store.postgres.listen
from redrive import App
from redrive.runner.wake import Wake, listen
from redrive.store.postgres import PostgresStore
from redrive.store.postgres.params import translate
from redrive.store.postgres.sql import PostgresSql, statements

TRIES_MAX = 300


class HandBell:
    """A bell that this test rings."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] | None = None

    def tell(self, ring: Callable[[], None] | None) -> None:
        self.ring = ring


def test_a_bell_that_rings_in_another_thread_wakes_whoever_waits_and_is_let_go_of_at_the_end() -> None:
    bell = HandBell()

    async def program() -> None:
        resting = asyncio.Event()
        wakes = [Wake(resting), Wake(resting)]
        task = asyncio.create_task(listen(bell, wakes))
        for _ in range(3):
            waiting = [asyncio.create_task(wake.wait(None)) for wake in wakes]
            await resting.wait()
            assert bell.ring is not None
            await asyncio.to_thread(bell.ring)
            await asyncio.wait_for(asyncio.gather(*waiting), 30)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(program())
    assert bell.ring is None


def test_what_comes_while_one_works_is_not_forgotten() -> None:
    bell = HandBell()

    async def program() -> None:
        wake = Wake(asyncio.Event())
        task = asyncio.create_task(listen(bell, [wake]))
        await asyncio.sleep(0)
        assert bell.ring is not None
        bell.ring()
        bell.ring()  # twice before anybody could hear it: once is enough
        await asyncio.wait_for(wake.wait(None), 30)
        assert not wake.pending
        bell.ring()
        await asyncio.wait_for(wake.wait(None), 30)
        task.cancel()

    asyncio.run(program())


@pytest.mark.parametrize("means", ["listening", "looking"])
def test_the_store_rings_for_what_nobody_has_looked_at_and_for_what_others_append(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, means: str
) -> None:
    """Each is enough by itself: who listens may be blind, and who looks may be deaf."""
    if means == "listening":
        monkeypatch.setitem(cast(Any, statements()), "pg_pulse", translate("SELECT 1 WHERE false", named=True))
    else:
        monkeypatch.setattr(redrive.store.postgres.listen, "LISTEN", "LISTEN nobody")
    store, other = PostgresStore(postgres_url), App(postgres_url)
    rung = threading.Semaphore(0)

    def heard() -> bool:
        """Its thread may not have begun to listen when the first of them come."""
        other.log("orders").append("placed", 1)
        return rung.acquire(timeout=0.1)

    try:
        assert store.bell is not None
        store.bell.tell(rung.release)
        assert rung.acquire(timeout=30)
        while rung.acquire(blocking=False):
            pass
        for _ in range(3):  # the first look of all rings, too
            assert any(heard() for _ in range(TRIES_MAX))
    finally:
        store.close()
        other.close()


def test_the_number_of_a_log_that_was_rolled_back_is_not_remembered(postgres_url: str) -> None:
    store, other = PostgresStore(postgres_url, inline=True), App(postgres_url)

    def create_and_fail() -> None:
        with store.transaction() as tx:
            assert tx.logs.id_of("gone", create=True)
            raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            create_and_fail()
        other.log("there").append("placed", 1)
        with store.transaction() as tx:
            assert tx.logs.id_of("gone") == 0
            assert tx.logs.id_of("gone", create=True) not in (0, tx.logs.id_of("there"))
    finally:
        store.close()
        other.close()


def test_the_number_of_a_log_that_was_committed_is_looked_up_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    execute = PostgresSql._execute
    monkeypatch.setattr(
        PostgresSql, "_execute", lambda sql, name, params: asked.append(name) or execute(sql, name, params)
    )
    app = App(postgres_url)
    try:
        for number in range(5):
            app.log("orders").append("placed", number, key="ada")
        assert asked.count("pg_event_append") == 5
        assert asked.count("log_find") == 2  # before it was made, and then
    finally:
        app.close()
