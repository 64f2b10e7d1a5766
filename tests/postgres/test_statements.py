"""Every statement runs on both stores with the same parameters and the same columns; the server itself is asked."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.pq import ExecStatus

from redrive.store.postgres.migrate import prepare
from redrive.store.postgres.params import translate
from redrive.store.postgres.queries import queries
from redrive.store.sql import load_queries, queries_of
from redrive.store.sqlite.migrate import STEPS
from redrive.testing.servers import Databases

PACKAGE = Path(__file__).parent.parent.parent / "src" / "redrive"
COMMON = load_queries(PACKAGE / "store" / "queries.sql")
SQLITE = queries_of(PACKAGE / "store" / "sqlite")
POSTGRES = load_queries(PACKAGE / "store" / "postgres" / "queries.sql")
TYPES = {"int8", "int4", "text", "float8", "bytea"}  # what comes back as int, str, float and bytes, as from SQLite
OTHER_TYPES = {"meta_get": {"jsonb"}, "copy_meta": {"text", "jsonb"}}  # a number or a text
# SQLite's driver knows the last row's number; a sequence is set by asking for it; who must find a row divides by it
COLUMNS_OF_THEIR_OWN = {"advance", "event_insert", "event_insert_plain", "letter_add", "operation_add", "paste_number"}


@pytest.fixture(scope="module")
def connection(postgres: Databases) -> Iterator[psycopg.Connection[Any]]:
    url = postgres.make()
    with psycopg.connect(url, autocommit=True) as connection:
        prepare(connection, url)
        yield connection
    postgres.drop(url)


def described(connection: psycopg.Connection[Any], text: str) -> tuple[int, list[str]]:
    """How many parameters the server finds, and the types of the columns."""
    done = connection.pgconn.prepare(b"", text.encode())
    assert done.status == ExecStatus.COMMAND_OK, done.error_message.decode()
    seen = connection.pgconn.describe_prepared(b"")
    types = [connection.adapters.types.get(seen.ftype(n)) for n in range(seen.nfields)]
    return seen.nparams, [kind.name if kind else "?" for kind in types]


def parameters(text: str) -> set[str]:
    named = translate(text, named=True).names
    return set(named or ()) or {str(number) for number in range(translate(text, named=False).count)}


@pytest.mark.parametrize("name", sorted(queries()))
def test_the_server_takes_every_statement(name: str, connection: psycopg.Connection[Any]) -> None:
    text = queries()[name]
    statement = translate(text, named=bool(translate(text, named=True).count))
    count, types = described(connection, statement.text)
    assert count == statement.count
    if not name.startswith("pg_"):
        assert set(types) <= OTHER_TYPES.get(name, TYPES), "a type that SQLite does not have would reach the engine"


@pytest.mark.parametrize("name", sorted(set(SQLITE) & set(POSTGRES)))
def test_other_words_have_the_same_parameters_and_columns(name: str, connection: psycopg.Connection[Any]) -> None:
    assert parameters(POSTGRES[name]) == parameters(SQLITE[name])
    if name in COLUMNS_OF_THEIR_OWN:
        return
    text = queries()[name]
    statement = translate(text, named=bool(translate(text, named=True).count))
    assert len(described(connection, statement.text)[1]) == len(sqlite_columns(name))


def sqlite_columns(name: str) -> list[str]:
    connection = sqlite3.connect(":memory:")
    for file in STEPS:
        connection.executescript((PACKAGE / "store" / "sqlite" / file).read_text("utf-8"))
    text = SQLITE[name]
    values: Any = dict.fromkeys(parameters(text), 1)
    if not translate(text, named=True).count:
        values = [1] * len(values)
        if "json_each" in text:
            values[-1] = "[1]"
    for json in ("ids", "positions"):
        if json in values:
            values[json] = "[1]"
    found = connection.execute(text, values).description or []
    connection.close()
    return [column[0] for column in found]


def test_no_statement_is_an_orphan() -> None:
    """Postgres has other words for what SQLite has, and names of its own for nothing else; all are used."""
    code = "\n".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r"""["'](\w+)["']""", code))
    begun = tuple(re.findall(r"""f"((?:events|prune|forget)_\w*)\{""", code))  # and up or down, or a table
    assert {name for name in POSTGRES if not name.startswith("pg_")} - set(SQLITE) == set()
    own = set(load_queries(PACKAGE / "store" / "sqlite" / "queries.sql"))
    assert set(COMMON) & (own | set(POSTGRES)) == set(), "what one store is told in its own words is not common"
    assert [name for name in {*SQLITE, *POSTGRES} - named if not name.startswith(begun)] == []


def test_only_what_must_differ_is_written_twice() -> None:
    assert [name for name in set(SQLITE) & set(POSTGRES) if SQLITE[name].split() == POSTGRES[name].split()] == []


def test_a_name_of_a_table_is_read_in_our_schema() -> None:
    assert queries()["log_all"] == "SELECT id, name FROM redrive.logs ORDER BY name"
    assert [text for text in queries().values() if "redrive_" in text] == []


@given(pattern=st.text("ab*?[]^-\\.!é_", max_size=8), text=st.text("abc]^-[\\.é_\n", max_size=5))
def test_a_glob_means_what_it_means_on_sqlite(connection: psycopg.Connection[Any], pattern: str, text: str) -> None:
    both = sqlite3.connect(":memory:")
    expected = both.execute("SELECT ? GLOB ?", (text, pattern)).fetchone()[0]
    both.close()
    statement = 'SELECT coalesce(%s::text COLLATE "C" ~ redrive.glob(%s), false)::int'
    assert connection.execute(statement, (text, pattern)).fetchone() == (expected,)


def test_the_end_of_the_audit_is_not_moved_by_what_was_rolled_back(connection: psycopg.Connection[Any]) -> None:
    values = [1.0, "ada", "discard", "s", "t", "r", "{}", "hash"]
    add = translate(queries()["audit_add"], named=True)
    row = dict(
        zip(("now", "who", "action", "subscription", "target", "reason", "details", "hash"), values, strict=True)
    )
    cursor = psycopg.RawCursor(connection)
    with connection.transaction(force_rollback=True):
        assert cursor.execute(add.text, add.bind(row)).fetchone() == (1,)
        assert cursor.execute(queries()["audit_highest"]).fetchone() == (1,)
    assert cursor.execute(queries()["audit_highest"]).fetchone() == (0,)
    with connection.transaction(force_rollback=True):
        assert cursor.execute(add.text, add.bind(row)).fetchone() == (1,)
        assert cursor.execute(queries()["audit_last"]).fetchone() == ("hash",)
