"""The one database of a simulated world: real SQLite in memory, from a prepared image, with bad blocks now and then."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import copy
from functools import cache
from typing import Any, Literal

from redrive.store.sqlite import SqliteStore
from redrive.store.sqlite.connection import ISOLATION, ROLLBACK
from redrive.store.sqlite.transaction import SqliteTx


class SickConnection(sqlite3.Connection):
    """A connection on which a chosen statement fails as it does on a full or broken disk."""

    countdown = 0  # statements until the failure; 0: healthy
    gives_up: Callable[[], None] | None = None  # what SQLite does to the transaction when it happens
    guard: Callable[..., int] | None = None  # of the world it serves at present

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asked: set[str] = set()  # statements, until somebody has looked which they are

    def execute(self, *args: Any) -> sqlite3.Cursor:
        if self.countdown:
            self._count()
        self.asked.add(args[0])
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        if self.countdown:
            self._count()
        self.asked.add(args[0])
        return super().executemany(*args)

    def set_authorizer(self, guard: Callable[..., int] | None) -> None:
        """Set but once in SQLite, which forgets how every statement is run whenever it is set."""
        if self.guard is None:
            super().set_authorizer(lambda *asked: self.guard(*asked) if self.guard else sqlite3.SQLITE_OK)
        self.guard = guard

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


class Blank:
    """What a new world finds. Its connections are lent to one world after another: a third of the time of a
    schedule went into telling SQLite again how to run the same hundred statements.
    """

    def __init__(self, tables: str, isolation: Literal["DEFERRED"] | None) -> None:
        self._image, self._isolation = _image(tables), isolation
        self._spare: list[SickConnection] = []
        with closing(self.connect()) as connection:
            self._schema = self._schema_of(connection)
            names = [name for kind, name, _ in self._schema if kind == "table"]
            self._rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}  # noqa: S608

    def connect(self) -> SickConnection:
        """A connection to a database of its own, as it is in the beginning."""
        if self._spare:
            return self._spare.pop()
        options: dict[str, Any] = {"isolation_level": self._isolation, "cached_statements": 256}
        connection = sqlite3.connect(":memory:", factory=SickConnection, **options)
        connection.deserialize(self._image)
        return connection

    def give_back(self, connection: SickConnection) -> None:
        """Its world is over. If the tables are still what they were, what is in them goes and another may have it."""
        connection.countdown, connection.guard = 0, lambda *_: sqlite3.SQLITE_OK
        connection.rollback()
        if self._schema_of(connection) != self._schema:
            connection.close()
            return
        for name, rows in self._rows.items():
            connection.execute(f"DELETE FROM {name}")  # noqa: S608
            if rows:
                connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)  # noqa: S608
        connection.commit()
        self._spare.append(connection)

    @staticmethod
    def _schema_of(connection: sqlite3.Connection) -> list[Any]:
        return connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()


@cache
def _blank(tables: str, isolation: Literal["DEFERRED"] | None) -> Blank:
    return Blank(tables, isolation)


@cache
def _store() -> SqliteStore:
    """Made once per process; each world gives it a connection of its own."""
    return SqliteStore(":memory:", inline=True)


class Disk:
    """The database, as the world sees it."""

    def __init__(self, tables: str) -> None:
        self._blank = _blank(tables, ISOLATION)
        self.connection = self._blank.connect()
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
        self.store._full.logs.ended(committed=False)  # what was remembered of it may never have been

    def close(self, *, somebody_is_left: bool = False) -> None:
        """The world is over. Who is left in it could still write: then no other world gets this connection."""
        if somebody_is_left:
            self.connection.close()
        else:
            self._blank.give_back(self.connection)

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Look at the committed state."""
        found: list[tuple[Any, ...]] = sqlite3.Connection.execute(self.connection, sql, parameters).fetchall()
        return found

    def asked(self) -> set[str]:
        """The statements since the last time."""
        asked, self.connection.asked = self.connection.asked, set()
        return asked

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
