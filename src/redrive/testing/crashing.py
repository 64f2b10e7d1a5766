"""A store that can die or fail on command, in the process of the test.

Dead means dead: every transaction and every read of that incarnation ends in `Death`, which no
`except Exception` catches, so that nothing of it acts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redrive.store.sqlite.store import SqliteStore
from redrive.store.sqlite.transaction import SqliteTx

Fault = Callable[[], BaseException | None]  # what every write is to raise now, if anything


class Death(BaseException):
    """This process does not exist any more. Not an Exception: nobody may handle it."""


class Crashed(Exception):
    """The engine under test died, as it was told to; the next call of the harness starts it again."""


class MortalStore(SqliteStore):
    """An inline SQLite store with a plug that can be pulled."""

    def __init__(self, path: str, fault: Fault, *, busy_timeout: float, checkpoint_pages: int) -> None:
        self.dead = False
        self._fault = fault
        super().__init__(path, busy_timeout=busy_timeout, checkpoint_pages=checkpoint_pages, inline=True)
        self.written = None  # the kernel tells of writing in its own time: here one looks

    def _begin(self, tx: SqliteTx) -> None:
        self._check_pulse()
        fault = self._fault()
        if fault is not None:
            raise fault
        super()._begin(tx)

    def _commit(self, tx: SqliteTx) -> None:
        self._check_pulse()
        super()._commit(tx)

    @contextmanager
    def reading(self, *, snapshot: bool = True) -> Iterator[SqliteTx]:
        """A snapshot, if we live."""
        self._check_pulse()
        with super().reading(snapshot=snapshot) as tx:
            yield tx

    def _check_pulse(self) -> None:
        if self.dead:
            raise Death
