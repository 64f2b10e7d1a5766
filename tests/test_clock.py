"""Whose clock leases and due times go by."""

from __future__ import annotations

import time
from pathlib import Path

from redrive.clock import SystemClock
from redrive.store.sqlite import SqliteStore
from redrive.testing import FakeClock


def test_a_file_goes_by_the_clock_of_the_machine(tmp_path: Path) -> None:
    store, fake, real = SqliteStore(str(tmp_path / "shop.db")), FakeClock(start=5.25), SystemClock()
    with store.reading() as tx:
        assert tx.progress.now(fake) == 5.25
        tx.progress.now(real)
    store.close()
    assert real.now is time.time


def test_a_clock_counts_on_from_what_it_was_told() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    clock.follow(1000.0)
    told = clock.now()
    assert 1000.0 <= told <= 1000.0 + clock.monotonic() - before
    assert clock.now() >= told
    assert SystemClock().now() > 1_700_000_000  # another one is not concerned
