"""The stage of a rehearsal: a connection of its own, on which every transaction is rolled back, however it ends.

What a function does to the connection itself (a pragma, a temporary table) ends with it, and the store's count of
what it wrote, which checkpoints go by, knows nothing of it. Rows are counted by temporary triggers, which are rolled
back like everything else: a statement that fails, or a savepoint that is undone, takes its count back.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from redrive.errors import StoreError, UsageError
from redrive.store.points import Points
from redrive.store.port import Counts
from redrive.store.sqlite.connection import Connection, Guard, is_the_world, let_go, translate

if TYPE_CHECKING:
    from redrive.store.sqlite.store import SqliteStore
    from redrive.store.sqlite.transaction import SqliteTx

# Not in queries.sql: how rows are counted is this store's own affair, and no trigger takes its table as a parameter.
_COUNTS = """CREATE TEMP TABLE redrive_touched (id INTEGER PRIMARY KEY, name TEXT NOT NULL,
inserted INTEGER NOT NULL DEFAULT 0, updated INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0)"""
_NEW_TABLES = r"""SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'
AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE 'redrive\_%' ESCAPE '\'
AND name NOT IN (SELECT name FROM temp.redrive_touched)"""
_ADD = "INSERT INTO temp.redrive_touched (name) VALUES (?)"
_TRIGGER = """CREATE TEMP TRIGGER "redrive {verb} {number}" AFTER {verb} ON main."{table}"
BEGIN UPDATE redrive_touched SET {column} = {column} + 1 WHERE id = {number}; END"""
_COUNT = 'UPDATE temp.redrive_touched SET inserted = (SELECT count(*) FROM main."{table}") WHERE id = ?'
_TOUCHED = """SELECT name, inserted, updated, deleted FROM temp.redrive_touched
WHERE inserted + updated + deleted > 0 ORDER BY name"""
_VERBS = {"inserted": "INSERT", "updated": "UPDATE", "deleted": "DELETE"}


class StageGuard(Guard):
    """Notices new tables, so that their rows are counted too."""

    __slots__ = ("created",)

    open_tables = frozenset({"redrive_touched"})

    def __init__(self, connection: Connection, points: Points) -> None:
        super().__init__(connection, points)
        self.created = False

    def __call__(self, action: int, first: str | None, *rest: Any) -> int:
        if action == sqlite3.SQLITE_CREATE_TABLE:
            self.created = True
        return super().__call__(action, first, *rest)


class SqliteStage(AbstractContextManager["SqliteStage"]):
    """Where functions may write what they like, because nothing of it stays."""

    def __init__(self, store: SqliteStore, tx: SqliteTx) -> None:
        self._store, self._tx = store, tx
        self._is_busy = False
        self._guard = tx.guard = StageGuard(tx.connection, tx.points)
        tx.connection.set_authorizer(self._guard)
        tx.be_careful()  # gives a function's savepoints names of their own
        tx.is_careful = False  # `has_ended` says whether a call has ended the transaction
        tx.connection.execute("PRAGMA busy_timeout = 0")  # the store waits for the write lock, see _begin
        tx.connection.execute("PRAGMA temp_store = MEMORY")

    def __exit__(self, *_: object) -> None:
        if not self._is_busy:  # else a function hangs there, in a thread that ends with the process
            let_go(self._tx.connection)

    @contextmanager
    def acting(self) -> Iterator[SqliteTx]:
        """The write lock, until the end of the block; then everything is as it was."""
        store, tx, me = self._store, self._tx, threading.get_ident()
        if store.inside_transaction():
            raise UsageError("already inside a transaction of this store: rehearse outside of it")
        with store._mutex:
            store._holder = me
            try:
                store._begin(tx)
                store._current, self._is_busy = tx, True
                yield tx
            except sqlite3.Error as error:
                if is_the_world(error):
                    raise translate(error, store.path) from error
                raise StoreError(f"{store.path}: the rehearsal cannot go on: {error}") from error
            finally:
                store._rollback(tx)
                store._holder = store._current = None
                self._is_busy = False

    def watch(self) -> None:
        """Count the rows of every table of the user's from here on, in this transaction."""
        self._tx.connection.execute(_COUNTS)
        self._watch_new()

    def notice(self) -> None:
        """A function has run: a table that it made has as many new rows as it holds, and is watched from here on."""
        if self._guard.created:
            for number, quoted in self._watch_new():
                self._tx.connection.execute(_COUNT.format(table=quoted), (number,))

    def _watch_new(self) -> list[tuple[int, str]]:
        """Put triggers on tables that have none, and say which."""
        connection, found = self._tx.connection, []
        for (name,) in connection.execute(_NEW_TABLES).fetchall():
            number, quoted = connection.execute(_ADD, (name,)).lastrowid, name.replace('"', '""')
            assert number is not None
            for column, verb in _VERBS.items():
                connection.execute(_TRIGGER.format(verb=verb, column=column, number=number, table=quoted))
            found.append((number, quoted))
        self._guard.created = False
        return found

    def touched(self) -> dict[str, Counts]:
        """Rows inserted, updated and deleted so far in this transaction, by table."""
        return {name: Counts(*counts) for name, *counts in self._tx.connection.execute(_TOUCHED).fetchall()}

    @property
    def has_ended(self) -> bool:
        """Has a function made SQLite end the transaction (`INSERT OR ROLLBACK`)?"""
        return not self._tx.connection.in_transaction

    def is_the_world(self, error: BaseException) -> bool:
        """Is it the disk or the lock, rather than a statement?"""
        return (isinstance(error, StoreError) and error.store is self._store) or is_the_world(error)
