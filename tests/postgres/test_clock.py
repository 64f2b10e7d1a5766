"""Leases run by the server's clock: a worker whose own is wrong takes nothing too early and keeps nothing longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from redrive import App, Ctx, Event
from redrive.clock import Env, SystemClock
from redrive.policy.lease import Lease
from redrive.runner import leases
from redrive.runner.duty import Duty, Engine
from redrive.runner.enroll import enroll
from redrive.store.port import ProgressRow
from redrive.store.postgres.params import translate
from redrive.store.postgres.sql import statements

HOUR = 3600.0


class Wrong:
    """A clock that somebody set wrong."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def now(self) -> float:
        return time.time() + self._ahead


class Worker:
    """A program on a machine of its own, as far as clocks and names go."""

    def __init__(self, url: str, name: str, clock: Any) -> None:
        self.app = App(url)
        self.app.runtime._env = Env(clock=clock, owner=f"{name}|boot|ns|1|1|1", boot="boot")

        @self.app.on(self.app.log("orders"), start="first")
        def handle(event: Event[Any], ctx: Ctx) -> None: ...

        runtime = self.app.runtime
        nothing: Any = lambda *_: None  # noqa: E731
        self.engine = Engine(
            runtime.store,
            runtime.env,
            runtime.settings,
            runtime.types,
            runtime.signals,
            nothing,
            nothing,
            nothing,
            name,
        )
        self.declared, self.row = enroll(self.engine, self.app.subscriptions.values()).rows["handle"]

    def take(self) -> Duty | Lease:
        return leases.take(self.engine, self.declared, self.row)

    @property
    def progress(self) -> ProgressRow:
        with self.engine.store.reading() as tx:
            return tx.progress.get(self.row.id)


@pytest.fixture
def workers(postgres_url: str) -> Iterator[list[Worker]]:
    """One whose clock is right, one an hour ahead, one an hour behind."""
    clocks = {"right": SystemClock(), "ahead": Wrong(HOUR), "behind": Wrong(-HOUR)}
    workers = [Worker(postgres_url, name, clock) for name, clock in clocks.items()]
    yield workers
    for worker in workers:
        worker.app.close()


def test_a_clock_that_is_ahead_takes_nothing_before_its_time(workers: list[Worker]) -> None:
    right, ahead, behind = workers
    assert isinstance(right.take(), Duty)
    assert isinstance(ahead.take(), Lease)
    assert isinstance(behind.take(), Lease)


@pytest.mark.parametrize("number", [1, 2])
def test_a_lease_lasts_as_long_by_a_wrong_clock(workers: list[Worker], number: int) -> None:
    right, wrong = workers[0], workers[number]
    duty = wrong.take()
    assert isinstance(duty, Duty)
    length = wrong.engine.settings.lease
    assert time.time() < right.progress.lease_until <= time.time() + length
    leases.renew(duty)
    assert time.time() < right.progress.lease_until <= time.time() + length
    assert isinstance(right.take(), Lease)


def test_by_its_own_clock_a_worker_would_take_what_another_one_owns(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule broken on purpose: what the tests above see is the server's clock, and nothing else."""
    right, ahead, _ = workers
    monkeypatch.setitem(cast(Any, statements()), "now", translate("SELECT :now::float8", named=True))
    assert isinstance(right.take(), Duty)
    assert isinstance(ahead.take(), Duty)


def test_who_works_with_a_server_goes_by_its_clock(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Due times, too: the machine's own clock is three hours behind here, and nobody notices."""
    real = time.time
    app = App(postgres_url)
    with monkeypatch.context() as patch:
        patch.setattr("redrive.clock.time.time", lambda: real() - 3 * HOUR)
        app.runtime._env = Env()
        assert app.runtime.env.clock.now() < real() - 2 * HOUR
        app.log("orders").append("placed", 1)
        assert abs(app.runtime.env.clock.now() - real()) < HOUR
    app.close()
