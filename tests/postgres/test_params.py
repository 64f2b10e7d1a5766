"""`:name` and `?` become `$1` where Postgres would read a parameter, and nowhere else. The server is the judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import UsageError
from redrive.store.postgres.params import translate, translated
from redrive.testing.servers import Databases

NAMES = ("a", "b", "day", "E", "e", "été", "a_1")
# What is in quotes is made of what might be taken for something else.
PIECES = [*":?a$1'\"\\/*-; \ne[", "::", ":a", "$$", "$x$", "--", "/*", "*/", "E'"]
INSIDE = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


def _quoted(text: str) -> tuple[str, str]:
    return "'" + text.replace("'", "''") + "'", text


def _escaped(text: str) -> tuple[str, str]:
    return "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'", text


def _continued(text: str) -> tuple[str, str]:
    first, second = _escaped(text)[0], _escaped(text)[0][1:]
    return f"{first} -- it's :a\n \n{second}", text + text


def _dollared(text: str) -> tuple[str, str]:
    return f"$q${text}$q$", text  # INSIDE has no q


LITERALS = st.builds(lambda how, text: how(text), st.sampled_from([_quoted, _escaped, _continued, _dollared]), INSIDE)
COMMENTS = st.sampled_from(["", " ", "\n", "/* :a ? ' /* $$ */ \" */", "-- :a ? ' $$ \" /*\n", "/**/", " /*/**/*/ "])
VALUES = st.fixed_dictionaries(
    {name: st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5) for name in NAMES}
)
PARAMETERS = st.sampled_from(NAMES)
COLUMNS = st.lists(st.tuples(COMMENTS, st.one_of(LITERALS, PARAMETERS), COMMENTS, INSIDE), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def connection(postgres: Databases) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as found:
        yield found


def _select(columns: list[Any], spell: Callable[[str], str]) -> str:
    """A statement of these columns; a plain name stands for a parameter."""
    parts = []
    for before, column, after, label in columns:
        text = spell(column) if isinstance(column, str) else column[0]
        parts.append(f'{before} {text}::text{after} AS "x{label.replace(chr(34), chr(34) * 2)}"')
    return "SELECT " + ", ".join(parts)


def _wanted(columns: list[Any], values: dict[str, str]) -> list[str]:
    return [values[column] if isinstance(column, str) else column[1] for _, column, _, _ in columns]


@given(columns=COLUMNS, values=VALUES)
def test_the_server_reads_every_named_statement_as_we_do(
    connection: psycopg.Connection[Any], columns: list[Any], values: dict[str, str]
) -> None:
    sql = _select(columns, lambda name: f":{name}")
    statement = translated(sql, values)
    row = psycopg.RawCursor(connection).execute(statement.text, statement.bind(values)).fetchone()
    assert list(row or ()) == _wanted(columns, values)
    assert statement.single and not statement.control


@given(columns=COLUMNS, values=VALUES)
def test_the_server_reads_every_counted_statement_as_we_do(
    connection: psycopg.Connection[Any], columns: list[Any], values: dict[str, str]
) -> None:
    given = [values[column] for _, column, _, _ in columns if isinstance(column, str)]
    sql = _select(columns, lambda name: "?")
    statement = translated(sql, given)
    if given:
        row = psycopg.RawCursor(connection).execute(statement.text, statement.bind(given)).fetchone()
        assert list(row or ()) == _wanted(columns, values)
    assert statement.count == len(given)


@given(st.text(st.sampled_from(list(":?a$1'\"\\/*-; \ne[E_é")), max_size=40))
def test_any_text_is_translated_and_nothing_but_parameters_changes(sql: str) -> None:
    for named in (True, False):
        try:
            statement = translate(sql, named=named)
        except UsageError as error:
            assert "mixes" in str(error)
            continue
        if statement.count == 0 or not (statement.names or "?" in sql):
            assert statement.text == sql


@pytest.mark.parametrize(
    ("sql", "text", "names"),
    [
        ("SELECT :a::int, :b, :a", "SELECT $1::int, $2, $1", ("a", "b")),
        ("SELECT date':a'", "SELECT date':a'", ()),  # not an E'…'
        ("SELECT a$b$ + :x + $b$", "SELECT a$b$ + $1 + $b$", ("x",)),  # a$b$ is a name
        ("SELECT data ? 'a' FROM t WHERE id = :id", "SELECT data ? 'a' FROM t WHERE id = $1", ("id",)),
        ("CALL f(x := :x)", "CALL f(x := $1)", ("x",)),
        ("SELECT items[1:2]", "SELECT items[1:2]", ()),
        ("SELECT U&':a' UESCAPE '!', :b", "SELECT U&':a' UESCAPE '!', $1", ("b",)),
        ("SELECT 'never ends :a", "SELECT 'never ends $1", ("a",)),  # the server will say so
    ],
)
def test_named_parameters(sql: str, text: str, names: tuple[str, ...]) -> None:
    statement = translate(sql, named=True)
    assert (statement.text, statement.names) == (text, names)


def test_counted_parameters_follow_the_highest_number() -> None:
    assert translate("(?1, ?, ?), (?1, ?)", named=False).text == "($1, $2, $3), ($1, $4)"
    assert translate("SELECT $2, $1", named=False).count == 2


def test_what_is_missing_or_too_much_is_told_before_the_server_sees_it() -> None:
    with pytest.raises(UsageError, match=":b"):
        translated("SELECT :a, :b", {"a": 1}).bind({"a": 1})
    with pytest.raises(UsageError, match=":a"):
        translated("SELECT :a", ()).bind(())
    with pytest.raises(UsageError, match="2 parameters, 1 values"):
        translated("SELECT ?, ?", [1]).bind([1])
    with pytest.raises(UsageError, match="mixes"):
        translate("SELECT $1, ?", named=False)
    assert translated("SELECT :a", {"a": 1, "b": 2}).bind({"a": 1, "b": 2}) == [1]


@pytest.mark.parametrize(
    ("sql", "control"),
    [
        ("COMMIT", "COMMIT"),
        ("/* x */ -- y\n commit work", "COMMIT"),
        ("END", "END"),
        ("begin", "BEGIN"),
        ("START TRANSACTION", "START"),
        ("ROLLBACK", "ROLLBACK"),
        ("ROLLBACK TO SAVEPOINT mine", ""),
        ("ROLLBACK TRANSACTION TO mine", ""),
        ("PREPARE TRANSACTION 'x'", "PREPARE"),
        ("PREPARE x AS SELECT 1", ""),
        ("SAVEPOINT mine", ""),
        ("SELECT 'COMMIT'", ""),
        ("SELECT 1; COMMIT", "COMMIT"),
        (";; SELECT 'x;'; ROLLBACK; SELECT 2", "ROLLBACK"),
        ("SELECT 1; SELECT 2", ""),
    ],
)
def test_what_would_end_the_transaction_is_noticed(sql: str, control: str) -> None:
    assert translate(sql, named=True).control == control


@pytest.mark.parametrize(
    ("sql", "point"),
    [
        ("SAVEPOINT mine", ("SAVEPOINT", "mine")),
        ("/* x */ savepoint Mine;", ("SAVEPOINT", "mine")),
        ('SAVEPOINT "Mi""ne"', ("SAVEPOINT", 'Mi"ne')),
        ("SAVEPOINT savepoint", ("SAVEPOINT", "savepoint")),
        ("RELEASE savepoint", ("RELEASE", "savepoint")),
        ("RELEASE SAVEPOINT mine", ("RELEASE", "mine")),
        ("ROLLBACK TO mine", ("ROLLBACK TO", "mine")),
        ('ROLLBACK WORK TO SAVEPOINT "x"', ("ROLLBACK TO", "x")),
        ("rollback transaction to savepoint X -- y", ("ROLLBACK TO", "x")),
        ("SAVEPOINT " + "x" * 70, ("SAVEPOINT", "x" * 63)),
        ("SAVEPOINT É", ("SAVEPOINT", "É")),
        ('SAVEPOINT U&"x"', ("SAVEPOINT", "")),
        ("INSERT INTO seen VALUES (1); RELEASE mine", ("RELEASE", "mine")),
        ("ROLLBACK", None),
        ("SELECT 'SAVEPOINT x'", None),
        ("INSERT INTO release VALUES (1)", None),
    ],
)
def test_statement_about_a_savepoint_is_noticed(sql: str, point: tuple[str, str] | None) -> None:
    assert translate(sql, named=True).point == point


@pytest.mark.parametrize(
    ("sql", "single"),
    [
        ("SELECT 1; -- done", True),
        ("SELECT 1;;", True),
        (";SELECT 1", True),
        ("SELECT ';' || $$;x$$", True),
        ("SELECT 1; COMMIT", False),
    ],
)
def test_a_second_statement_is_noticed(sql: str, single: bool) -> None:
    assert translate(sql, named=True).single is single
