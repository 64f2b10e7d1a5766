"""The storage format on Postgres: made once, step by step, and never half."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive import App, failpoints
from redrive.errors import UsageError
from redrive.event import NewEvent
from redrive.store import landed
from redrive.store.postgres import migrate as module
from redrive.store.postgres.migrate import STEPS, Format, Step, found, migrate, prepare

Connection = psycopg.Connection[Any]
NEWEST = STEPS[-1].format
ALL = [step.format for step in STEPS]


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def later(tmp_path: Path) -> tuple[Step, ...]:
    """Two formats that do not exist yet."""
    third, fourth = tmp_path / "three.sql", tmp_path / "four.sql"
    third.write_text("ALTER TABLE redrive.notes ADD COLUMN colour text;", "utf-8")
    fourth.write_text("CREATE TABLE redrive.extra (n int); SELECT 1 / 0;", "utf-8")
    return (*STEPS, Step(NEWEST + 1, NEWEST, str(third)), Step(NEWEST + 2, NEWEST + 2, str(fourth)))


def test_an_empty_database_becomes_a_store_once(connection: Connection) -> None:
    assert found(connection) == Format(0, 0)
    prepare(connection, "here")
    connection.execute("INSERT INTO redrive.logs (name) VALUES ('orders')")
    prepare(connection, "here")
    assert list(migrate(connection)) == []
    assert found(connection) == Format(STEPS[-1].format, STEPS[-1].compatible_from)
    assert connection.execute("SELECT name FROM redrive.logs").fetchall() == [("orders",)]


def test_two_processes_that_begin_together_make_one_store(postgres_url: str) -> None:
    def begin(_: int) -> list[int]:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            return list(migrate(connection))

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(begin, range(4))) == [[], [], [], ALL]


def test_each_step_is_a_transaction(connection: Connection, later: tuple[Step, ...]) -> None:
    """The third is kept although the fourth fails, and nothing of the fourth is there."""
    assert list(migrate(connection)) == ALL
    with pytest.raises(psycopg.errors.DivisionByZero):
        list(migrate(connection, later))
    assert found(connection) == Format(NEWEST + 1, NEWEST)
    assert connection.execute("SELECT to_regclass('redrive.extra')").fetchone() == (None,)
    assert connection.execute("SELECT count(colour) FROM redrive.notes").fetchone() == (0,)


def test_whoever_is_killed_in_a_step_leaves_the_former_format(postgres_url: str, later: tuple[Step, ...]) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert list(migrate(connection)) == ALL
        victim = connection.info.backend_pid

        def kill(name: str) -> None:
            with psycopg.connect(postgres_url, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (victim,))

        before = failpoints.armed()
        failpoints.arm(kill)
        try:
            with pytest.raises(psycopg.OperationalError):
                list(migrate(connection, later[:-1]))
        finally:
            failpoints.arm(before)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert found(connection) == Format(NEWEST, NEWEST)
        assert list(migrate(connection, later[:-1])) == [NEWEST + 1]


def test_an_older_format_is_refused_with_the_command_to_type(
    connection: Connection, later: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(connection, "here")
    monkeypatch.setattr(module, "STEPS", later[:-1])
    refusal = f"here has storage format {NEWEST}, this redrive needs {NEWEST + 1}: run `redrive migrate`"
    with pytest.raises(UsageError, match=refusal):
        prepare(connection, "here")


def test_a_newer_format_works_if_it_says_so(connection: Connection, later: tuple[Step, ...]) -> None:
    """During a deploy the former version runs beside the new one; where it cannot, it says that it is too old."""
    list(migrate(connection, later[:-1]))
    prepare(connection, "here")
    connection.execute(f"UPDATE redrive.meta SET value = '{NEWEST + 1}' WHERE name = 'compatible_from'".encode())
    with pytest.raises(
        UsageError, match=f"here has storage format {NEWEST + 1}, this redrive knows up to {NEWEST}; upgrade"
    ):
        prepare(connection, "here")


def test_events_of_the_first_format_keep_their_versions(postgres_url: str, connection: Connection) -> None:
    """In the second log a broker's messages have landed, with versions as they were given then."""
    assert list(migrate(connection, STEPS[:1])) == [1]
    connection.execute("""INSERT INTO redrive.logs (name) VALUES ('orders'), ('redis:clicks');
        INSERT INTO redrive.events (log, id, type, key, version, schema, time_us, data) VALUES
        (1, 'o1', 'paid', 'a', 1, 1, 0, '1'), (2, 'c1', 'seen', 'a', 1, 1, 0, '2'),
        (2, 'c2', 'seen', 'b', 1, 1, 0, '3')""")
    with pytest.raises(UsageError, match=f"storage format 1, this redrive needs {NEWEST}: run `redrive migrate`"):
        prepare(connection, "here")
    assert list(migrate(connection)) == ALL[1:]
    with closing(App(postgres_url)) as app:
        assert app.log("orders").append("paid", 4, key="a", expected_version=1).version == 2
        store: Any = app.runtime.store
        with store.transaction() as tx:
            new = [NewEvent("c3", "seen", "a", 1, 0, None, b"4", None, False)]
            landed.append_new(tx.logs, tx.sql, "redis:clicks", new, is_first=True)
        assert [(e.id, e.version) for e in app.log("redis:clicks").read_key("a")] == [("c1", 1), ("c3", None)]


def test_a_role_that_may_not_make_tables_is_told_who_has_to(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        role = f"{connection.info.dbname}_guest"
        connection.execute(f'CREATE ROLE "{role}" LOGIN')
        try:
            connection.execute(f'SET ROLE "{role}"')
            with pytest.raises(UsageError, match=r"may not make .*: run `redrive migrate` once with a role"):
                prepare(connection, "here")
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f'DROP ROLE "{role}"')
