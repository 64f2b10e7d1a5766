"""The Postgres store: one writing connection for the engine, a pool for everybody else.

READ COMMITTED, said explicitly: every settling transaction begins with the fence, which locks the subscription's row,
and whoever appends claims the log first; what is read after that is the truth until the commit. `inline=True` runs
every job in the caller's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import psycopg

from redrive.errors import (
    CommitRefused,
    CommitUnknown,
    ConnectionLost,
    Fenced,
    NotBegun,
    StoreError,
    UsageError,
)
from redrive.event import NewEvent
from redrive.failpoints import hit
from redrive.store.address import shown
from redrive.store.groups import Done, append_group, run_here
from redrive.store.news import News
from redrive.store.port import Appending
from redrive.store.postgres.connection import is_the_world, open_connection, translated_error
from redrive.store.postgres.joining import append_into
from redrive.store.postgres.listen import Listener
from redrive.store.postgres.migrate import found, prepare
from redrive.store.postgres.pool import Pool
from redrive.store.postgres.stage import PostgresStage
from redrive.store.postgres.transaction import ENDED, PostgresTx, begin_on
from redrive.store.rehearsing import check_off_stage
from redrive.store.sql import Row
from redrive.store.writer import Writer

# READ WRITE is not said: a server in recovery would refuse that as a feature it lacks, not as a write it does not take.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
BEGIN_LAZY = f"{BEGIN}; SET LOCAL synchronous_commit = off"  # may be lost with the machine, as a whole and in order
# A worker that is stopped inside a transaction, or whose machine has left the network, keeps its subscription's row
# locked, and nobody could take over. The server ends such a transaction, later than any function that is well takes.
IDLE_LEASES, IDLE_SECONDS_MIN = 2, 5.0
BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
BEGIN_NOTHING = ""


def exists(url: str) -> bool:
    """Is there a store in this database? Nothing is created or changed by asking."""
    with closing(open_connection(url)) as connection:
        try:
            return found(connection).number > 0
        except psycopg.Error as error:
            raise StoreError(f"cannot open the store {shown(url)}: {error}") from error


class PostgresStore:
    """A database; redrive's tables are in its schema `redrive`."""

    can_hold = False  # what a call asks for is held anyway, see pipe.py
    written: str | None = None

    def __init__(
        self,
        url: str,
        *,
        busy_timeout: float = 10.0,
        pool_max: int = 10,
        lease: float = 10.0,
        look_seconds: float = 0.05,
        inline: bool = False,
    ) -> None:
        self.url = shown(url)
        self._address = url
        self._settings = (f"SET lock_timeout = {_ms(busy_timeout)}",)
        self._busy_timeout = busy_timeout
        self._mutex = threading.Lock()  # of the writing connection
        self._alone = threading.Lock()  # of an append in its caller's thread
        self._held: dict[int, PostgresTx] = {}  # by thread
        self._idle = f"SET idle_in_transaction_session_timeout = {_ms(max(IDLE_LEASES * lease, IDLE_SECONDS_MIN))}"
        self._writing = self._open_writing()
        try:
            prepare(self._writing.connection, self.url)
        except BaseException as error:  # refused: leave nothing open behind
            self._writing.connection.close()
            if isinstance(error, psycopg.Error):
                raise StoreError(f"cannot open the store {self.url}: {error}") from error
            raise
        self._pool = Pool(url, self._settings, pool_max, busy_timeout)
        self._look_seconds = look_seconds
        self._listener: Listener | None = None
        self._seen_pulse: Row | None = None
        self._place: Row | None = None
        self.news = News()  # that nobody asks: the server tells of what we append as well
        self._writer = None if inline else Writer(self)

    def _open(self) -> PostgresTx:
        return PostgresTx(open_connection(self._address, self._settings))

    def _open_writing(self) -> PostgresTx:
        return PostgresTx(open_connection(self._address, (*self._settings, self._idle)))

    # ------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[PostgresTx]:
        """Begin for writing; leaving the block commits, an exception rolls back."""
        with self._transaction(BEGIN if durable else BEGIN_LAZY, is_ours=False) as tx:
            yield tx

    @contextmanager
    def _transaction(self, begin: str, *, is_ours: bool) -> Iterator[PostgresTx]:
        """`is_ours`: no code of the user's sees the connection before the first statement."""
        me = threading.get_ident()
        check_off_stage()
        if me in self._held:
            raise UsageError("already inside a transaction of this store: pass tx= instead of opening another")
        try:
            with self._begun(begin, is_ours=is_ours) as tx:
                self._held[me] = tx
                try:
                    try:
                        yield tx
                    except psycopg.Error as error:
                        if not tx.is_open and not is_the_world(error):  # and somebody went on after that
                            raise StoreError(f"{self.url}: {ENDED}") from error
                        raise
                    self._commit(tx)
                except psycopg.Error as error:
                    if is_the_world(error):
                        raise _or_lost(translated_error(error, self.url), error, tx) from error
                    raise
                except StoreError as error:
                    lost = _or_lost(error, error, tx)
                    raise lost from (error.__cause__ if lost is error else error)
                finally:
                    del self._held[me]
        except StoreError as error:
            error.of(self)
            raise

    def _commit(self, tx: PostgresTx) -> None:
        tx.commit(self.url)

    @contextmanager
    def reading(self, *, snapshot: bool = True) -> Iterator[PostgresTx]:
        """Many at a time, none blocks or is blocked by a writer. A snapshot costs as much as what is read."""
        try:
            with self._begun(BEGIN_READING if snapshot else BEGIN_NOTHING) as tx:
                try:
                    yield tx
                except psycopg.Error as error:
                    # To write here is refused because we said so, not because the server takes no writes.
                    if is_the_world(error) and not isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                        raise translated_error(error, self.url) from error
                    raise
        except StoreError as error:
            error.of(self)
            raise

    @contextmanager
    def _begun(self, begin: str, *, is_ours: bool = False) -> Iterator[PostgresTx]:
        """A connection in a transaction, rolled back at the end if it is still open.

        The engine's own is for the thread on which it writes: a user's transaction may last.
        """
        if (self._writer is None or self._writer.is_here) and self._mutex.acquire(blocking=False):
            try:
                tx = self._begin_writing(begin)
                try:
                    yield tx
                finally:
                    tx.rollback()
            finally:
                self._mutex.release()
        else:
            tx = self._begin_pooled(begin, is_ours)
            try:
                yield tx
            finally:
                tx.rollback()
                self._pool.give_back(tx.connection)

    def _begin_writing(self, begin: str) -> PostgresTx:
        """One that was lost while nobody used it is replaced; nothing had begun."""
        for last in (False, True):
            if self._writing.connection.closed:
                self._writing = self._open_writing()
            try:
                begin_on(self._writing, begin, lazily=True)
                break
            except psycopg.Error as error:
                if last or not self._writing.connection.closed:
                    raise translated_error(error, self.url) from error
        return self._writing

    def _begin_pooled(self, begin: str, is_ours: bool) -> PostgresTx:
        for _ in range(self._pool.size_max + 1):  # after a restart of the server, all that lie there are dead
            connection = self._pool.take()
            tx: PostgresTx = connection.facets
            if tx is None:
                tx = connection.facets = PostgresTx(connection)
            begun = False
            try:
                begin_on(tx, begin, lazily=is_ours)
                begun = True
                return tx
            except psycopg.Error as error:
                if not is_the_world(error):
                    raise
            finally:
                if not begun:
                    tx.rollback()
                    self._pool.give_back(connection)
        raise StoreError(f"{self.url}: the server ends every connection")

    # ------------------------------------------------------------ questions

    def sync(self) -> None:
        """Make every commit so far durable: one that waits for the disk waits for all before it."""
        with self.transaction() as tx:
            _need_sync(tx)

    def changed(self) -> bool:
        """Has anything been appended, or asked of an owner, since the last call?"""
        if self._writer is not None:
            return self._hear().changed()
        with self.reading() as tx:
            pulse = tx.sql.one("pg_pulse")
        seen, self._seen_pulse = self._seen_pulse, pulse
        return seen != pulse

    @property
    def bell(self) -> Listener | None:
        """The thread that listens: it knows at once."""
        return None if self._writer is None else self._hear()

    def _hear(self) -> Listener:
        if self._listener is None:  # not for those who only append
            self._listener = Listener(self._open, self._look_seconds)
        return self._listener

    def inside_transaction(self) -> bool:
        """Does this thread hold a transaction of the store?"""
        return threading.get_ident() in self._held

    def is_the_world(self, error: BaseException) -> bool:
        """Infrastructure, or the statement's own fault? What follows from the first error is told by the first."""
        if (isinstance(error, StoreError) and error.store is self) or is_the_world(error):
            return True
        tx = self._held.get(threading.get_ident())
        if tx is None:
            return False
        follows = isinstance(error, psycopg.errors.InFailedSqlTransaction)
        return not tx.is_open or (follows and is_the_world(tx.connection.trouble))

    @property
    def stage(self) -> PostgresStage:
        """A place to rehearse, for the length of a `with` block."""
        return PostgresStage(self, open_connection(self._address, self._settings))

    # ------------------------------------------------------------ jobs

    def submit(self, job: Callable[[], Any], done: Done, *, here: bool = False) -> None:
        """Run on the writer thread (or at once, inline), which has a connection of its own."""
        if self._writer is not None:
            self._writer.submit(job, done)
        else:
            run_here(job, done)

    lookout = None  # another connection may lead to another server, which need not know what was settled here

    @property
    def is_wanted(self) -> bool:
        """Does anybody else wait to write here? A job that could go on asks, and makes room."""
        return self._writer is None or self._writer.is_wanted()

    def append(self, appending: Appending, *, here: bool = False) -> None:
        """Append durably; appends that wait together are committed together.

        `here`: the caller will wait for it, so it may be done in its thread, unless another is under way.
        """
        check_off_stage()
        writer = self._writer
        if writer is None:
            self.append_group([appending])
        elif not here or writer.is_busy or not self._alone.acquire(blocking=False):
            writer.append(appending)
        else:
            try:
                self.append_group([appending])
            finally:
                self._alone.release()

    def append_into(self, given: Any, log: str, events: Sequence[NewEvent]) -> list[Row]:
        """Append in a transaction of the user's own; the log is claimed until it ends."""
        check_off_stage()
        return append_into(given, log, events, self._busy_timeout, self._lives_at)

    def _lives_at(self, place: Row) -> bool:
        """Is this our database? A server that has been started anew is asked again who it is."""
        if self._place != place:
            with self.reading(snapshot=False) as tx:
                self._place = tx.sql.one("pg_place")
        return self._place == place

    def append_group(self, group: list[Appending]) -> None:
        """One durable transaction for many callers; one caller's error is only its own."""
        # Each that the pool holds may have died without a word.
        append_group(group, self._appending, _need_sync, tries=self._pool.size_max + 1)

    @contextmanager
    def _appending(self) -> Iterator[PostgresTx]:
        with self._transaction(BEGIN, is_ours=True) as tx:
            hit("append.begun")
            yield tx
            hit("append.before_commit")
        hit("append.committed")

    def checkpoint(self, *, idle: bool = False, last: bool = False) -> None:
        """The server does its own."""

    def close(self) -> None:
        """Finish what was submitted and let go of the server."""
        if self._writer is not None:
            self._writer.stop()
        if self._listener is not None:
            self._listener.stop()
        self._pool.close()
        with nullcontext() if self.inside_transaction() else self._mutex:
            self._writing.connection.close()


def _or_lost(raised: StoreError, error: BaseException, tx: PostgresTx) -> StoreError:
    """Return `ConnectionLost` in place of an error that was raised because the connection ended; else the error.

    A COMMIT may have been sent together with the statements before it, so that one without an answer is a lost
    connection, too. Whether it happened is seen when the lease is taken again: its marks are gone with it.
    """
    if not tx.connection.closed or isinstance(raised, CommitRefused | Fenced):
        return raised
    if isinstance(raised, NotBegun) and tx.calls == 0:  # else only the answer to BEGIN is missing
        return raised
    codes, one = list[str](), error
    while one is not None:
        if isinstance(one, psycopg.Error) and is_the_world(one):
            codes.append(one.sqlstate or "")
        one = one.__cause__ or one.__context__  # type: ignore[assignment]
    lost = raised if isinstance(raised, CommitUnknown) else ConnectionLost(str(raised))
    lost.code, lost.server = next(filter(None, codes), ""), tx.connection.started
    return lost


def _need_sync(tx: PostgresTx) -> None:
    """Write something, so that the commit syncs: an earlier copy may come from a transaction that did not wait."""
    tx.sql.one("pg_sync")


def _ms(seconds: float) -> int:
    """As the server takes it, 24 days at most."""
    return min(max(1, round(1000 * seconds)), 2**31 - 1)
