"""Transactions that a statement may end: `INSERT OR ROLLBACK`, `ON CONFLICT ROLLBACK`, `RAISE(ROLLBACK, …)`.

SQLite takes back everything then, savepoints and all, and raises an error as any other. A function that catches it and
goes on would write outside of any transaction, or begin another one by `SAVEPOINT`. So a store in which there is such a
statement is careful: what is asked for after the end is refused, and each call is looked at, to know whose it was.
All others pay nothing for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

from redrive.context import Again, Ended
from redrive.errors import StoreError, UsageError
from redrive.store.points import PREFIX
from redrive.store.port import Function
from redrive.store.sqlite.connection import Connection, Lent, is_the_world, point_of

# Not in queries.sql: these are about the user's own tables and triggers.
_ENDING = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE sql LIKE '%ROLLBACK%')"


class Careful(Lent):
    """A connection that remembers what ended the transaction, and does nothing more in it."""

    def cursor(self, factory: Any = None) -> Any:
        """As the driver's."""
        return super().cursor(_Cursor if factory is None else factory)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """As the driver's."""
        return self.run(super().execute, sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Any:
        """As the driver's."""
        return self.run(super().executemany, sql, rows)

    def executescript(self, script: str, /) -> Any:
        """As the driver's, which commits first: the guard refuses that, unless there is nothing to commit."""
        return self.run(super().executescript, script)

    def run(self, way: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        """Refuse what follows the end; else run it, and remember its error if that has ended the transaction."""
        if self.trouble is not None:
            raise StoreError(f"SQLite ended the transaction by itself ({self.trouble}); nothing was written")
        if self.points is not None and PREFIX not in sql and (point := point_of(sql)) is not None:
            sql = self.points.renamed(*point)
        try:
            return way(sql, *arguments)
        except sqlite3.Error as error:
            if self.is_begun and not self.in_transaction:
                self.trouble = error
            raise


class _Cursor(sqlite3.Cursor):
    """A cursor of such a connection."""

    connection: Careful

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.connection.run(super().execute, sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Any:
        return self.connection.run(super().executemany, sql, rows)

    def executescript(self, script: str, /) -> Any:
        return self.connection.run(super().executescript, script)


def watched(connection: Connection, function: Function) -> Function:
    """A function whose calls are looked at: one that has ended the transaction is told by `Ended`, with its error."""
    assert isinstance(connection, Careful)
    forget = connection.points.forget if connection.points is not None else None

    def call(subject: Any, tx: Any) -> None:
        raised: BaseException | None = None
        if forget is not None:
            forget()
        try:
            function(subject, tx)
        except Again:
            raise
        except BaseException as error:
            if connection.trouble is None and connection.in_transaction:
                raise
            raised = error
        else:
            if connection.trouble is None and connection.in_transaction:
                return
        trouble = connection.trouble
        for one in (trouble, raised):
            if one is not None and is_the_world(one):
                raise one
        raise Ended(subject, _passed_over(trouble) if raised is None else raised)

    return call


def _passed_over(trouble: BaseException | None) -> BaseException:
    """What is raised for a function that went on after the end as if nothing were."""
    error = UsageError(
        f"a statement has ended the transaction ({trouble or 'ROLLBACK'}) and was passed over, but nothing is left of "
        "what was done before it: let the error be raised, or use ABORT instead of ROLLBACK"
    )
    error.__cause__ = trouble
    return error


def has_ending(connection: Connection) -> bool:
    """Is there a table or a trigger that may end a transaction?"""
    return bool(connection.execute(_ENDING).fetchone()[0])
