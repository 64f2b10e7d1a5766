"""A server behind a bad network: each event is applied once, in its order, and none is blamed for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from redrive import App, StoreError, no_retry
from redrive.observe.signals import Halted, Signal
from redrive.settings import Settings
from redrive.store.postgres.connection import open_connection
from redrive.testing import FaultProxy, Harness
from redrive.testing.fakes import FakeEnv
from redrive.testing.servers import empty

BEGIN = b"BEGIN"
COMMIT = b"COMMIT\x00"  # as it is sent, and as it is answered
KEYS, BAD = 4, 7  # every seventh event fails, once
LEASED = Settings(lease=10.0, poll_min=5.0, poll_max=5.0)
KINDS = pytest.mark.parametrize("kind", ["projection", "handler"])


class Shop:
    """An app that writes down what each key was given, and emits it."""

    def __init__(self, url: str, kind: str, **more: Any) -> None:
        self.app, self.said = App("/nonexistent/x.db"), 0

        def apply(event: Any, out: Any) -> None:
            out.execute("INSERT INTO applied (key, n) VALUES (:key, :n)", {"key": event.key, "n": event.data})
            if event.data % BAD == 0:
                raise ValueError("not this one")
            out.emit(self.app.log("told"), "told", event.data)

        if kind == "handler":
            self.app.on(self.app.log("orders"), name="apply", start="first", retry=no_retry, order="none")(apply)
        else:
            self.app.projection(self.app.log("orders"), name="apply", tables=["applied"], order="none", retry=no_retry)(
                apply
            )
        self.harness = Harness(self.app, url, **more)

    def say(self, number: int) -> None:
        """The network is well while these are appended."""
        for n in range(self.said, self.said + number):
            self.harness.append("orders", "order.placed", n, key=f"k{n % KEYS}")
        self.said += number

    def check(self, store: str, *, ordered: bool) -> None:
        """Exactly what was said, by what the server itself tells."""
        said = self.said
        good = [(f"k{n % KEYS}", n) for n in range(said) if n % BAD]
        with psycopg.connect(store) as connection:
            rows = connection.execute("SELECT key, n FROM applied ORDER BY seq").fetchall()
        assert sorted(rows) == sorted(good)
        if ordered:
            assert rows == good
        assert sorted(data for _, data in self.harness.emitted("told")) == [n for _, n in good]
        letters = self.harness.letters()
        assert [(letter.state, letter.attempts) for letter in letters] == [("dead", 1)] * len(range(0, said, BAD))


@pytest.fixture
def store(postgres_store: str) -> Iterator[str]:
    """Reached without the proxy."""
    with psycopg.connect(postgres_store) as connection:
        connection.execute("CREATE TABLE applied (seq BIGSERIAL, key TEXT NOT NULL, n INTEGER NOT NULL)")
    yield postgres_store
    empty(postgres_store)


@pytest.fixture
def wire(store: str) -> Iterator[FaultProxy]:
    with FaultProxy(store) as wire:
        yield wire


@KINDS
@pytest.mark.parametrize("fault", ["cut", "lose_reply"])
def test_whichever_packet_is_lost_nothing_is_lost_or_doubled(
    wire: FaultProxy, store: str, kind: str, fault: str
) -> None:
    shop = Shop(wire.at(store), kind)
    with shop.harness:
        shop.harness.run_until_idle()
        for place in range(1, 11):
            shop.say(2)
            armed = getattr(wire, fault)(nth=place)
            shop.harness.advance("1m")
            assert armed.fired
        shop.check(store, ordered=kind == "projection")
        assert [verdict for verdict in shop.app.operate().verify() if not verdict.sound] == []


@KINDS
@pytest.mark.parametrize("way", ["requests", "replies"])
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
def test_a_batch_that_is_cut_in_the_middle_of_its_pipeline_is_run_again(
    wire: FaultProxy, store: str, kind: str, way: Any, reset: bool
) -> None:
    shop = Shop(wire.at(store), kind)
    with shop.harness:
        shop.harness.run_until_idle()
        for bytes_before in range(500, 6_000, 2_400):
            shop.say(25)
            armed = wire.cut(on=way, after_bytes=bytes_before, reset=reset)
            shop.harness.advance("1m")
            assert armed.fired
        shop.check(store, ordered=kind == "projection")
        assert [verdict for verdict in shop.app.operate().verify() if not verdict.sound] == []


@KINDS
def test_a_commit_that_is_held_up_is_waited_for(wire: FaultProxy, store: str, kind: str) -> None:
    shop = Shop(wire.at(store), kind)
    with shop.harness:
        shop.harness.run_until_idle()
        shop.say(10)
        stall = wire.stall(holding=COMMIT)
        working = threading.Thread(target=shop.harness.run_until_idle)
        working.start()
        stall.wait()
        with psycopg.connect(store) as other:
            assert other.execute("SELECT count(*) FROM applied").fetchall() == [(0,)]
        wire.heal()
        working.join()
        shop.check(store, ordered=kind == "projection")


@KINDS
@pytest.mark.parametrize("arrives", [True, False], ids=["its COMMIT arrives, late", "its COMMIT has arrived"])
def test_an_owner_whose_commit_hangs_is_replaced_and_then_commits_nothing(
    wire: FaultProxy, store: str, kind: str, arrives: bool
) -> None:
    """Its connection hangs, it does not: what it has sent reaches the server when somebody else has done its work."""
    first = Shop(wire.at(store), kind, settings=LEASED)
    second = Shop(store, kind, env=FakeEnv(first.harness.clock, owner="second-1"), settings=LEASED)
    with first.harness, second.harness:
        first.harness.run_until_idle()
        second.say(10)
        stall = wire.stall(holding=COMMIT) if arrives else wire.stall(on="replies", holding=COMMIT)
        working = threading.Thread(target=first.harness.run_until_idle)
        working.start()
        stall.wait()
        wire.stall("requests")
        wire.stall("replies")  # it does not even hear that the server has ended its connection
        with psycopg.connect(store, autocommit=True) as server:
            # What idle_in_transaction_session_timeout does after some seconds.
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND state = 'idle in transaction'"
            )
        second.harness.advance("5m")
        second.say(10)
        second.harness.advance("1m")
        second.check(store, ordered=False)
        wire.heal()
        working.join()
        first.harness.advance("1m")
        second.harness.advance("1m")
        second.check(store, ordered=False)
        assert [verdict for verdict in second.app.operate().verify() if not verdict.sound] == []


def test_a_server_that_refuses_is_waited_for_and_goes_on_where_it_was(wire: FaultProxy, store: str) -> None:
    shop = Shop(wire.at(store), "projection")
    with shop.harness:
        shop.harness.run_until_idle()
        shop.say(10)
        wire.refuse()
        wire.cut()
        shop.harness.advance("10m")
        assert "apply" in shop.harness.halted
        wire.heal()
        shop.harness.advance("2m")
        shop.check(store, ordered=True)


@KINDS
@pytest.mark.parametrize("fault", ["cut", "lose_reply"])
def test_a_worker_whose_connection_turns_out_dead_at_its_first_statement_takes_another(
    wire: FaultProxy, store: str, kind: str, fault: str
) -> None:
    shop, heard = Shop(wire.at(store), kind), list[Signal]()
    shop.app.listen(heard.extend)
    with shop.harness:
        shop.harness.run_until_idle()
        shop.say(5)
        armed = getattr(wire, fault)(holding=BEGIN)
        shop.harness.advance("1m")
        assert armed.fired
        shop.check(store, ordered=kind == "projection")
        assert not any(isinstance(one, Halted) for one in heard)


@pytest.mark.parametrize("fault", ["cut", "lose_reply"])
@pytest.mark.parametrize("by", ["append", "append_async"])
def test_an_append_survives_a_connection_that_turns_out_dead_at_its_first_statement(
    wire: FaultProxy, store: str, fault: str, by: str
) -> None:
    """Nothing had begun: what a router forgot while nobody used it is replaced, and nobody need hear of it."""

    async def say(app: App, n: int) -> None:
        if by == "append":
            app.log("orders").append("order.placed", n, key="a")
        else:
            await app.log("orders").append_async("order.placed", n, key="a")

    async def main() -> None:
        for n in range(3):
            armed = getattr(wire, fault)(holding=BEGIN) if n else None
            await say(app, n)
            assert armed is None or armed.fired

    with closing(App(wire.at(store))) as app:
        asyncio.run(main())
        assert [(event.data, event.version) for event in app.log("orders").read()] == [(0, 1), (1, 2), (2, 3)]


def test_an_append_to_a_server_that_ends_every_connection_gives_up(wire: FaultProxy, store: str) -> None:
    with closing(App(wire.at(store), settings=Settings(pool_max=2))) as app:
        app.log("orders").append("order.placed", 0)
        armed = [wire.cut(holding=BEGIN, nth=nth) for nth in range(1, 6)]
        with pytest.raises(StoreError, match="closed the connection"):
            app.log("orders").append("order.placed", 1)
        assert [one.fired for one in armed] == [True, True, True, False, False]
        wire.heal()
        assert [event.data for event in app.log("orders").read()] == [0]


def test_where_no_transaction_could_begin_nobody_goes_on_without_one(store: str) -> None:
    with closing(open_connection(store)) as connection:
        connection.unsaid = "BEGIN; not understood"  # as if it had been cancelled: none of it was done
        for n in range(2):
            with pytest.raises(psycopg.OperationalError):
                connection.execute("INSERT INTO applied (key, n) VALUES ('a', %s)", (n,))
    with psycopg.connect(store) as other:
        assert other.execute("SELECT count(*) FROM applied").fetchone() == (0,)
