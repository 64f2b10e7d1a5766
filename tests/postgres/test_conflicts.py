"""Two transactions in each other's way: the server ends one, which is nobody's fault and is tried again at once."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from redrive import App
from redrive.observe.signals import Halted, Signal
from redrive.testing import Harness


@pytest.mark.parametrize("error", [psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure])
@pytest.mark.parametrize(("times", "halts"), [(1, 0), (10, 0), (11, 1)])
def test_a_conflict_costs_no_attempt_and_halts_only_where_it_goes_on(
    app: App, harness: Harness, error: type[psycopg.Error], times: int, halts: int
) -> None:
    heard: list[Signal] = []
    app.listen(heard.extend)
    left = iter(range(times))

    @app.projection(app.log("orders"), tables={"seen": "n INTEGER PRIMARY KEY"})
    def see(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (:n)", {"n": event.data})
        if next(left, None) is not None:
            raise error("another transaction was in the way")

    for number in range(3):
        harness.append("orders", "order.placed", number, key=str(number))
    harness.run_until_idle()
    harness.advance("1m")
    assert harness.query("SELECT n FROM seen ORDER BY n") == [(0,), (1,), (2,)]
    assert harness.letters() == []
    assert sum(isinstance(one, Halted) for one in heard) == halts
