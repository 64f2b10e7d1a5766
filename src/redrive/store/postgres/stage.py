"""The stage of a rehearsal: a connection of its own, on which every transaction is rolled back, however it ends.

The server itself counts the rows that a transaction writes. It counts those that were undone, too, so what was counted
between a savepoint and going back to it is taken off again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import psycopg

from redrive.errors import StoreError, UsageError
from redrive.store.port import Counts
from redrive.store.postgres.connection import Connection, is_the_world, translated_error
from redrive.store.postgres.transaction import PostgresTx

if TYPE_CHECKING:
    from redrive.store.postgres.store import PostgresStore

Seen = Counter[tuple[str, int]]  # rows by table and by what was done: 0 inserted, 1 updated, 2 deleted

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"


class StageTx(PostgresTx):
    """One that knows how many rows were written and undone."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.forget()

    def forget(self) -> None:
        """A new transaction."""
        self.watching = False
        self.discount: Seen = Counter()  # counted before we watched, or undone since
        self._points: list[Seen] = []

    def watch(self) -> None:
        """Count from here on."""
        self.discount, self.watching = self.look(), True

    def look(self) -> Seen:
        """What the server has counted in this transaction."""
        rows = self.sql.all("pg_touched")
        return Counter({(name, verb): count for name, *counts in rows for verb, count in enumerate(counts)})

    def savepoint(self) -> None:
        """Remember this point, and what was counted up to it."""
        super().savepoint()
        self._pipe.drain()
        self._points.append(self.look() if self.watching else Counter())

    def keep(self) -> None:
        """What happened since the savepoint stays."""
        super().keep()
        self._pipe.drain()  # a function may have released it: that is to be known here
        self._points.pop()

    def undo(self) -> None:
        """What happened since the savepoint is gone, and does not count."""
        super().undo()
        self._pipe.drain()
        if self.watching:
            now = self.look()
            self.discount += now - self._points[-1]
            self._points[-1] = now


class PostgresStage(AbstractContextManager["PostgresStage"]):
    """Where functions may write what they like, because nothing of it stays."""

    def __init__(self, store: PostgresStore, connection: Connection) -> None:
        self._store, self._tx = store, StageTx(connection)
        self._is_busy = False

    def __exit__(self, *_: object) -> None:
        if not self._is_busy:  # else a function hangs there, in a thread that ends with the process
            self._tx.connection.close()

    @contextmanager
    def acting(self) -> Iterator[StageTx]:
        """A transaction, until the end of the block; then everything is as it was."""
        store, tx, me = self._store, self._tx, threading.get_ident()
        if store.inside_transaction():
            raise UsageError("already inside a transaction of this store: rehearse outside of it")
        try:
            tx.control(BEGIN)
            tx.forget()
            store._held[me], self._is_busy = tx, True
            yield tx
        except psycopg.Error as error:
            if is_the_world(error):
                raise translated_error(error, store.url) from error
            raise StoreError(f"{store.url}: the rehearsal cannot go on: {error}") from error
        finally:
            tx.rollback()
            store._held.pop(me, None)
            self._is_busy = False

    def watch(self) -> None:
        """Count the rows of every table of the user's from here on, in this transaction."""
        self._tx.watch()

    def notice(self) -> None:
        """A function has run: the server knows the tables that it made."""

    def touched(self) -> dict[str, Counts]:
        """Rows inserted, updated and deleted so far in this transaction, by table."""
        seen = self._tx.look() - self._tx.discount
        names = sorted({name for name, _ in seen})
        return {name: Counts(seen[name, 0], seen[name, 1], seen[name, 2]) for name in names}

    @property
    def has_ended(self) -> bool:
        """Has a function made the server end the transaction?"""
        return not self._tx.is_open

    def is_the_world(self, error: BaseException) -> bool:
        """Is it the server or the network, rather than a statement?"""
        return (isinstance(error, StoreError) and error.store is self._store) or is_the_world(error)
