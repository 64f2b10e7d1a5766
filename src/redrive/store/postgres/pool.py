"""Connections for everybody but the engine's own writing: users' transactions, readers, and what handlers ask for.

Who gets none within the busy timeout is told whether ours are all in use or the server gives no more. psycopg's pool
would pause ever longer between two tries, for minutes after the server is back: here each new request tries anew.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from redrive.errors import StoreError
from redrive.store.address import shown
from redrive.store.postgres.connection import Connection, configure, options


class Pool:
    """At most `size_max` connections, none until the first is asked for."""

    def __init__(self, url: str, settings: Sequence[str], size_max: int, wait_seconds: float) -> None:
        self.size_max = size_max
        self._url, self._wait_seconds = shown(url), wait_seconds
        self._mutex = threading.Lock()
        self._lent = 0
        self._refusal: Exception | None = None  # what the server said last
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            connection_class=self._noting(),
            kwargs=options(url),
            configure=lambda connection: configure(connection, settings),
            min_size=0,
            max_size=size_max,
            timeout=wait_seconds,
            reconnect_timeout=wait_seconds,
            open=True,
        )

    def take(self) -> Connection:
        """One that may have died while it lay here, or why there is none."""
        try:
            connection = self._pool.getconn()
        except psycopg.Error as error:
            raise StoreError(self._why()) from self._refusal or error
        with self._mutex:
            self._lent += 1
        return connection

    def give_back(self, connection: Connection) -> None:
        """Let others have it."""
        with self._mutex:
            self._lent -= 1
        self._pool.putconn(connection)

    def close(self) -> None:
        """Let go of the server."""
        self._pool.close()

    def _why(self) -> str:
        waited = f"{self._url}: no connection was to be had for {self._wait_seconds:g} s"
        if self._lent >= self.size_max:
            return f"{waited}: all {self.size_max} are in use; end readers and transactions sooner, or raise pool_max"
        return f"{waited}: {str(self._refusal or 'the server does not answer').strip()}"

    def _noting(self) -> type[Connection]:
        pool = self

        class Pooled(Connection):
            @classmethod
            def connect(cls, *args: Any, **given: Any) -> Any:
                try:
                    connection = super().connect(*args, **given)
                except psycopg.Error as error:
                    pool._refusal = error
                    raise
                pool._refusal = None
                return connection

        return Pooled
