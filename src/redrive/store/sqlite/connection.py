"""Opening the file, and telling whose fault an SQLite error is.

Two SQLite libraries on one file in one process lose acknowledged commits, so there is one
choice per process: the stdlib's, which users, Django and SQLAlchemy use too.
"""

from __future__ import annotations

import gc
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal
from weakref import ref

from redrive.errors import StoreBusy, StoreError, UsageError
from redrive.store.points import PREFIX, RELEASE, ROLLBACK_TO, SAVEPOINT, Points, refusal
from redrive.store.sqlite.numbered import IS_NEEDED, Numbered
from redrive.store.sqlite.own_lock import Waiting

Connection = sqlite3.Connection

# COMMIT and ROLLBACK by a user's function would tear effect and progress apart. The authorizer refuses
# them; the engine's own carry a comment, so that the statement cache never mixes the two up.
BEGIN = "BEGIN IMMEDIATE -- redrive"
COMMIT = "COMMIT -- redrive"
ROLLBACK = "ROLLBACK -- redrive"

# A full disk ends a transaction. A function that catches the error and goes on would then write outside of any, each
# statement by itself and for good. With an isolation level Python begins a transaction before such a statement,
# which the authorizer refuses: nothing is written between our BEGIN and our COMMIT but in the transaction they enclose.
ISOLATION: Literal["DEFERRED"] = "DEFERRED"

# The WAL starts over in the room it has: a sync of bytes that were overwritten takes half as long as one that also has
# to make a longer file durable. What it grew beyond this, say under a long read transaction, is given back.
WAL_KEPT_BYTES = 20_000_000  # the default checkpoint_pages, and the transaction that went past it

CURSORS_MIN = 100  # so many that were lent are kept in mind before we look which of them have ended
BUSY_PAUSE = 0.002  # seconds between two tries for what SQLite does not wait for

# Without SQLITE_LOCKED: no other process causes it, but two statements of one connection, such as a DROP TABLE while
# rows of the table are read.
_WORLD = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT,
}  # fmt: skip
_NOT_THE_WORLD = {sqlite3.SQLITE_CORRUPT_VTAB}  # a virtual table of the user's, such as an FTS5 index; we have none


def is_the_world(error: BaseException) -> bool:
    """Is this error about the disk, the lock or the file rather than about a statement?"""
    if not isinstance(error, sqlite3.Error):
        return False
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _WORLD and code not in _NOT_THE_WORLD


def is_about_unread(error: sqlite3.Error) -> bool:
    """Is a statement that writes in progress on the same connection, such as an UPDATE … RETURNING not read to its end?

    No savepoint can be made or released then, and no transaction committed. SQLite calls that busy, as it calls a lock.
    """
    return "SQL statements in progress" in str(error)


def close_unread(connection: Connection) -> None:
    """Close every cursor of this connection: whoever has kept one reads no further.

    We look at all objects, which takes some ms for 100,000: to remember each cursor would make all statements slower.
    """
    for one in gc.get_objects():
        if issubclass(type(one), sqlite3.Cursor) and getattr(one, "connection", None) is connection:
            one.close()


def translate(error: sqlite3.Error, path: str) -> StoreError:
    """An SQLite error of the world as ours, with what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_BUSY:
        return StoreBusy(f"{path}: another process holds the write lock ({error}); end its transaction")
    if code == sqlite3.SQLITE_FULL:
        return StoreError(f"{path}: the disk is full; make room, processing resumes by itself")
    return StoreError(f"{path}: {error}")


# The connection is everybody's, for as long as the process lives. One statement with these and it could not be written
# to any more, kept all other processes out, gave rows for a number of changes, or did checkpoints by itself, which may
# damage the file (ADR 3).
_OURS = {"query_only", "locking_mode", "journal_mode", "wal_autocheckpoint", "max_page_count", "count_changes"}

# A savepoint outside of a transaction begins one; a table is made by an insert into the schema.
_WRITES = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_SAVEPOINT}

# What changes a table or a view, by where its name is told.
_CHANGES_FIRST = {
    sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TABLE, sqlite3.SQLITE_CREATE_VIEW, sqlite3.SQLITE_CREATE_TEMP_VIEW,
    sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_TEMP_TABLE, sqlite3.SQLITE_DROP_VIEW, sqlite3.SQLITE_DROP_TEMP_VIEW,
    sqlite3.SQLITE_CREATE_VTABLE, sqlite3.SQLITE_DROP_VTABLE,
}  # fmt: skip
_CHANGES_SECOND = {
    sqlite3.SQLITE_ALTER_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_TEMP_INDEX,
    sqlite3.SQLITE_CREATE_TRIGGER, sqlite3.SQLITE_CREATE_TEMP_TRIGGER, sqlite3.SQLITE_DROP_INDEX,
    sqlite3.SQLITE_DROP_TEMP_INDEX, sqlite3.SQLITE_DROP_TRIGGER, sqlite3.SQLITE_DROP_TEMP_TRIGGER,
}  # fmt: skip

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # SQLite compares names without the case of these

_HARMLESS = ("ROLLBACK", "SELECT")  # to a savepoint, or by ourselves; what merely speaks of it


_NAME = r"""(?P<name> "(?:[^"]|"")*" | '(?:[^']|'')*' | `(?:[^`]|``)*` | \[[^]]*\] | [^\s;"'`\[/-]+ )"""
_SPACE = r"(?> [\s;] | --[^\n]*(?:\n|\Z) | /\*.*?(?:\*/|\Z) )"
_POINT = re.compile(
    rf"""{_SPACE}*+ (?: (?P<verb>SAVEPOINT) | (?P<release>RELEASE) (?:{_SPACE}+ SAVEPOINT)?
    | (?P<undo>ROLLBACK) (?:{_SPACE}+ TRANSACTION)? {_SPACE}+ TO (?:{_SPACE}+ SAVEPOINT)? )
    {_SPACE}*+ {_NAME} {_SPACE}*+ """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def point_of(sql: str) -> tuple[str, str] | None:
    """Return the verb and the name of a statement about a savepoint.

    The Guard refuses statements whose spelling is not known here.
    """
    found = _POINT.fullmatch(sql)
    if found is None:
        return None
    verb = SAVEPOINT if found["verb"] else RELEASE if found["release"] else ROLLBACK_TO
    name, quote = found["name"], found["name"][0]
    if quote in "\"'`":
        name = name[1:-1].replace(quote * 2, quote)
    elif quote == "[":
        name = name[1:-1]
    return verb, name.translate(_LOWER)


class Guard:
    """Refuses COMMIT and ROLLBACK, and to set what the connection is for, unless the engine itself asks.

    Writes after the end of a transaction are refused, as far as they are prepared there; see ISOLATION. Savepoints are
    refused whose names were not drawn by this process; see points.py. Our own tables are closed to functions.
    """

    __slots__ = ("connection", "engine", "has_refused", "is_reader", "points")

    def __init__(self, connection: Connection, points: Points | None = None) -> None:
        self.connection, self.is_reader = connection, isinstance(connection, Reader)
        self.points = Points() if points is None else points
        self.engine = self.has_refused = False

    def __call__(self, action: int, first: str | None, second: str | None = None, *_: Any) -> int:
        if self.engine:
            return sqlite3.SQLITE_OK
        sets = action == sqlite3.SQLITE_PRAGMA and second is not None and (first or "").lower() in _OURS
        is_outside = action in _WRITES and not self.connection.in_transaction
        is_named = action == sqlite3.SQLITE_SAVEPOINT and not (second or "").startswith(PREFIX) and not self.is_reader
        if action == sqlite3.SQLITE_TRANSACTION or sets or is_outside or is_named:
            self.has_refused = True
            return sqlite3.SQLITE_DENY
        if self.points.in_function and not self.points.is_ours:
            table = first if action in _CHANGES_FIRST else second if action in _CHANGES_SECOND else None
            if table is not None and table.lower().startswith("redrive_") and table not in self.open_tables:
                self.has_refused, self.points.refused = True, table
                return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    open_tables: frozenset[str] = frozenset()  # those that a rehearsal counts rows in

    def is_interrupt(self, error: BaseException) -> bool:
        """Is this Ctrl-C? It may strike while we are asked: sqlite3 drops it then and takes no answer for a refusal."""
        return (
            isinstance(error, sqlite3.DatabaseError)
            and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH
            and not self.has_refused
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )


class Lent(Numbered if IS_NEEDED else sqlite3.Connection):  # type: ignore[misc]
    """A connection that functions get to see as `tx.connection`. All others need it, too."""

    sighted: Callable[[str], None] | None = None  # told of a statement that may end the transaction, before it runs
    is_begun = False  # are we between BEGIN and the end? kept by whoever looks at `trouble`
    trouble: sqlite3.Error | None = None  # what ended the transaction; see careful.py
    points: Points | None = None  # the savepoints of the function that runs

    def __call__(self, sql: str, /) -> Any:
        """Prepare a statement, as sqlite3 asks for it: only if it is not among those it has kept."""
        if self.sighted is not None:
            text = sql.upper()
            ends = "ROLLBACK" in text and not text.lstrip().startswith(_HARMLESS)
            if ends or (point_of(sql) is not None and PREFIX not in sql):
                self.sighted(text)
        try:
            return super().__call__(sql)
        except sqlite3.DatabaseError as error:
            if self.points is None or not self.points.refused:
                raise
            table, self.points.refused = self.points.refused, ""
            told = sqlite3.DatabaseError(refusal(table))
            told.sqlite_errorcode, told.sqlite_errorname = error.sqlite_errorcode, error.sqlite_errorname
            raise told from None

    def close(self) -> None:
        """Refused: whoever writes next would find it closed, and so would the thread that does the checkpoints."""
        raise UsageError("tx.connection belongs to the store, which closes it: leave it open")


def let_go(connection: Connection) -> None:
    """Close a connection of ours."""
    sqlite3.Connection.close(connection)


class Ours:
    """A connection as the engine's own statements use it: our tables are open to them."""

    __slots__ = ("_connection", "_points")

    def __init__(self, connection: Connection, points: Points) -> None:
        self._connection, self._points = connection, points

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """As the driver's."""
        self._points.is_ours = True
        try:
            return self._connection.execute(sql, parameters)
        finally:
            self._points.is_ours = False

    def executemany(self, sql: str, rows: Any, /) -> Any:
        """As the driver's."""
        self._points.is_ours = True
        try:
            return self._connection.executemany(sql, rows)
        finally:
            self._points.is_ours = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Reader(Lent):
    """A connection that is lent to readers. A cursor that is left half read would show the past to the next one."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # Not a WeakSet, of which a part runs whenever a cursor ends: Ctrl-C that strikes there is lost, and it does
        # if it came while the statement ran.
        self._cursors: list[ref[sqlite3.Cursor]] = []
        self._sweep_at = CURSORS_MIN

    def cursor(self, *given: Any, **named: Any) -> Any:
        """As the driver's."""
        return self._lent(super().cursor(*given, **named))

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """As the driver's."""
        return self._lent(super().execute(sql, parameters))

    def _lent(self, cursor: sqlite3.Cursor) -> sqlite3.Cursor:
        self._cursors.append(ref(cursor))
        if len(self._cursors) >= self._sweep_at:
            self._cursors = [one for one in self._cursors if one() is not None]
            self._sweep_at = 2 * len(self._cursors) + CURSORS_MIN
        return cursor

    def close_cursors(self) -> None:
        """Whoever has kept one reads no further."""
        for one in self._cursors:
            if (cursor := one()) is not None:
                cursor.close()
        self._cursors.clear()
        self._sweep_at = CURSORS_MIN


def holds_store(path: str) -> bool:
    """Does this database have our tables?"""
    try:
        with closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'redrive_meta'").fetchone() is not None
    except sqlite3.Error as error:
        raise StoreError(f"cannot open the store {path}: {error}{advice(path, error)}") from error


def advice(path: str, error: sqlite3.Error) -> str:
    """What to do about a file that cannot be opened."""
    place, code = Path(path), getattr(error, "sqlite_errorcode", 0) & 0xFF
    folder = place.resolve().parent
    if not folder.is_dir():
        return f"; the folder {folder} does not exist"
    if place.is_dir():
        return "; it is a folder: name a file in it"
    if code == sqlite3.SQLITE_NOTADB:
        return "; it holds something else, or is damaged: name another file, or put back a copy of this one"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return (
            f"; whoever opens it, also to look, writes to it and beside it: this user needs the right to, in {folder}"
        )
    return ""


def _wal(connection: Connection, path: str, busy_timeout: float) -> str:
    """The mode of the file, from now on. Who changes it must be alone with a new file, and SQLite does not wait."""
    began = time.monotonic()
    give_up = began + busy_timeout
    waiting = Waiting(path, began, give_up, to_open=True)
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            now = time.monotonic()
            waiting.look(now)
            if now >= give_up:
                raise
        time.sleep(BUSY_PAUSE)


def open_connection(path: str, *, synchronous: str, busy_timeout: float, read_only: bool = False) -> Connection:
    """One connection with our settings: WAL, no automatic checkpoint, explicit transactions."""
    connection: Connection | None = None
    try:
        connection = sqlite3.connect(
            path,
            timeout=busy_timeout,
            isolation_level=ISOLATION,
            check_same_thread=False,
            cached_statements=256,
            factory=Reader if read_only else Lent,
        )
        # A checkpoint racing a writer corrupts files on SQLite < 3.51.3: we checkpoint ourselves, under the write lock.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        if path != ":memory:":
            mode = _wal(connection, path, busy_timeout)
            if mode != "wal":
                raise UsageError(f"{path}: WAL mode is refused ({mode}); put the file on a local disk")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        # Readers scan forward and need no cache; what writers touch again (indexes, the user's tables) should stay.
        connection.execute(f"PRAGMA cache_size = {-1000 if read_only else -16000}")
        if read_only:
            connection.execute("PRAGMA query_only = 1")
    except (sqlite3.Error, StoreError, UsageError) as error:
        if connection is not None:
            let_go(connection)
        if not isinstance(error, sqlite3.Error):
            raise
        raise StoreError(f"cannot open the store {path}: {error}{advice(path, error)}") from error
    return connection


def wait_for_nobody(connection: Connection) -> None:
    """The store itself waits for the write lock, in shorter steps."""
    connection.execute("PRAGMA busy_timeout = 0")


def undo_in_memory(connection: Connection) -> None:
    """Keep there what undoes a statement or a savepoint.

    For a letter with its indexes and triggers it would be a file, made and removed each time.
    """
    connection.execute("PRAGMA temp_store = MEMORY")


def read_plainly(connection: Connection) -> None:
    """Rows and texts as we read them, whatever the last user of the connection wanted."""
    connection.row_factory, connection.text_factory = None, str
