"""A standby is promoted that had not received everything: workers notice, and go on from what the new server knows."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from processes import Zygote, wait_until
from world import World

from redrive.testing.servers import Databases

SEND_AWAY = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"


class Pair:
    """A database and a copy of it that will take its place; workers know it by its name alone."""

    def __init__(self, databases: Databases, url: str) -> None:
        self.databases, self.name = databases, urlsplit(url).path[1:]
        self.standby = f"{self.name}_standby"

    @contextmanager
    def _closed(self) -> Iterator[Callable[[str], object]]:
        """Nobody is connected to it, and nobody gets in."""
        with psycopg.connect(self.databases.url, autocommit=True) as administrator:

            def run(statement: str) -> None:
                administrator.execute(statement.encode())

            def is_alone() -> bool:
                administrator.execute(SEND_AWAY, (self.name,))
                users = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
                return administrator.execute(users, (self.name,)).fetchone() == (0,)

            run(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false")
            wait_until(is_alone)
            yield run

    def replicate(self) -> None:
        """The standby has received what there is until now, and nothing more."""
        with self._closed() as run:
            run(f"CREATE DATABASE {self.standby} TEMPLATE {self.name}")
            run(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS true")

    def promote(self) -> None:
        """The primary is gone for good; whoever asks for it by its name meets the standby."""
        with self._closed() as run:
            run(f"ALTER DATABASE {self.name} RENAME TO {self.name}_former")
            run(f"ALTER DATABASE {self.standby} RENAME TO {self.name}")

    def drop(self) -> None:
        for name in (self.name, f"{self.name}_former"):
            self.databases.drop(self.databases.address(name))


def take_back(world: World, known: int) -> None:
    """The producer has heard which of its events are missing."""
    lines = world.acks.read_text().splitlines(keepends=True)
    world.acks.write_text("".join(lines[:known]))


def test_a_worker_that_lives_through_a_failover_goes_on_from_what_the_new_server_knows(
    zygote: Zygote, tmp_path: Path, postgres: Databases
) -> None:
    """It is idle all the time: nothing but a look can tell it."""
    url = postgres.make()
    pair, world = Pair(postgres, url), World(zygote, tmp_path, store=url)
    worker = world.worker()
    assert world.producer(30).wait() == 0
    wait_until(world.is_drained)
    pair.replicate()
    assert world.producer(15).wait() == 0
    wait_until(world.is_drained)
    pair.promote()
    take_back(world, 30)
    assert world.producer(0).wait() == 0, "they are said again, and get the positions of those that are missing"
    wait_until(world.is_drained)
    assert not worker.ended
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.said
    world.drain()
    world.check()
    world.repair()
    world.check(fixed=True)
    pair.drop()
