"""The simulator itself: its faults do what they say, and its checks see what they should."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redrive.errors import CommitUnknown, StoreBusy, StoreError
from redrive.store.sqlite.connection import BEGIN
from redrive.testing.sim.disk import Disk
from redrive.testing.sim.fate import Fate
from redrive.testing.sim.options import Faults, Options
from redrive.testing.sim.process import Crash, Process
from redrive.testing.sim.seen import (
    ECHOES,
    EFFECTS,
    LETTERS,
    MARKS,
    PROGRESS,
    SKIPPED,
    STATES,
    TABLES,
    WAITING,
    Seen,
    Sight,
)
from redrive.testing.sim.workload import Workload
from redrive.testing.sim.world import World
from redrive.testing.simulator import simulate

TABLE = "CREATE TABLE entries (n INTEGER)"
COUNTED = "CREATE TABLE entries (n INTEGER PRIMARY KEY AUTOINCREMENT)"  # which SQLite notes in a table of its own


class Quiet:
    """A scenario in which nothing happens."""

    tables = TABLE

    def __init__(self) -> None:
        self.commits: list[str] = []

    def enter(self, world: World) -> None: ...
    def declare(self, app: Any, process: Process) -> None: ...
    def begin(self) -> None: ...
    def heard(self, signal: Any) -> None: ...
    def power_cut(self) -> None: ...
    async def end(self) -> None: ...

    def committed(self, process: Process) -> None:
        self.commits.append(process.owner)


@pytest.fixture
def world() -> Iterator[World]:
    world = World(Quiet(), Options.of(1, faults=Faults()))
    world._over = world.loop.create_future()
    yield world
    world.loop.close()
    world.disk.close()


def write(process: Process, number: int, *, durable: bool = True) -> None:
    with process.store.transaction(durable=durable) as tx:
        tx.connection.execute("INSERT INTO entries VALUES (?)", (number,))


def entries(world: World) -> list[int]:
    return [number for (number,) in world.disk.rows("SELECT n FROM entries ORDER BY n")]


def fate(world: World, monkeypatch: pytest.MonkeyPatch, *, commit: str = "", passing: str = "") -> None:
    monkeypatch.setattr(Fate, "commit", lambda self: commit)
    monkeypatch.setattr(Fate, "passing", lambda self: passing)


def test_processes_share_one_database(world: World) -> None:
    one, two = world.process("one"), world.process("two")
    write(one, 1)
    write(two, 2)
    assert entries(world) == [1, 2]
    assert one.store.changed() and two.store.changed()
    assert not one.store.changed()


@pytest.mark.parametrize(
    ("drawn", "error", "stored"),
    [("error", StoreError, []), ("unknown, lost", CommitUnknown, []), ("unknown, done", CommitUnknown, [1]),
     ("crash before", Crash, []), ("crash after", Crash, [1])],
)  # fmt: skip
def test_a_commit_ends_as_drawn(
    world: World, monkeypatch: pytest.MonkeyPatch, drawn: str, error: type[BaseException], stored: list[int]
) -> None:
    process = world.process("one")
    fate(world, monkeypatch, commit=drawn)
    with pytest.raises(error):
        write(process, 1)
    assert entries(world) == stored
    assert process.dead == (error is Crash)


def test_an_operation_may_fail_before_it_does_anything(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    process = world.process("one")
    fate(world, monkeypatch, passing="error")
    with pytest.raises(StoreBusy):
        write(process, 1)
    assert entries(world) == []


def test_nothing_of_a_dead_process_reaches_the_database(world: World) -> None:
    process = world.process("one")
    answered: list[Any] = []
    process.submit(lambda: write(process, 1), lambda *answer: answered.append(answer))
    process.die("by hand")
    world.loop.let_others_run(10)
    with pytest.raises(Crash):
        write(process, 2)
    with pytest.raises(Crash), process.store.reading():
        pass
    with pytest.raises(Crash):
        process.store.changed()
    assert entries(world) == [] and answered == []
    assert world.is_dead(process.owner)


def test_jobs_of_a_process_run_one_after_another_while_others_go_on(world: World) -> None:
    seen: list[str] = []
    one, two = world.process("one"), world.process("two")

    def slow() -> None:
        seen.append("first begins")
        world.stall(one)
        seen.append("first ends")

    one.submit(slow, lambda *_: None)
    one.submit(lambda: seen.append("second"), lambda *_: None)
    world.loop.call_later(0.2, two.submit, lambda: seen.append("another process"), lambda *_: None)
    world.options = Options.of(1, lease=1000.0)  # any stall is long enough
    world.loop.let_others_run(5000)
    assert seen == ["first begins", "another process", "first ends", "second"]


def test_a_frozen_process_goes_on_when_it_thaws(world: World) -> None:
    process = world.process("one")
    at: list[float] = []
    process.frozen_until = 30.0
    process.submit(lambda: at.append(world.loop.time()), lambda *_: None)
    world.loop.let_others_run(60)
    assert len(at) == 1 and at[0] >= 30.0


def test_a_power_cut_takes_back_what_was_not_synced_and_nothing_else(world: World) -> None:
    process = world.process("one")
    write(process, 1)
    write(process, 2, durable=False)
    write(process, 3, durable=False)
    world._power_cut()
    assert entries(world) == [1]
    assert process.dead


def test_a_durable_commit_makes_all_before_it_durable(world: World) -> None:
    process = world.process("one")
    write(process, 1, durable=False)
    write(process, 2)
    world._power_cut()
    assert entries(world) == [1, 2]


def everything(disk: Disk) -> dict[str, list[Any]]:
    tables = [name for (name,) in disk.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {name: disk.rows(f"SELECT * FROM {name}") for name in tables}


def test_a_world_finds_nothing_of_the_one_before_it() -> None:
    disk = Disk(COUNTED)
    before, connection = everything(disk), disk.connection
    with disk.store.transaction() as tx:
        tx.connection.execute("INSERT INTO entries VALUES (1)")
        tx.connection.execute("DELETE FROM redrive_meta")
    disk.store._full.control(BEGIN)  # its process died in the middle of a transaction
    disk.connection.execute("INSERT INTO entries VALUES (2)")
    disk.close()
    disk = Disk(COUNTED)
    assert disk.connection is connection and not connection.in_transaction
    assert everything(disk) == before
    disk.close()


@pytest.mark.parametrize("why", ["its tables are others", "somebody is left in it"])
def test_what_another_world_could_stumble_over_is_given_to_none(why: str) -> None:
    disk = Disk(TABLE)
    connection = disk.connection
    if why == "its tables are others":
        with disk.store.transaction() as tx:
            tx.connection.execute("CREATE TABLE more (n INTEGER)")
    disk.close(somebody_is_left=why == "somebody is left in it")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
    other = Disk(TABLE)
    assert other.connection is not connection and other.rows("SELECT * FROM entries") == []
    other.close()


def test_each_world_is_guarded_by_its_own_store() -> None:
    for _ in range(2):
        disk = Disk(TABLE)
        with disk.store.transaction() as tx, pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            tx.connection.execute("COMMIT")
        disk.close()


@pytest.mark.parametrize("rolls_back", [True, False])
def test_a_statement_fails_as_on_a_full_disk(rolls_back: bool) -> None:
    disk = Disk(TABLE)
    with disk.store.transaction() as tx, disk.failing_midway(2, rolls_back):
        tx.connection.execute("INSERT INTO entries VALUES (1)")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            tx.connection.execute("INSERT INTO entries VALUES (2)")
        assert tx.connection.in_transaction != rolls_back
        if rolls_back:
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                tx.connection.execute("INSERT INTO entries VALUES (3)")
            tx.control("BEGIN IMMEDIATE -- redrive")  # so that the block can end
    disk.close()


def test_what_is_not_read_again_has_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every commit of some schedules a fresh look finds what the other one has kept."""
    looks, look = [0], Sight.look

    def compare(self: Sight) -> Seen:
        seen = look(self)
        afresh = Sight(self._disk)
        afresh._forgotten = self._forgotten
        assert look(afresh) == seen
        looks[0] += 1
        return seen

    monkeypatch.setattr(Sight, "look", compare)
    for kind in ("projection", "batch", "async", "sync"):
        for seed in range(6):
            assert not simulate(seed, kind=kind, operate_every=0.15, emit=True).violation
    assert looks[0] > 1_000


def test_all_tables_that_are_looked_at_are_known_and_no_trigger_writes_to_them() -> None:
    """Whatever a query reads, the tables behind a view included, SQLite asks the authorizer for."""
    disk, read = Disk(Workload.tables), set[str]()

    def note(action: int, table: str | None, *_: Any) -> int:
        if action == sqlite3.SQLITE_READ and table:
            read.add(table)
        return sqlite3.SQLITE_OK

    views = {name for (name,) in disk.rows("SELECT name FROM sqlite_schema WHERE type = 'view'")}
    triggers = [sql for (sql,) in disk.rows("SELECT sql FROM sqlite_schema WHERE type = 'trigger'")]
    sqlite3.Connection.set_authorizer(disk.connection, note)  # and every statement is prepared again
    for query in (PROGRESS, MARKS, LETTERS, EFFECTS, STATES, ECHOES, WAITING, SKIPPED):
        disk.rows(query, *[1] * ("?" in query))
    assert read - views - {"octal"} == TABLES
    bodies = [re.sub(r"(?i)\bdo update\b", "", sql.partition("BEGIN")[2]) for sql in triggers]
    hit = {table for body in bodies for table in re.findall(r"(?i)(?:insert into|update|delete from) (\w+)", body)}
    assert len(hit) > 4 and not hit & TABLES
    disk.close(somebody_is_left=True)


CORRUPTIONS: dict[str, tuple[str, str]] = {
    "an effect is lost": ("DELETE FROM effects WHERE seq = (SELECT min(seq) FROM effects)", "ledger"),
    "an effect is doubled": (
        "INSERT INTO effects (event, key, edits) SELECT event, key, edits FROM effects LIMIT 1",
        "twice",
    ),
    "progress ran ahead": ("UPDATE redrive_progress SET position = position + 1000", "fence"),
    "progress went back": ("UPDATE redrive_progress SET position = 0", "fence"),
    "the epoch went back": ("UPDATE redrive_progress SET epoch = 0", "fence"),
    "a counter is wrong": ("UPDATE redrive_progress SET applied = applied + 1", "fence"),
    "a settled event has an open letter": (
        "INSERT INTO redrive_letters (subscription, position, event_id, type, state, reason, attempts, due_at,"
        " due_set_at, delay, parked_at, touched_at)"
        " VALUES (1, 1, 'e0', 'thing', 'dead', 'permanent', 1, 0, 0, 0, 0, 0)",
        "ledger",
    ),
    "a state was changed": ("UPDATE redrive_state SET data = '{\"n\":99,\"first\":\"e0\"}'", "state"),
    "an emission is gone": ("DELETE FROM redrive_events WHERE type = 'echo'", "emission"),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_seen(name: str) -> None:
    sql, kind = CORRUPTIONS[name]
    seen = corrupted(sql, lambda workload: workload.world.process("w3"))
    assert seen.startswith((kind, "fence")), seen  # whoever did it does not own the subscription


@pytest.mark.parametrize("name", ["an effect is lost", "an effect is doubled", "a counter is wrong"])
def test_a_corruption_is_seen_even_if_the_owner_did_it(name: str) -> None:
    def owner(workload: Workload) -> Process:
        held = workload.checker.seen.members[0].owner
        return next(process for process in workload.world.workers.values() if process.owner == held)

    assert not corrupted(CORRUPTIONS[name][0], owner).startswith("fence")


def corrupted(sql: str, by: Callable[[Workload], Process]) -> str:
    """What is found when this is done to a database in which all is well."""

    class Corrupted(Workload):
        async def end(self) -> None:
            await super().end()
            assert not self.world.violation
            process = by(self)
            with process.store.transaction() as tx:
                tx.connection.execute(sql)
            assert self.world.violation, "nobody noticed"

    options = Options.of(
        5, kind="async", order="key", state=True, wraps=False, emit=True, tail=False, key_by="", faults=Faults(),
        keys=1, keyless=0.0, poison=0.0, flaky=0.0, odd=0.0, operate_every=1e6, concurrency=1,
    )  # fmt: skip
    world = World(Corrupted(options), options)
    world.run()
    return world.violation
