"""Opening a connection, guarding its transaction, and telling whose fault a Postgres error is.

Every connection is in autocommit mode and the store says BEGIN and COMMIT itself: a function of the user's, which is
handed the same connection, may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg import generators
from psycopg import sql as composed
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from redrive.errors import NotBegun, StoreBusy, StoreError, Unreachable, UsageError
from redrive.masking import mask_text
from redrive.store.address import check_postgres, shown
from redrive.store.points import Points
from redrive.store.postgres.params import Statement, translate

Row = tuple[Any, ...]

PREPARE_AFTER = 1  # uses of a statement; then the server keeps its plan
PREPARED_MAX = 300  # plans per connection: all of ours, and the user's
# A server that is gone without a word is noticed within half a minute, whatever the machine's defaults are.
NETWORK = {
    "connect_timeout": "10", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "4",
    "tcp_user_timeout": "30000", "application_name": "redrive",
}  # fmt: skip

_WORLD = {
    "40001", "40P01",  # a conflict with another transaction: once more is all it takes
    "55P03",  # a lock was not to be had in time
    "25006",  # the server takes no writes: a failover is under way
    "25P03", "25P04",  # it waited too long for us
    "57P01", "57P02", "57P03", "57P04", "57P05",  # it was told to end the connection, or is starting
    "XX001", "XX002",  # its files are damaged
}  # fmt: skip
_WORLD_CLASSES = {"08", "53", "58"}  # the connection, resources (disk, memory, connections), the machine
_NOT_THE_WORLD = {"08P01"}  # what we sent makes no sense
_CANCELLED, _BY_HAND = "57014", "user request"  # else by `statement_timeout`: that statement was too slow, and will be
_NUL = {"22021", "22P05"}
_GONE = "26000"  # no such plan
_OUR_PLAN = re.compile(r'"(?:redrive_\d+|_pg3_[0-9a-f]+)"')  # a name that we or psycopg gave it
# libpq's own words, which are not translated in the wheels: no server has said anything.
_NO_ANSWER = re.compile("refused|timeout expired|translate host name|No route|unreachable|No such file")
_NO_PLANS = ("DEALLOCATE ALL", "DISCARD ALL")  # what the server says when it was told to keep none


def is_the_world(error: BaseException | None) -> bool:
    """Is this error about the server, the network or another transaction, rather than about a statement?"""
    if not isinstance(error, psycopg.Error):
        return False
    code = error.sqlstate
    if code is None:  # not from the server: the connection itself, or the pool
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if code == _GONE:
        return _OUR_PLAN.search(str(error)) is not None
    if code == _CANCELLED:  # by whom is said in words alone; in another language it is taken for the statement's fault
        return _BY_HAND in str(error)
    return code in _WORLD or (code[:2] in _WORLD_CLASSES and code not in _NOT_THE_WORLD)


def is_nul(error: psycopg.Error) -> bool:
    """Was a text refused because it holds U+0000, which Postgres cannot store?"""
    return error.sqlstate in _NUL or (isinstance(error, psycopg.DataError) and "NUL" in str(error))


class Unbegun(psycopg.OperationalError):
    """The connection was lost with the first statement of a transaction, or before."""


def translated_error(error: psycopg.Error, url: str) -> StoreError:
    """A Postgres error of the world as ours, with what to do."""
    text = str(error).strip()
    if isinstance(error, Unbegun):
        return NotBegun(f"{url}: {text}")
    if error.sqlstate in ("55P03", "40P01", "40001"):
        return StoreBusy(f"{url}: another transaction was in the way ({text})")
    if error.sqlstate == "53100":
        return StoreError(f"{url}: the server's disk is full; make room, processing resumes by itself")
    if error.sqlstate == "25006":
        return StoreError(f"{url}: the server takes no writes ({text}); processing resumes when it does")
    return StoreError(f"{url}: {text}")


class Connection(psycopg.Connection[Row]):
    """One that remembers the first error of a transaction, and is committed by the store alone."""

    started: float | None = None  # when its server was
    trouble: BaseException | None = None  # after it the server refuses whatever follows
    facets: Any = None  # what the store made for this connection
    pipe: Any = None  # statements sent and not yet answered
    points: Points | None = None  # the savepoints of the function that runs
    unsaid = ""  # how the transaction begins; said with its first statement, which saves a round trip

    def wait(self, *args: Any, **options: Any) -> Any:
        """Everything that psycopg does with a connection comes by here: what was sent before it is answered first."""
        if self.pipe is not None:
            self.pipe.drain()
        if self.unsaid:
            self.say()
        return super().wait(*args, **options)

    def say(self, statement: str = "") -> PGresult:
        """Send what was not said yet and then a statement, together; the answer to the last of them."""
        begin, self.unsaid = self.unsaid, ""
        script = "; ".join(filter(None, (begin, statement)))
        try:
            return super().wait(_said(self.pgconn, script.encode()))
        except psycopg.Error as error:
            if begin and self.status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                self.close()  # who passes over it shall not go on without a transaction
                raise Unbegun(str(error)) from error
            raise

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """psycopg lets go of its plans; if of all, then of ours, too."""
        if name is None and self.pipe is not None:
            self.pipe.known.clear()
        yield from super()._deallocate(name)

    def commit(self) -> None:
        """Not for functions."""
        raise _refusal("commit()")

    def rollback(self) -> None:
        """Not for functions."""
        raise _refusal("rollback()")

    @property
    def status(self) -> TransactionStatus:
        """Idle, in a transaction, in one that failed."""
        return TransactionStatus(self.pgconn.transaction_status)


def _said(pgconn: PGconn, script: bytes) -> PQGen[PGresult]:
    """What psycopg's cursor does, less what these need not: it takes longer than the server, four times a batch."""
    pgconn.send_query(script)
    result: PGresult = (yield from generators.execute(pgconn))[-1]
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        raise psycopg.errors.error_from_result(result, encoding="utf-8")
    return result


class Noting(psycopg.Cursor[Row]):
    """A cursor that tells its connection what went wrong."""

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run one statement."""
        try:
            done = super().execute(*args, **options)
        except psycopg.Error as error:
            note(self.connection, error)
            raise
        if self.statusmessage in _NO_PLANS and isinstance(self.connection, Connection) and self.connection.pipe:
            self.connection.pipe.known.clear()
        return done

    def executemany(self, *args: Any, **options: Any) -> None:
        """Run one statement for each row."""
        try:
            super().executemany(*args, **options)
        except psycopg.Error as error:
            note(self.connection, error)
            raise


class RawNoting(Noting, psycopg.RawCursor[Row]):
    """The same for statements whose parameters are `$1`, `$2`, …"""


class Guarded(Noting):
    """What `tx.connection` hands out: the driver's own cursor, which may do anything but end the transaction."""

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        """Run one statement."""
        return super().execute(allowed(self.connection, query), *args, **options)

    def executemany(self, query: Any, *args: Any, **options: Any) -> None:
        """Run one statement for each row."""
        super().executemany(allowed(self.connection, query), *args, **options)

    def stream(self, query: Any, *args: Any, **options: Any) -> Any:
        """Run one statement and return its rows as they come."""
        return super().stream(allowed(self.connection, query), *args, **options)

    def copy(self, statement: Any, *args: Any, **options: Any) -> Any:
        """Run COPY."""
        return super().copy(allowed(self.connection, statement), *args, **options)


def note(connection: Any, error: BaseException) -> None:
    """Remember the first error of a transaction; if the server has lost our plans, have it keep no more."""
    if not isinstance(connection, Connection):
        return
    if connection.trouble is None:
        connection.trouble = error
    if isinstance(error, psycopg.Error) and error.sqlstate == _GONE and is_the_world(error):
        connection.prepare_threshold = None  # a pooler leads to another server, or a function has dropped them


def allowed(connection: Any, query: Any) -> Any:
    """A user's statement as it may run. Raise UsageError if it would tear effect and progress apart."""
    text = query
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if isinstance(text, composed.Composable):
        text = text.as_string(None)
    if not isinstance(text, str) or not (statement := translate(text, named=True)).is_special:
        return query
    if statement.control:
        raise _refusal(statement.control)
    if statement.touched and getattr(connection, "points", None) is not None:
        connection.points.check_tables(statement.touched)
    return query if statement.point is None else point_of(connection, statement)


def point_of(connection: Any, statement: Statement) -> str:
    """A statement about a savepoint, with the name that its call has for it."""
    assert statement.point is not None
    verb, name = statement.point
    if not statement.single:
        raise UsageError(f"{verb} is one of several statements: run it by itself")
    if not name:
        raise UsageError(f"{verb}: the name of the savepoint cannot be read. Write it as a word, or in double quotes")
    points = getattr(connection, "points", None)
    return statement.text if points is None else points.renamed(verb, name)


def _refusal(word: str) -> UsageError:
    return UsageError(f"{word} is for redrive itself: effect and progress are committed together, after the function")


def options(url: str) -> dict[str, Any]:
    """How to connect: what the address says, else what we say."""
    check_postgres(url)
    try:
        said = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):  # its text quotes the address, so it is not kept as the cause either
        raise UsageError(
            f"store {shown(url)}: libpq cannot read the address; is a parameter behind the ? misspelt?"
        ) from None
    return {**NETWORK, **said, "autocommit": True, "cursor_factory": Guarded}


_STARTED = "SELECT extract(epoch FROM pg_postmaster_start_time())"


def configure(connection: Connection, settings: Iterable[str]) -> None:
    """A new connection with our settings, each a `SET` of the session."""
    connection.prepare_threshold, connection.prepared_max = PREPARE_AFTER, PREPARED_MAX
    # Backslashes in '…' are what params.py takes them for.
    script = "; ".join(["SET standard_conforming_strings = on", "SET client_encoding = 'UTF8'", *settings, _STARTED])
    cursor = psycopg.Cursor(connection)
    cursor.execute(script.encode())
    while cursor.nextset():
        pass
    found = cursor.fetchone()
    connection.started = None if found is None else float(found[0])


def open_connection(url: str, settings: Iterable[str] = ()) -> Connection:
    """One connection, or why there is none."""
    try:
        connection = Connection.connect(**options(url))
        configure(connection, settings)
    except psycopg.Error as error:
        said = mask_text(" ".join(str(error).split()))  # in several lines, with tabs
        kind = Unreachable if _NO_ANSWER.search(said) else StoreError
        raise kind(f"cannot open the store {shown(url)}: {said}") from error
    return connection
