"""The Postgres store of a test: it can die on command, and its server goes by the clock of the test.

Only for databases that are made for tests: the function that tells the server's time is replaced there. Without a test
it tells the real time again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redrive.clock import Clock
from redrive.store.postgres import PostgresStore
from redrive.store.postgres.store import BEGIN_READING
from redrive.store.postgres.transaction import PostgresTx
from redrive.testing.crashing import Death, Fault

_CLOCK = """CREATE OR REPLACE FUNCTION redrive.clock() RETURNS double precision LANGUAGE sql VOLATILE AS $$
SELECT coalesce(nullif(current_setting('redrive.now', true), '')::double precision,
                extract(epoch FROM clock_timestamp())::double precision) $$"""


class MortalPostgresStore(PostgresStore):
    """An inline Postgres store with a plug that can be pulled."""

    def __init__(self, url: str, fault: Fault, clock: Clock, *, busy_timeout: float) -> None:
        self.dead = False
        self._fault, self._clock = fault, clock
        super().__init__(url, busy_timeout=busy_timeout, inline=True)
        self._writing.control(_CLOCK)

    @contextmanager
    def _begun(self, begin: str, *, is_ours: bool = False) -> Iterator[PostgresTx]:
        self._check_pulse()
        fault = None if begin == BEGIN_READING else self._fault()
        if fault is not None:
            raise fault
        with super()._begun(f"{begin}; SET LOCAL redrive.now = '{self._clock.now()!r}'", is_ours=is_ours) as tx:
            yield tx

    def _commit(self, tx: PostgresTx) -> None:
        self._check_pulse()
        super()._commit(tx)

    def _check_pulse(self) -> None:
        if self.dead:
            raise Death
