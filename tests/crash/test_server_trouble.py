"""The Postgres server is killed, restarted, or ends connections: no attempt is spent, nothing is lost, work goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from processes import Child, Zygote, wait_until
from world import World

from redrive.testing.servers import Server

MOMENTS = 7  # at which the trouble comes, of what a producer says
TURNS = [(signal.SIGKILL, 10), (signal.SIGKILL, 10), (signal.SIGINT, 2), (signal.SIGQUIT, 2)]
STRIKE = "SELECT pg_{}_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One whose commits survive its death."""
    found = Server(durable=True)
    yield found
    found.close()


@pytest.fixture
def world(server: Server, zygote: Zygote, tmp_path: Path) -> Iterator[World]:
    url = server.databases.make()
    yield World(zygote, tmp_path, store=url, env={"REDRIVE_BUSY_TIMEOUT": "2s", "REDRIVE_CRASH_CHARGES_MAX": "3"})
    server.databases.drop(url)


def is_drained(world: World) -> bool:
    try:
        return world.is_drained()
    except psycopg.OperationalError:  # ours was one of the connections
        return False


def started(world: World) -> Child:
    """A worker that has begun: one that cannot reach its store at the start says so and ends."""
    worker = world.worker()
    assert world.producer(3).wait() == 0
    wait_until(world.is_drained)
    return worker


def finish(world: World) -> None:
    assert world.producer(3).wait() == 0
    world.drain()
    world.check()
    attempts = "SELECT max(attempts) FROM redrive_letters WHERE state = 'applied'"
    assert world.rows(attempts) <= [(3,)], "only the function's own failures are counted"
    world.repair()
    world.check(fixed=True)


@pytest.mark.parametrize(("number", "turns"), TURNS, ids=[number.name for number, _ in TURNS])
def test_a_server_that_dies_and_comes_back_costs_nothing(
    server: Server, world: World, number: signal.Signals, turns: int
) -> None:
    worker = started(world)
    for turn in range(turns):
        producer = world.producer(10)
        wait_until(lambda: world.acked >= world.said - 8 + turn % MOMENTS)  # noqa: B023
        server.stop(number)
        server.start()
        assert producer.wait() == 0, producer.said
        wait_until(lambda: is_drained(world))
        assert not worker.ended, worker.said
        world.check()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.said
    finish(world)


@pytest.mark.parametrize("verb", ["terminate", "cancel"])
def test_connections_and_statements_that_end_all_the_time_cost_nothing(server: Server, world: World, verb: str) -> None:
    worker, producer = started(world), world.producer(60)
    name = world.path.rpartition("/")[2]
    with psycopg.connect(server.url, autocommit=True) as administrator:

        def strike() -> bool:
            administrator.execute(STRIKE.format(verb).encode(), (name,))
            return producer.ended

        wait_until(strike, every=0.2 if verb == "terminate" else 0.005)  # one that is idle does not notice the latter
    assert producer.wait() == 0, producer.said
    wait_until(lambda: is_drained(world))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.said
    finish(world)
