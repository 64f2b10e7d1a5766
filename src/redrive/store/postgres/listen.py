"""Hearing of other processes' commits: a notification is a hint, looking now and then finds what was not heard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress

import psycopg

from redrive.errors import StoreError
from redrive.store.postgres.transaction import PostgresTx
from redrive.store.sql import Row

LISTEN = "LISTEN redrive"  # whoever appends or asks something of an owner sends `NOTIFY redrive`
AGAIN_SECONDS = 1.0  # before the next try for a connection; meanwhile everybody looks for themselves


class Listener:
    """A thread that waits for news on a connection of its own."""

    def __init__(self, opening: Callable[[], PostgresTx], look_seconds: float) -> None:
        self._opening, self._look_seconds = opening, look_seconds
        self._news, self._stopped = threading.Event(), threading.Event()
        self._news.set()  # nobody has looked yet
        self._ring: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._loop, name="redrive-listener", daemon=True)
        self._thread.start()

    def changed(self) -> bool:
        """Is there news since the last call?"""
        if not self._news.is_set():
            return False
        self._news.clear()
        return True

    def tell(self, ring: Callable[[], None] | None) -> None:
        """Ring for whatever there is from now on, and at once for what nobody has looked at."""
        self._ring = ring
        if ring is not None and self._news.is_set():
            ring()

    def _hear(self) -> None:
        self._news.set()
        if (ring := self._ring) is not None:
            ring()

    def stop(self) -> None:
        """End within the time between two looks."""
        self._stopped.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stopped.is_set():
            with suppress(psycopg.Error, StoreError):
                tx = self._opening()
                with closing(tx.connection):
                    self._listen(tx)
            self._hear()  # what happened meanwhile was not heard
            self._stopped.wait(AGAIN_SECONDS)

    def _listen(self, tx: PostgresTx) -> None:
        tx.control(LISTEN)
        pulse: Row | None = None
        while not self._stopped.is_set():
            heard = False
            for _ in tx.connection.notifies(timeout=self._look_seconds, stop_after=1):
                heard = True
            found = pulse if heard else tx.sql.one("pg_pulse")
            if heard or found != pulse:
                self._hear()
            pulse = found
