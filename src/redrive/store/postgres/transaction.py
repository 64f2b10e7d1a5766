"""One Postgres connection as the store's transaction: facets, users' statements, savepoints, and how it ends."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn

from redrive.errors import CommitRefused, CommitUnknown, StoreError, UsageError
from redrive.store import points
from redrive.store.books import Books
from redrive.store.guards import Guards
from redrive.store.keyed import Keyed
from redrive.store.letters import Letters
from redrive.store.log import Logs
from redrive.store.port import Function
from redrive.store.postgres.connection import Connection, RawNoting, is_the_world, point_of
from redrive.store.postgres.params import Statement, translated
from redrive.store.postgres.pipe import Pipe, Sent
from redrive.store.postgres.sql import PostgresSql
from redrive.store.progress import Progress
from redrive.store.sieve import NoSieve
from redrive.store.spans import NoSpans
from redrive.store.sql import Sql

ENDED = "the transaction was ended from within; nothing more was written"
FAILED = "a statement failed and was passed over, but Postgres refuses whatever follows it"
SAVEPOINT = "to go on after an error, put the statement into `with tx.connection.transaction():`"

# Deferred constraints are checked and, by going back, deferred again. Refused: the savepoint of the caller's is undone.
CHECK = f"SAVEPOINT {points.CHECK}; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO {points.CHECK}; RELEASE {points.CHECK}"


class PostgresTx:
    """One connection with its facets; the same object serves every transaction on it."""

    hold = None  # the pipe does
    is_careful, lend = False, None  # no statement ends a transaction here

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._pipe = connection.pipe = Pipe(connection)
        self.points = connection.points = points.Points()
        self.sql: Sql = PostgresSql(connection)
        self.logs = Logs(self.sql, NoSpans(self.sql))
        self.progress = Progress(self.sql)
        self.letters = Letters(self.sql, NoSieve(self.sql))
        self.keyed = Keyed(self.sql)
        self.guards = Guards(self.sql)
        self.books = Books(self.sql)

    def execute(self, sql: str, params: Any = (), /) -> Any:
        """Run a user's statement: `:name` parameters from a mapping, `?` or `$1` from a sequence."""
        statement = translated(sql, params)
        if statement.is_special:
            text = self._allowed(statement)
            if statement.point is not None:
                return RawNoting(self.connection).execute(text)
        values = statement.bind(params)
        take = self._pipe.take
        if take is not None and statement.quiet and (sent := take(statement.text, values)) is not None:
            return sent
        return RawNoting(self.connection).execute(statement.text, values)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Any:
        """Run a user's statement once for each of these parameters, in few round trips."""
        many, cursor = list(rows), RawNoting(self.connection)
        if many:
            statement = translated(sql, many[0])
            if statement.is_special:
                self._allowed(statement)
            cursor.executemany(statement.text, [statement.bind(row) for row in many])
        return cursor

    def checked(self, function: Function) -> Function:
        """After an error the server refuses whatever follows: one that was passed over fails the call that made it."""
        pipe, call, forget = self._pipe, self._watched(function), self.points.forget

        def patient(subject: Any, tx: Any) -> None:
            forget()
            pipe.begin_asking()
            try:
                call(subject, tx)
            finally:
                pipe.take = None

        return patient

    def pipelined(self, function: Function) -> Function:
        """The same for a function whose statements are sent without waiting for each, until `answers`."""
        pipe, call, forget = self._pipe, self._watched(function), self.points.forget
        pipe.begin()

        def hasty(subject: Any, tx: Any) -> None:
            forget()
            pipe.begin_call()
            try:
                call(subject, tx)
            except BaseException:
                pipe.take_back()
                raise
            pipe.end_call()

        return hasty

    def _allowed(self, statement: Statement) -> str:
        """A user's statement: one at a time, and none that ends the transaction."""
        if statement.control or not statement.single:
            raise UsageError(
                f"{statement.control or 'a second statement'} is not for tx.execute: it takes one statement at a time, "
                "and redrive itself commits"
            )
        self.points.check_tables(statement.touched)
        return statement.text if statement.point is None else point_of(self.connection, statement)

    def _watched(self, function: Function) -> Function:
        pgconn = self.connection.pgconn

        def call(subject: Any, tx: Any) -> None:
            function(subject, tx)
            if pgconn.transaction_status == TransactionStatus.INERROR:
                raise self._spoilt()

        return call

    def strict(self, function: Function) -> Function:
        """Deferred constraints are checked after each call; one that is broken is the call's own error."""

        def call(subject: Any, tx: Any) -> None:
            function(subject, tx)
            self._pipe.drain()
            if self.connection.status == TransactionStatus.INTRANS:  # else something else is wrong, and will be told
                self.control(CHECK)

        return call

    @property
    def calls(self) -> int:
        """How many calls were made of what `pipelined` gave last."""
        return self._pipe.calls

    @property
    def takes_back(self) -> Callable[[BaseException], bool]:
        """Is nothing left of the last call, which raised? That was taken back, if it was held, when it raised."""
        return lambda error: self._pipe.is_undone

    def answers(self, *, late: bool = False) -> int | None:
        """Wait for what was sent, or with the next answer; the number of the call whose statement failed, from 0."""
        if late and self._pipe.is_open and self._pipe.failed is None:
            self._pipe.is_trusting = True
            return None
        self._pipe.drain()
        self._pipe.raise_if_the_world()
        return None if self._pipe.failed is None else self._pipe.failed.call

    def _spoilt(self) -> Exception:
        """What to raise where an error was passed over."""
        trouble = self.connection.trouble
        if is_the_world(trouble):
            assert isinstance(trouble, psycopg.Error)
            return trouble
        spoilt = UsageError(f"{FAILED} ({trouble}); {SAVEPOINT}")
        spoilt.__cause__ = trouble
        return spoilt

    @property
    def server(self) -> float | None:
        """When the server was started that this transaction is on."""
        return self.connection.started

    def control(self, statement: str) -> str:
        """BEGIN, COMMIT or ROLLBACK, and what the server says it did."""
        with self.connection.lock:
            self._pipe.drain()
            return (self.connection.say(statement).command_status or b"").decode()

    def savepoint(self) -> None:
        """Remember this point: `keep` forgets it, `undo` goes back to it (and keeps it)."""
        self._pipe.control(f"SAVEPOINT {points.POINT}")

    def keep(self) -> None:
        """What happened since the savepoint stays."""
        self._pipe.control(f"RELEASE {points.POINT}")

    def undo(self) -> None:
        """What happened since the savepoint is gone."""
        self._pipe.drain()
        self._pipe.failed = None
        self._pipe.control(f"ROLLBACK TO {points.POINT}")
        self.connection.trouble = None
        self.logs.ended(committed=False)  # a log that was created since is gone too

    @property
    def is_open(self) -> bool:
        """Is there a transaction, failed or not?"""
        connection = self.connection
        return (
            bool(connection.unsaid)
            or self._pipe.is_open
            or connection.status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
        )

    def commit(self, url: str) -> None:
        """Make it last, or say what is known."""
        connection = self.connection
        ending = self._pipe.end()
        if ending is None:
            self._pipe.drain()
            if connection.status == TransactionStatus.INERROR:
                raise self._spoilt()
            if not self.is_open:
                raise StoreError(f"{url}: {ENDED}")
            if connection.unsaid:  # nothing was asked of the server
                connection.unsaid = ""
                return
        try:
            said = self.control("COMMIT") if ending is None else self._ended(ending)
        except psycopg.Error as error:
            if connection.closed:
                raise CommitUnknown(f"{url}: COMMIT was sent and no answer came: {error}") from error
            if is_the_world(error) or self._pipe.failed not in (None, ending):  # it did not come to that
                raise
            raise CommitRefused(url, error) from error
        if said != "COMMIT":
            raise StoreError(f"{url}: COMMIT was answered by {said}; nothing was written")
        self.logs.ended(committed=True)

    def _ended(self, ending: Sent) -> str:
        """What the server says to a COMMIT that was sent with other statements."""
        try:
            result = self._pipe.answer(ending)
        except psycopg.errors.InFailedSqlTransaction:  # of an error before those
            raise self._spoilt() from None
        return (result.command_status or b"").decode()

    def rollback(self) -> None:
        """As if it had never begun. A connection that cannot do even this is closed, which does the same."""
        self.logs.ended(committed=False)
        self.connection.trouble, self.connection.unsaid = None, ""
        self.points.end()
        self._pipe.forget()
        if self.connection.closed:
            return
        try:
            self._pipe.drain(is_over=True)
            if self.connection.status == TransactionStatus.IDLE:
                return
            if not self.is_open:  # a signal struck while a statement was under way
                raise psycopg.OperationalError("still busy")
            self.control("ROLLBACK")
        except psycopg.Error:
            self.connection.close()
        finally:
            self._pipe.forget()


def begin_on(tx: PostgresTx, statement: str, *, lazily: bool = False) -> None:
    """Begin a transaction, at once or with its first statement; with nothing to say there is none.

    Then all that is seen is that the connection is not one that the server has ended.
    """
    if statement and not lazily:
        tx.control(statement)
    else:
        _see_that_it_lives(tx.connection.pgconn)
        tx.connection.unsaid = statement


def _see_that_it_lives(pgconn: PGconn) -> None:
    """Without asking the server: what it had to say is read, to the end if it has ended the connection."""
    waiting = select.poll()
    waiting.register(pgconn.socket, select.POLLIN)
    while waiting.poll(0):
        pgconn.consume_input()
