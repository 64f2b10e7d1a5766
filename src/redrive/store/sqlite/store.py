"""The SQLite store: two writing connections (FULL, NORMAL) behind one mutex, readers beside them.

The engine writes one job at a time, on one thread (`writer.py`) or on that of who asks while it has nothing
to do; `transaction()` in a user's thread takes the same mutex. Checkpoints run only while we hold the write
lock. `inline=True` runs every job in the caller's thread: the simulator and the test harness need that.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from redrive.context import Again
from redrive.errors import CommitRefused, CommitUnknown, StoreBusy, StoreError, StoreGone, TransactionEnded, UsageError
from redrive.event import NewEvent
from redrive.failpoints import hit
from redrive.files import create
from redrive.store import forking
from redrive.store.ahead import Lookout, NoLookout
from redrive.store.groups import Done, append_group, run_here
from redrive.store.news import News
from redrive.store.port import Appending
from redrive.store.rehearsing import check_off_stage
from redrive.store.sql import Row
from redrive.store.sqlite.careful import has_ending
from redrive.store.sqlite.connection import (
    BEGIN,
    COMMIT,
    ROLLBACK,
    Connection,
    Lent,
    Reader,
    holds_store,
    is_the_world,
    let_go,
    open_connection,
    read_plainly,
    translate,
    undo_in_memory,
    wait_for_nobody,
)
from redrive.store.sqlite.flush import Flush, wal_holds
from redrive.store.sqlite.holder import named
from redrive.store.sqlite.migrate import migrate
from redrive.store.sqlite.own_lock import Waiting
from redrive.store.sqlite.place import Place, check_free
from redrive.store.sqlite.stage import SqliteStage
from redrive.store.sqlite.transaction import SqliteTx, queries
from redrive.store.writer import Writer

log = logging.getLogger("redrive")

LOOKS = 8  # so many times per `checkpoint_pages` changes we look how long the WAL is; a look takes 10 µs
ENDED = "SQLite ended the transaction by itself; nothing was written"
# Seconds between two tries for the write lock. A producer that commits one event after the other leaves gaps of less
# than a millisecond: who looks seldom may miss them for a quarter of a second. A try costs 15 µs.
BUSY_PAUSE_MIN, BUSY_PAUSE_MAX = 0.0002, 0.001


def exists_file(path: str) -> bool:
    """Is there a file with a store in it? Nothing is created or changed by asking."""
    check_free(path)
    return Path(path).is_file() and holds_store(path)


class SqliteStore:
    """A file, or `:memory:` for the simulator."""

    bell = None  # nobody tells: a file has to be asked
    can_hold = True
    is_careful = False  # is there a statement that may end the transaction? see careful.py

    def __init__(
        self, path: str, *, busy_timeout: float = 10.0, checkpoint_pages: int = 4000, file_mode: int = 0o600,
        inline: bool = False,
    ):  # fmt: skip
        self.path = self.url = path
        self.written = None if path == ":memory:" else f"{path}-wal"
        self._inline = inline
        self._busy_timeout = busy_timeout
        self._checkpoint_pages = checkpoint_pages
        self._mutex = threading.Lock()
        self._holder: int | None = None
        self._current: SqliteTx | None = None
        self._place = None if path == ":memory:" else Place(path)
        with forking.opening:
            if self._place is not None:
                check_free(path)
                create(path, file_mode)  # SQLite gives its mode to the -wal and -shm files
            self._open_writing()
        self._readers: list[SqliteTx] = []
        self._watch = None if path == ":memory:" else self._open("NORMAL", read_only=True)
        self._seen_version = -1
        self._former_changes = 0  # by connections that were replaced
        self.news = News()
        self._checkpointed = self._looked = self._seen_changes = 0  # changes at the last checkpoint, look, job
        self._flush, self._flushed, self._flush_at = Flush(path), 0, 0  # changes at the last one, pages for the next
        forking.watch(self)
        self._writer = None if inline else Writer(self)
        self.lookout = NoLookout(path) if inline else Lookout(path)

    def _open_writing(self) -> None:
        self._full = SqliteTx(self._open("FULL"))
        if self._place is not None:
            self._place.note()
        self._normal = self._full if self.path == ":memory:" else SqliteTx(self._open("NORMAL"))
        for tx in (self._full, self._normal):
            wait_for_nobody(tx.connection)
        try:
            migrate(self)
        except BaseException:  # refused: leave nothing open behind
            let_go(self._full.connection)
            let_go(self._normal.connection)
            raise
        for tx in (self._full, self._normal):  # not before: to sort a large table may take much memory
            undo_in_memory(tx.connection)
            self._look_out(tx)
        if has_ending(self._full.connection):
            self._be_careful()

    def _look_out(self, tx: SqliteTx) -> None:
        """Statements that may end the transaction are told of before the first of them runs."""
        if isinstance(tx.connection, Lent):
            tx.connection.sighted = partial(self._sight, tx)

    def _sight(self, tx: SqliteTx, statement: str) -> None:
        """There is one. Who makes a table or a trigger of that kind may go on; a turn begins again, with care."""
        is_made = statement.lstrip().startswith("CREATE")
        if tx.is_careful and not is_made:
            return
        self._be_careful()
        if not is_made:
            tx.must_repeat = True
            raise Again

    def _be_careful(self) -> None:
        self.is_careful, self.can_hold = True, False
        for tx in (self._full, self._normal):
            tx.be_careful()

    def _open(self, synchronous: str, *, read_only: bool = False) -> Connection:
        with forking.opening:
            try:
                self._check_place()
                path = self.path if self._place is None else self._place.path
                connection = open_connection(
                    path, synchronous=synchronous, busy_timeout=self._busy_timeout, read_only=read_only
                )
                try:
                    self._check_place()  # once more: another file may have been opened
                except StoreError:
                    let_go(connection)
                    raise
                return connection
            except StoreError as error:
                error.of(self)
                raise

    def _check_place(self) -> None:
        """Raise `StoreGone` if the file is not at its path any more."""
        if self._place is not None:
            try:
                self._place.check()
            except StoreGone as gone:
                gone.of(self)
                raise

    # ------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[SqliteTx]:
        """Begin for writing; leaving the block commits, an exception rolls back."""
        me = threading.get_ident()
        check_off_stage()
        if self._holder == me:
            raise UsageError("already inside a transaction of this store: pass tx= instead of opening another")
        with self._mutex:
            self._holder = me
            tx = self._full if durable else self._normal
            try:
                self._begin(tx)
                self._current = tx
                try:
                    yield tx
                    if tx.connection.in_transaction:
                        tx.letters.sieve.end()
                except BaseException as error:
                    ended, is_interrupt = not tx.connection.in_transaction, tx.guard.is_interrupt(error)
                    self._rollback(tx)
                    if is_interrupt:
                        raise KeyboardInterrupt from error
                    if isinstance(error, sqlite3.Error) and is_the_world(error):
                        raise translate(error, self.path) from error
                    if ended and not tx.is_lent and _may_be_somebodys(error):
                        raise self._ended(tx) from error
                    raise
                self._commit(tx)
            except StoreError as error:
                error.of(self)
                raise
            finally:
                if tx.connection.in_transaction:  # Ctrl-C struck between BEGIN and the block, or between it and COMMIT
                    self._rollback(tx)
                if tx.is_lent:
                    tx.lend(ends=True, is_careful=self.is_careful)
                self._holder = self._current = None

    def _begin(self, tx: SqliteTx) -> None:
        """Take the write lock. SQLite's own waiting grows to 100 ms steps; another process holds it for one or two."""
        self._check_place()
        read_plainly(tx.connection)
        tx.points.end()
        tx.letters.sieve.begin()
        began = time.monotonic()
        give_up, waiting = began + self._busy_timeout, None
        pause = BUSY_PAUSE_MIN
        while True:
            try:
                tx.control(BEGIN)
                return
            except sqlite3.Error as error:
                world, now = translate(error, self.path), time.monotonic()
                if isinstance(world, StoreBusy):
                    waiting = waiting or Waiting(self.path, began, give_up, self)
                    waiting.look(now)
                if not isinstance(world, StoreBusy) or now >= give_up:
                    raise named(world, self.path) from error
                if error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT and tx in (self._full, self._normal):
                    self._renew(tx)
            time.sleep(pause)
            pause = min(pause * 1.5, BUSY_PAUSE_MAX)

    def _renew(self, tx: SqliteTx) -> None:
        """Somebody has kept a half-read cursor of ours: that connection sees the past, and no waiting helps."""
        former, fresh = tx.connection, self._open("FULL" if tx is self._full else "NORMAL")
        wait_for_nobody(fresh)
        undo_in_memory(fresh)
        self._former_changes += former.total_changes
        tx.use(fresh)
        self._look_out(tx)
        tx.letters.sieve.begin()
        let_go(former)  # the cursor says so to whoever asks it

    def _commit(self, tx: SqliteTx) -> None:
        assert not tx.hold, "statements were held and not run"
        if not tx.connection.in_transaction or tx.must_repeat:
            self._roll_back_what_ended(tx)
        try:
            tx.control(COMMIT)
        except sqlite3.Error as error:
            self._rollback(tx)
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CONSTRAINT:
                raise CommitRefused(self.path, error) from error
            raise CommitUnknown(f"{self.path}: COMMIT failed: {error}") from error

    def _roll_back_what_ended(self, tx: SqliteTx) -> None:
        """SQLite itself did (disk full inside a statement), or somebody has passed over that it is to begin again."""
        must_repeat = tx.must_repeat
        self._rollback(tx)  # what we remember of it is wrong, too
        if must_repeat:
            raise Again
        raise self._ended(tx)

    def _ended(self, tx: SqliteTx) -> StoreError:
        """What to raise for a transaction that a statement has ended. Once: the next time it is known whose it was."""
        was_careful = tx.is_careful
        self._be_careful()
        is_new = tx.is_careful and not was_careful
        return (TransactionEnded if is_new else StoreError)(f"{self.path}: {ENDED}")

    def _rollback(self, tx: SqliteTx) -> None:
        tx.must_repeat = False
        tx.hold.forget()
        tx.logs.ended(committed=False)
        if tx.connection.in_transaction:
            try:
                tx.control(ROLLBACK)
            except sqlite3.Error:  # already rolled back by SQLite: the state is the same
                if tx.connection.in_transaction:
                    raise

    @contextmanager
    def reading(self, *, snapshot: bool = True) -> Iterator[SqliteTx]:
        """A snapshot, which costs nothing; many at a time, none blocks or is blocked by a writer."""
        if self.path == ":memory:":
            yield self._full
            return
        self._check_place()
        try:
            tx = self._readers.pop()
        except IndexError:
            tx = SqliteTx(self._open("NORMAL", read_only=True))
        try:
            read_plainly(tx.connection)
            tx.control("BEGIN -- redrive")
            yield tx
        except sqlite3.Error as error:
            if tx.guard.is_interrupt(error):
                raise KeyboardInterrupt from error
            if is_the_world(error):
                raise translate(error, self.path).of(self) from error
            raise
        finally:
            if tx.connection.in_transaction:
                tx.control(ROLLBACK)
            if isinstance(tx.connection, Reader):
                tx.connection.close_cursors()
            self._readers.append(tx)

    @property
    def stage(self) -> SqliteStage:
        """A place to rehearse, for the length of a `with` block."""
        if self.path == ":memory:":
            raise UsageError("a store in memory has one connection only; rehearse on a file")
        return SqliteStage(self, SqliteTx(self._open("NORMAL")))

    # ------------------------------------------------------------ durability

    def sync(self) -> None:
        """Make every commit so far durable: a FULL commit that changes something syncs the whole WAL."""
        with self.transaction() as tx:
            _need_sync(tx)

    def checkpoint(self, *, idle: bool = False, last: bool = False) -> None:
        """Copy the WAL back into the file, PASSIVE, while we hold the write lock (see ADR 3).

        When it is long; `idle`: also if it is short and nothing was written since the last look; `last`: in any case.
        """
        changes, seen = self._changes(), self._seen_changes
        self._seen_changes = changes
        if self.path == ":memory:" or changes == self._checkpointed or (idle and changes != seen):
            return
        if not (idle or last):
            if not self._has_grown():
                return
            self._looked = changes
            if not wal_holds(self.path, self._checkpoint_pages):
                self._flush_ahead()
                return
        with self._mutex:
            try:
                self._check_place()
                self._full.control(BEGIN)
            except (sqlite3.Error, StoreGone):
                return  # somebody else writes: next time
            try:
                hit("checkpoint.begun")
                self._normal.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:  # the WAL keeps everything: what is wrong will be told by the next commit
                log.warning("%s: the checkpoint failed (%s); it is tried again later", self.path, error)
            finally:
                self._rollback(self._full)
            self._checkpointed = self._looked = changes
            self._flush_at = 0

    def _flush_ahead(self) -> None:
        """The next checkpoint is near, and would wait until the disk has what nobody has synced."""
        unsynced, has_grown = self._normal.connection.total_changes, False
        while wal_holds(self.path, self._flush_at):
            self._flush_at, has_grown = self._flush_at + max(1, self._checkpoint_pages // LOOKS), True
        if has_grown and unsynced != self._flushed and self._writer is not None:
            self._flushed = unsynced
            self._flush.begin()

    def _changes(self) -> int:
        """How many rows this process has written."""
        now = self._full.connection.total_changes + self._normal.connection.total_changes
        return now + self._former_changes

    def _has_grown(self) -> bool:
        """Is it worth looking how long the WAL is? A small transaction writes about five pages per change."""
        return self._changes() - self._looked >= self._checkpoint_pages / LOOKS

    def changed(self) -> bool:
        """Has anything been appended, or asked of an owner, since the last call, by whatever process?"""
        if self._watch is None:
            return self.news.are_in((None, self._full.connection.total_changes))
        try:
            version = self._watch.execute("PRAGMA data_version").fetchone()[0]
            if version == self._seen_version:  # nobody has committed anything: the pulse costs five times as much
                return False
            pulse = self._watch.execute(queries()["pulse"]).fetchone()
            self._seen_version = version  # not before: what could not be read is still to be asked for
            return self.news.are_in(pulse)
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    def append_into(self, given: Any, log: str, events: Sequence[NewEvent]) -> list[Row]:
        """No: only one connection may write at a time, and ours could not sync what another one commits."""
        raise UsageError("tx= takes the transaction of `with app.transaction() as tx`; in a projection use tx.emit")

    def inside_transaction(self) -> bool:
        """Does this thread hold the store's transaction?"""
        return self._holder == threading.get_ident()

    def is_the_world(self, error: BaseException) -> bool:
        """Infrastructure, or the statement's own fault?"""
        if isinstance(error, StoreError) and error.store is self:
            return True
        if isinstance(error, sqlite3.Error) and is_the_world(error):
            return True
        return self._has_ended()

    def _has_ended(self) -> bool:
        """Is the transaction of this thread gone? Then whatever is raised now is only a consequence."""
        current = self._current
        return current is not None and not current.connection.in_transaction and self.inside_transaction()

    # ------------------------------------------------------------ jobs

    def submit(self, job: Callable[[], Any], done: Done, *, here: bool = False) -> None:
        """Run on the writer thread (or at once, inline); `here`: or in this one, if that has nothing to do."""
        if self._writer is None:
            run_here(job, done)
            return
        self._writer.submit(job, done, here=here)
        if here and not self._writer.is_stopped and self._has_grown():
            self._writer.nudge()

    @property
    def is_wanted(self) -> bool:
        """Does anybody else wait to write here? A job that could go on asks, and makes room."""
        return self._writer is None or self._writer.is_wanted()

    def append(self, appending: Appending, *, here: bool = False) -> None:
        """Append durably; appends that wait together are committed together.

        `here`: the caller will wait for it, so it may be done in its thread. Two changes of threads take longer than a
        commit. Who meets another writer queues up all the same: those who wait share a commit, and in order.
        """
        check_off_stage()
        writer = self._writer
        if writer is None:
            self.append_group([appending])
        elif not here or writer.is_busy or self._mutex.locked():
            writer.append(appending)
        else:
            self.append_group([appending])
            if self._has_grown():
                writer.nudge()

    def append_group(self, group: list[Appending]) -> None:
        """One FULL transaction for many callers; one caller's error is only its own."""
        append_group(group, self._appending, _need_sync)

    @contextmanager
    def _appending(self) -> Iterator[SqliteTx]:
        with self.transaction() as tx:
            hit("append.begun")
            yield tx
            hit("append.before_commit")
        hit("append.committed")

    def close(self) -> None:
        """Finish what was submitted, checkpoint, close."""
        if self._writer is not None:
            self._writer.stop()
        self.lookout.stop()
        self._flush.stop()
        with (
            nullcontext() if self.inside_transaction() else self._mutex
        ):  # an append may be under way in its own thread
            self._close_connections()
        forking.forget(self)

    def _close_connections(self) -> None:
        connections = {self._full.connection, self._normal.connection, *(tx.connection for tx in self._readers)}
        if self._watch is not None:
            connections.add(self._watch)
        for connection in connections:
            let_go(connection)


def _may_be_somebodys(error: BaseException) -> bool:
    """A transaction has ended, and this is raised: may a statement of a function have ended it, and not the disk?"""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    return cause is not None and isinstance(error, sqlite3.Error | StoreError) and not is_the_world(cause)


def _need_sync(tx: SqliteTx) -> None:
    """Change something, so that the commit syncs: an earlier copy may come from a NORMAL transaction."""
    tx.connection.execute("UPDATE redrive_meta SET value = value + 1 WHERE name = 'syncs'")
