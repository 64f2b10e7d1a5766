"""The server's disk is full, or it has no connection left: clear errors, no attempt is spent, and work goes on."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from processes import Child, Zygote, wait_until
from world import World

from redrive import App, StoreError
from redrive.settings import Settings
from redrive.testing.servers import Databases, Server

DISK_MB, PAGE = 40, 8192
CONNECTIONS_MAX = 30
QUICK = {"REDRIVE_BUSY_TIMEOUT": "500ms", "REDRIVE_CRASH_CHARGES_MAX": "3"}

CROWDED = "too many clients"
ENDED = ("terminating connection", "server closed the connection")  # the crowd comes in by ending who was there


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that has few connections to give."""
    found = Server(settings=[f"max_connections={CONNECTIONS_MAX}"])
    yield found
    found.close()


def reasons(world: World) -> set[str]:
    return {line["reason"] for line in world.signals("Halted")}


def finish(world: World, worker: Child) -> None:
    """The worker has gone on by itself, and everything is as if nothing had been."""
    wait_until(world.is_drained)
    assert not worker.ended, worker.said
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.said
    world.drain()
    world.check()
    assert world.rows("SELECT max(attempts) FROM redrive_letters WHERE state = 'applied'") == [(3,)]
    assert world.rows("SELECT halted FROM redrive_progress WHERE halted IS NOT NULL") == []


# ------------------------------------------------------------ the disk


class SmallDisk:
    """A disk of its own for one database: a small filesystem, and a file that takes all the room that is left."""

    how = f"a filesystem of {DISK_MB} MB that is full"

    def __init__(self, databases: Databases, folder: Path) -> None:
        name = f"redrive_test_{secrets.token_hex(6)}"
        self.url, self._filler = databases.address(name), folder / "filler"
        with psycopg.connect(databases.url, autocommit=True) as administrator:
            administrator.execute(f"CREATE TABLESPACE {name} LOCATION '{folder}/tables'".encode())
            administrator.execute(f"CREATE DATABASE {name} TEMPLATE template0 TABLESPACE {name}".encode())

    def fill(self) -> None:
        """No room for another byte."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (2**20, PAGE):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError:
                    continue

    def give_a_page(self) -> None:
        """Room for one more page, and then none."""
        os.truncate(self._filler, max(0, self._filler.stat().st_size - PAGE))

    def make_room(self) -> None:
        self._filler.unlink()


class RaisedErrors:
    """Where nobody may mount anything: triggers on redrive's tables raise what the server would, SQLSTATE 53100."""

    how = "no filesystem may be mounted here: triggers raise SQLSTATE 53100"
    RAISE = """CREATE FUNCTION public.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$"""

    def __init__(self, databases: Databases) -> None:
        self.url = databases.make()

    def fill(self) -> None:
        self._execute(self.RAISE)
        for table in ("events", "progress"):
            self._execute(
                f"CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON redrive.{table}"
                " FOR EACH STATEMENT EXECUTE FUNCTION public.full_disk()"
            )

    def give_a_page(self) -> None:
        """It would hold nothing."""

    def make_room(self) -> None:
        self._execute("DROP FUNCTION public.full_disk() CASCADE")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())


@pytest.fixture
def disk(server: Server, tmp_path: Path) -> Iterator[SmallDisk | RaisedErrors]:
    folder = Path(f"/tmp/redrive-disk-{secrets.token_hex(6)}")  # the server must be let in
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=777", "redrive-test", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        if mounted:
            (folder / "tables").mkdir()
            shutil.chown(folder / "tables", "nobody")
        disk = SmallDisk(server.databases, folder) if mounted else RaisedErrors(server.databases)
        yield disk
        server.databases.drop(disk.url)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def test_a_full_disk_of_the_server_halts_the_workers_and_loses_nothing(
    disk: SmallDisk | RaisedErrors, zygote: Zygote, tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    record_property("a full disk under Postgres was", disk.how)
    world = World(zygote, tmp_path, store=disk.url, env=QUICK)
    worker = world.worker()
    assert world.producer(20).wait() == 0
    wait_until(world.is_drained)
    disk.fill()
    large = random.Random(0).randbytes(100_000).hex()
    with closing(App(disk.url)) as app, pytest.raises(StoreError, match="disk is full; make room"):
        app.log("others").append("large", large)
    producer = world.producer(100)
    refused = tmp_path / "acks-refused"

    def is_full_for_all() -> bool:
        if refused.exists() and world.signals("Halted"):
            return True
        if refused.exists():  # the producer met it first, and all that it had said fitted in
            disk.give_a_page()
        return False

    wait_until(is_full_for_all, every=0.1)
    assert all("disk is full" in reason or "No space left" in reason for reason in reasons(world)), reasons(world)
    assert not producer.ended
    assert not worker.ended
    disk.make_room()
    assert producer.wait() == 0, producer.said
    finish(world, worker)
    assert world.signals("Resumed") != []


# ------------------------------------------------------------ connections


@contextmanager
def crowd(server: Server, database: str) -> Iterator[None]:
    """Strangers take every connection that the server has; whoever uses this database loses theirs."""
    with ExitStack() as stack:
        administrator = stack.enter_context(psycopg.connect(server.url, autocommit=True))
        strangers = [administrator]

        def have_taken_all() -> bool:
            """Each slot, counted: one that is refused may only have come before the last user was gone."""
            terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            administrator.execute(terminate.encode(), (database,))
            try:
                while len(strangers) < CONNECTIONS_MAX:
                    strangers.append(stack.enter_context(psycopg.connect(server.url)))
            except psycopg.OperationalError as error:
                assert CROWDED in str(error)
            return len(strangers) == CONNECTIONS_MAX

        wait_until(have_taken_all)
        yield


def test_a_server_without_a_free_connection_costs_no_attempt(server: Server, zygote: Zygote, tmp_path: Path) -> None:
    url = server.databases.make()
    world = World(zygote, tmp_path, store=url, env=QUICK)
    worker = world.worker()
    assert world.producer(20).wait() == 0
    wait_until(world.is_drained)
    with crowd(server, urlsplit(url).path[1:]):
        producer = world.producer(30)
        wait_until(lambda: any(CROWDED in reason for reason in reasons(world)) and (tmp_path / "acks-refused").exists())
        assert all(any(end in reason for end in (CROWDED, *ENDED)) for reason in reasons(world)), reasons(world)
        assert not worker.ended
        assert not producer.ended
    assert producer.wait() == 0, producer.said
    finish(world, worker)
    server.databases.drop(url)


def test_who_was_refused_a_connection_for_long_gets_one_as_soon_as_there_is_one(server: Server) -> None:
    """The pool must not wait ever longer between two tries, while callers fail."""
    url = server.databases.make()
    app = App(url, settings=Settings(busy_timeout=0.5))
    orders = app.log("orders")
    with closing(app):
        orders.append("order.placed", 0)
        with crowd(server, urlsplit(url).path[1:]):
            for number in range(7):  # each waits for its half second
                with pytest.raises(StoreError, match=r"no connection was to be had for 0.5 s: .*too many clients"):
                    orders.append("order.placed", number)
        orders.append("order.placed", 7)
        assert [event.data for event in orders.read()] == [0, 7]
    server.databases.drop(url)
