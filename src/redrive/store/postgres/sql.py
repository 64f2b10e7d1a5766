"""Named statements on a Postgres connection: those of SQLite, but for the ones that need other words here.

`redrive_x` is read as `redrive.x`, and parameters get numbers, when a statement is first needed. They run on a cursor
of their own, on which every int is a bigint: a statement has one plan, however large its numbers are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import psycopg
from psycopg.adapt import Transformer
from psycopg.rows import tuple_row
from psycopg.types import numeric

from redrive.errors import EventError
from redrive.store.postgres.connection import Connection, RawNoting, is_nul, note
from redrive.store.postgres.params import Statement, translate
from redrive.store.postgres.queries import queries
from redrive.store.sql import Params, Row, Sql

_OPENING = frozenset(("fence", "pg_append_lock"))  # what most transactions begin with
NUL = "Postgres cannot store U+0000 in a text: leave it out of keys, ids and names"


class _Statements(dict[str, Statement]):
    """Each is translated when it is first needed: all of them take longer than a command that needs ten."""

    def __missing__(self, name: str) -> Statement:
        text = queries()[name]
        named = translate(text, named=True)
        made = self[name] = named if named.count else translate(text, named=False)
        return made


@cache
def statements() -> Mapping[str, Statement]:
    """The statements by name."""
    return _Statements()


class _Number(numeric.NumericBinaryLoader):
    """A sum or a time as Python's own number."""

    def load(self, data: Any) -> Any:
        found = super().load(data)
        return int(found) if found == found.to_integral_value() else float(found)


class PostgresSql(Sql):
    """Run named statements on one connection."""

    __slots__ = ("_cursor", "_statements")

    is_far = True

    def __init__(self, connection: Connection) -> None:
        super().__init__(cast(Any, connection), {})
        self._statements = statements()
        self._cursor = RawNoting(connection, row_factory=tuple_row)
        self._cursor.format = psycopg.pq.Format.BINARY
        self._cursor.adapters.register_dumper(int, numeric.Int8Dumper)
        self._cursor.adapters.register_loader("numeric", _Number)

    def _execute(self, name: str, params: Params) -> RawNoting:
        statement, cursor = self._statements[name], self._cursor
        try:
            cursor.execute(statement.text, statement.bind(params))
        except psycopg.Error as error:
            if is_nul(error):
                raise EventError(NUL) from error
            raise
        return cursor

    def one(self, name: str, params: Params = ()) -> Row | None:
        """The only row, or None."""
        if name in _OPENING and getattr(self._cursor.connection, "unsaid", False):  # a user's own has nothing unsaid
            return self._open(name, params)
        return self._execute(name, params).fetchone()

    def _open(self, name: str, params: Params) -> Row | None:
        """The first statement of a transaction, said together with how it begins. Its parameters are numbers."""
        statement, connection = self._statements[name], cast(Connection, self._cursor.connection)
        numbers = [int(value) for value in statement.bind(params)]
        script = re.sub(r"\$(\d+)", lambda match: str(numbers[int(match[1]) - 1]), statement.text)
        try:
            with connection.lock:
                result = connection.say(script)
        except psycopg.Error as error:
            note(connection, error)
            raise
        loader = Transformer(connection)
        loader.set_pgresult(result)
        return loader.load_row(0, tuple) if result.ntuples else None

    def all(self, name: str, params: Params = ()) -> list[Row]:
        """All rows."""
        return self._execute(name, params).fetchall()

    def each(self, name: str, params: Params = ()) -> Iterable[Row]:
        """All rows, which are here already."""
        return self.all(name, params)

    def run(self, name: str, params: Params = ()) -> int:
        """Execute and say how many rows changed; the caller checks the number."""
        return self._execute(name, params).rowcount

    def add(self, name: str, params: Params) -> int:
        """Insert one row and return its key."""
        row = self._execute(name, params).fetchone()
        assert row is not None
        return int(row[0])

    def add_all(self, name: str, rows: Sequence[Row]) -> list[int]:
        """Insert rows in order, by a statement that takes a list for each column, and return their keys."""
        return [key for (key,) in self._execute(name, _columns(rows)).fetchall()] if rows else []

    add_each = add_all

    def put_all(self, name: str, rows: Sequence[Row]) -> int:
        """Insert rows in order, by such a statement that leaves out what is there already; how many were inserted."""
        count: int = self._execute(name, _columns(rows)).rowcount if rows else 0
        return count

    def insert(self, name: str, rows: Sequence[Row]) -> None:
        """Insert rows in order, by a statement that takes a list for each column."""
        if rows:
            self._execute(name, _columns(rows))

    def claim(self, logs: Iterable[int]) -> None:
        """Wait until nobody else appends to these logs; in the order of their numbers, so that there is no ring."""
        for log in sorted(set(logs)):
            self.one("pg_append_lock", (log,))

    def many(self, name: str, rows: Iterable[Params]) -> int:
        """Execute once per row; how many rows changed in all."""
        statement, cursor = self._statements[name], self._cursor
        values = [statement.bind(row) for row in rows]
        if not values:
            return 0
        try:
            cursor.executemany(statement.text, values)
        except psycopg.Error as error:
            if is_nul(error):
                raise EventError(NUL) from error
            raise
        return cursor.rowcount


def _columns(rows: Sequence[Row]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
