"""Named statements on a Postgres connection: those of SQLite, but for the ones that need other words here.

`redrive_x` is read as `redrive.x`, and parameters get numbers, when a statement is first needed. They run on a cursor
of their own, on which every int is a bigint: a statement has one plan, however large its numbers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

import psycopg
from psycopg import abc
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row
from psycopg.types import numeric

from redrive.errors import EventError
from redrive.store.postgres.connection import Connection, RawNoting, is_nul
from redrive.store.postgres.params import Statement, translate
from redrive.store.postgres.pipe import Pipe, Sent
from redrive.store.postgres.queries import queries
from redrive.store.sql import Params, Put, Row, Sql

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

    __slots__ = ("_cursor", "_pipe", "_statements", "_transformer")

    is_far = True

    def __init__(self, connection: Connection) -> None:
        super().__init__(cast(Any, connection), {})
        self._statements = statements()
        self._pipe: Pipe | None = getattr(connection, "pipe", None)  # a user's own has none
        self._cursor = RawNoting(connection, row_factory=tuple_row)
        self._cursor.format = psycopg.pq.Format.BINARY
        self._cursor.adapters.register_dumper(int, numeric.Int8Dumper)
        self._cursor.adapters.register_loader("numeric", _Number)
        self._transformer = Transformer(self._cursor)

    def _execute(self, name: str, params: Params) -> Answer:
        statement = self._statements[name]
        try:
            sent = self._put(statement, params)
            if sent is not None:
                assert self._pipe is not None
                return Answer(self._pipe.answer(sent), self._transformer)
            return cast(Answer, self._cursor.execute(statement.text, statement.bind(params)))
        except psycopg.Error as error:
            if is_nul(error):
                raise EventError(NUL) from error
            raise

    def _put(self, statement: Statement, params: Params, otherwise: BaseException | None = None) -> Sent | None:
        """Send a statement, whose answer is looked at by whoever waits next; None: it cannot be sent this way."""
        if self._pipe is None:
            return None
        values, transformer = statement.bind(params), self._transformer
        if not values:
            return self._pipe.put((statement.text, ()), ((), None), otherwise)
        try:
            dumped = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
        except psycopg.Error as error:
            if is_nul(error):
                raise EventError(NUL) from error
            raise
        return self._pipe.put((statement.text, transformer.types or ()), (dumped, transformer.formats), otherwise)

    def one(self, name: str, params: Params = ()) -> Row | None:
        """The only row, or None."""
        return self._execute(name, params).fetchone()

    def all(self, name: str, params: Params = ()) -> list[Row]:
        """All rows."""
        return self._execute(name, params).fetchall()

    def each(self, name: str, params: Params = ()) -> Iterable[Row]:
        """All rows, which come with the answer to whatever is asked next."""
        sent = self._put(self._statements[name], params)
        return self.all(name, params) if sent is None else self._rows(sent)

    def _rows(self, sent: Sent) -> Iterator[Row]:
        assert self._pipe is not None
        yield from Answer(self._pipe.answer(sent), self._transformer).fetchall()

    def run(self, name: str, params: Params = (), otherwise: BaseException | None = None) -> int:
        """Execute and say how many rows changed; the caller checks the number.

        `otherwise`: one row must, and the statement is such that the server refuses to go on if it is not so.
        """
        if otherwise is not None and self._put(self._statements[name], params, otherwise) is not None:
            return 1  # as far as is known
        count = self._execute(name, params).rowcount
        if otherwise is not None and count != 1:
            raise otherwise
        return count

    def add(self, name: str, params: Params) -> int:
        """Insert one row and return its key."""
        row = self._execute(name, params).fetchone()
        assert row is not None
        return int(row[0])

    def add_all(self, name: str, rows: Sequence[Row]) -> list[int]:
        """Insert rows in order, by a statement that takes a list for each column, and return their keys."""
        return [key for (key,) in self._execute(name, _columns(rows)).fetchall()] if rows else []

    def put_all(self, name: str, rows: Sequence[Row], shared: Row = ()) -> Put:
        """Insert rows in order, by such a statement that leaves out what is there already."""
        return Put(self._execute(name, _columns(rows)).rowcount if rows else 0, None)

    def insert(self, name: str, rows: Sequence[Row]) -> None:
        """Insert rows in order, by a statement that takes a list for each column; nobody has to wait for it."""
        if rows and self._put(self._statements[name], _columns(rows)) is None:
            self._execute(name, _columns(rows))

    def claim(self, logs: Iterable[int]) -> None:
        """Wait until nobody else appends to these logs; in the order of their numbers, so that there is no ring."""
        for log in sorted(set(logs)):
            if self._put(self._statements["pg_append_lock"], (log,)) is None:
                self._execute("pg_append_lock", (log,))

    def many(self, name: str, rows: Iterable[Params]) -> int:
        """Execute once per row; how many rows changed in all."""
        statement, cursor, pipe, rows = self._statements[name], self._cursor, self._pipe, list(rows)
        if not rows:
            return 0
        try:
            sent = [self._put(statement, row) for row in rows[:1]]
            if pipe is not None and sent[0] is not None:
                sent += [self._put(statement, row) for row in rows[1:]]
                return sum(pipe.answer(one).command_tuples or 0 for one in sent if one is not None)
            cursor.executemany(statement.text, [statement.bind(row) for row in rows])
        except psycopg.Error as error:
            if is_nul(error):
                raise EventError(NUL) from error
            raise
        return cursor.rowcount


class Answer:
    """What a statement returned, as a cursor would tell it."""

    __slots__ = ("_result", "_transformer")

    def __init__(self, result: PGresult, transformer: abc.Transformer) -> None:
        self._result, self._transformer = result, transformer

    @property
    def rowcount(self) -> int:
        """How many rows it changed, or found."""
        return self._result.command_tuples or 0

    def fetchone(self) -> Row | None:
        """The first row."""
        if not self._result.ntuples:
            return None
        self._transformer.set_pgresult(self._result)
        return self._transformer.load_row(0, tuple)

    def fetchall(self) -> list[Row]:
        """All rows."""
        if not self._result.ntuples:
            return []
        self._transformer.set_pgresult(self._result)
        return self._transformer.load_rows(0, self._result.ntuples, tuple)


def _columns(rows: Sequence[Row]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
