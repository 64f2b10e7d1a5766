"""The one database of a simulated world: real SQLite in memory, from a prepared image, with bad blocks now and then."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import copy
from functools import cache
from typing import Any

from redrive.store.sqlite import SqliteStore
from redrive.store.sqlite.connection import ISOLATION, ROLLBACK
from redrive.store.sqlite.store import SqliteTx


class SickConnection(sqlite3.Connection):
    """A connection on which a chosen statement fails as it does on a full or broken disk."""

    countdown = 0  # statements until the failure; 0: healthy
    gives_up: Callable[[], None] | None = None  # what SQLite does to the transaction when it happens

    def execute(self, *args: Any) -> sqlite3.Cursor:
        if self.countdown:
            self._count()
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        if self.countdown:
            self._count()
        return super().executemany(*args)

    def _count(self) -> None:
        self.countdown -= 1
        if self.countdown == 0:
            if self.gives_up is not None:
                self.gives_up()
            error = sqlite3.OperationalError("simulated: database or disk is full")
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
            raise error


@cache
def _image(tables: str) -> bytes:
    """A database with our schema and the workload's tables, made once per process."""
    store = SqliteStore(":memory:", inline=True)
    with store.transaction() as tx:
        for statement in filter(None, tables.split(";")):
            tx.connection.execute(statement)
    made: bytes = store._full.connection.serialize()
    store.close()
    return made


@cache
def _store() -> SqliteStore:
    """Made once per process; each world gives it a connection of its own."""
    return SqliteStore(":memory:", inline=True)


class Disk:
    """The database, as the world sees it."""

    def __init__(self, tables: str) -> None:
        self.connection = sqlite3.connect(
            ":memory:", isolation_level=ISOLATION, cached_statements=256, factory=SickConnection
        )
        self.connection.deserialize(_image(tables))
        self.store = copy(_store())
        self.store._full = self.store._normal = SqliteTx(self.connection)

    def picture(self) -> bytes:
        """All that is stored now."""
        return self.connection.serialize()

    def power_returns(self, picture: bytes) -> None:
        """What was on the disk, and nothing else. Copied page by page: `deserialize` leaves a stale schema behind."""
        with closing(sqlite3.connect(":memory:")) as before:
            before.deserialize(picture)
            before.backup(self.connection)
        self.store._full.logs.forget()

    def close(self) -> None:
        """The world is over."""
        self.connection.close()

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Look at the committed state."""
        found: list[tuple[Any, ...]] = sqlite3.Connection.execute(self.connection, sql, parameters).fetchall()
        return found

    @contextmanager
    def failing_midway(self, after: int, rolls_back: bool) -> Iterator[None]:
        """After so many statements one fails; SQLite may roll back the whole transaction by itself. 0: none fails."""
        self.connection.gives_up = self._roll_back if rolls_back else None
        self.connection.countdown = after
        try:
            yield
        finally:
            self.connection.countdown = 0

    def _roll_back(self) -> None:
        self.store._full.control(ROLLBACK)
