"""One SQLite connection as the store's transaction: facets, savepoints, and how a function is called in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from redrive.store.books import Books
from redrive.store.guards import Guards
from redrive.store.keyed import Keyed
from redrive.store.letters import Letters
from redrive.store.log import Logs
from redrive.store.points import POINT, Points
from redrive.store.port import Function
from redrive.store.progress import Progress
from redrive.store.sql import Sql, queries_of
from redrive.store.sqlite.careful import Careful, watched
from redrive.store.sqlite.connection import Connection, Guard, Lent, Ours, close_unread, is_about_unread
from redrive.store.sqlite.hold import Hold


@cache
def queries() -> dict[str, str]:
    """The named statements of this backend."""
    return queries_of(Path(__file__).parent)


class SqliteTx:
    """One connection with its facets; the same object serves every transaction on it."""

    is_careful = False  # may a statement end the transaction? see careful.py
    is_lent = False  # to a program that is not called again, until the end of this transaction
    must_repeat = False  # that was noticed in the middle of it, and whoever was told has passed over it

    def __init__(self, connection: Connection) -> None:
        self.use(connection)

    def use(self, connection: Connection) -> None:
        """Begin on this connection, with nothing remembered."""
        self.connection = connection
        self._bind()
        self.hold = Hold(connection)
        self.points = Points()
        self.guard = Guard(connection, self.points)
        if isinstance(connection, Lent):  # else it is the simulator's
            connection.points = self.points
        connection.set_authorizer(self.guard)
        self.sql = Sql(Ours(connection, self.points), queries())
        self.logs = Logs(self.sql)
        self.progress = Progress(self.sql)
        self.letters = Letters(self.sql)
        self.keyed = Keyed(self.sql)
        self.guards = Guards(self.sql)
        self.books = Books(self.sql)
        if self.is_careful:
            self.be_careful()

    def _bind(self) -> None:
        self.execute: Callable[..., Any] = self.connection.execute
        self.executemany: Callable[..., Any] = self.connection.executemany

    def be_careful(self, *, yes: bool = True) -> None:
        """From here on the connection refuses what follows the end of a transaction; or no more."""
        connection = self.connection
        if isinstance(connection, Lent):  # else it is the simulator's
            connection.__class__ = Careful if yes else Lent
            self.points.forget()
            connection.is_begun, connection.trouble, self.is_careful = connection.in_transaction, None, yes
            self._bind()

    def lend(self, *, ends: bool = False, is_careful: bool = False) -> None:
        """For the rest of the transaction with care: what the program will ask for nobody knows."""
        self.is_lent = not ends
        self.be_careful(yes=not ends or is_careful)

    def control(self, statement: str) -> None:
        """BEGIN, COMMIT or ROLLBACK, which the guard allows nobody else."""
        self.guard.engine, self.guard.has_refused = True, False
        try:
            if self.is_careful:
                self._control_carefully(statement)
            else:
                self._run(statement)
        except sqlite3.Error as error:
            if self.guard.is_interrupt(error):
                raise KeyboardInterrupt from error
            raise
        finally:
            self.guard.engine = False

    def _control_carefully(self, statement: str) -> None:
        """What ended a transaction is remembered until the next one, or the end that we ourselves make of it."""
        connection: Any = self.connection
        connection.is_begun, connection.trouble = False, None
        self._run(statement)
        connection.is_begun = connection.in_transaction

    def _run(self, statement: str) -> None:
        """A statement of ours that a function's unread rows must not prevent: its cursor may live in a traceback."""
        try:
            self.connection.execute(statement)
        except sqlite3.OperationalError as error:
            if not is_about_unread(error):
                raise
            close_unread(self.connection)
            self.connection.execute(statement)

    def checked(self, function: Function) -> Function:
        """A statement that fails leaves the transaction as it was, or ends it: who catches that may go on."""
        return watched(self.connection, function) if self.is_careful else function

    def strict(self, function: Function) -> Function:
        """Foreign keys are looked at after each call, if they are on: what is broken and was not before."""
        if not self.connection.execute("PRAGMA foreign_keys").fetchone()[0]:
            return function

        def call(subject: Any, tx: Any) -> None:
            former = self._broken()
            function(subject, tx)
            for table, row, parent, _ in self._broken() - former:
                raise sqlite3.IntegrityError(f"FOREIGN KEY constraint failed: row {row} of {table} refers to {parent}")

        return call

    def _broken(self) -> set[Any]:
        return set(self.connection.execute("PRAGMA foreign_key_check").fetchall())

    def pipelined(self, function: Function) -> Function:
        """As `checked`: nobody has to be waited for."""
        return watched(self.connection, function) if self.is_careful else function

    server: float | None = None  # there is none

    calls = 0  # not counted: of those whose statements are held, nobody asks which it was

    def takes_back(self, error: BaseException) -> bool:
        """Is nothing left of the last call, which raised? Not if its statements were not held."""
        return self.hold.takes_back(error)

    def answers(self, *, late: bool = False) -> int | None:
        """All are known, but for statements that are held."""
        return self.hold.answers()

    def savepoint(self) -> None:
        """Remember this point: `keep` forgets it, `undo` goes back to it (and keeps it)."""
        self.hold.run()
        self.points.forget()
        self._run(f"SAVEPOINT {POINT}")

    def keep(self) -> None:
        """What happened since the savepoint stays."""
        self.hold.run()
        self._run(f"RELEASE {POINT}")

    def undo(self) -> None:
        """What happened since the savepoint is gone."""
        self.hold.drop()
        self._run(f"ROLLBACK TO {POINT}")
        self.logs.ended(committed=False)  # a log that was created since is gone too, and its number will be another's
