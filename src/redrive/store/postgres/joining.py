"""Appending in a transaction of the user's own: a psycopg connection, or a Connection or Session of SQLAlchemy's.

The log is claimed at the call and stays claimed until the user commits, so that nobody else can append to it meanwhile:
append last. Nothing is committed or rolled back here, and the session's settings are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from redrive.errors import StoreBusy, UsageError
from redrive.event import NewEvent
from redrive.store.append import append_all
from redrive.store.log import Logs
from redrive.store.postgres.sql import PostgresSql
from redrive.store.spans import NoSpans
from redrive.store.sql import Row

TAKES = (
    "tx= takes the transaction of `with app.transaction() as tx`, or one of your own on the same database: a psycopg "
)
TAKES += "connection, or a Connection or Session of SQLAlchemy's with psycopg; in a projection use tx.emit"
ELSEWHERE = "append(tx=…) takes a connection to the database of the store: another database would have two commits"
BEGIN_FIRST = "begin a transaction first: what is appended is to be committed with something"


def append_into(
    given: Any, log: str, events: Sequence[NewEvent], wait_seconds: float, is_home: Callable[[Row], bool]
) -> list[Row]:
    """Append now; it lasts if and when the user commits. `is_home`: is the store in this database?"""
    connection = _raw(given)
    sql = PostgresSql(connection)
    asked = sql.one("pg_isolation")
    assert asked is not None
    isolation, *place = asked
    if not is_home(tuple(place)):
        raise UsageError(f"{ELSEWHERE}; this one is to {place[0]!r}")
    if isolation != "read committed":  # the last version of a key may have been committed after its snapshot
        raise UsageError(f"append needs a transaction that is READ COMMITTED, this one is {isolation.upper()}")
    with _waiting(sql, wait_seconds, log):
        rows, _ = append_all(Logs(sql, NoSpans(sql)), sql, [(log, events)])
    return rows


@contextmanager
def _waiting(sql: PostgresSql, seconds: float, log: str) -> Iterator[None]:
    """Wait for the log for so long and not longer, whatever the session says."""
    former = sql.value("pg_lock_timeout", ())
    sql.run("pg_set_lock_timeout", (f"{round(seconds * 1000)}ms",))
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise StoreBusy(
            f"log {log!r}: another transaction has appended and not ended for {seconds:g} s; append last in yours"
        ) from error
    sql.run("pg_set_lock_timeout", (former,))


def _raw(given: Any) -> Any:
    """The driver's connection, in a transaction."""
    if hasattr(given, "get_bind"):  # a Session begins one by giving out its connection
        given = given.connection()
    if hasattr(given, "in_transaction") and not given.in_transaction():
        raise UsageError(BEGIN_FIRST)
    if not isinstance(given, psycopg.Connection):
        given = getattr(getattr(given, "connection", None), "driver_connection", None)
    if not isinstance(given, psycopg.Connection):
        raise UsageError(TAKES)
    if given.autocommit and given.pgconn.transaction_status == TransactionStatus.IDLE:
        raise UsageError(BEGIN_FIRST)
    return given
