"""Scheduled events and real processes: workers wake up in time, and any number of them append each event once."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Zygote, wait_until
from world import World

from redrive import App

SLOW_BEAT = {"REDRIVE_LEASE": "300s"}  # a worker that only looked with its beats would come too late
SOON = 30.0  # seconds, on a machine that is busy with the other tests; a beat comes after a hundred


@pytest.fixture
def world(zygote: Zygote, tmp_path: Path, store: str | None) -> World:
    return World(zygote, tmp_path, env=SLOW_BEAT, store=store)


@pytest.fixture
def app(world: World) -> Iterator[App]:
    app = App(world.path)
    yield app
    app.close()


def came(app: App) -> list[str]:
    return [event.id for event in app.log("timers").read()]


def test_a_worker_wakes_up_for_what_another_process_schedules(world: World, app: App) -> None:
    worker = world.worker()
    wait_until(lambda: world.signals("LeaseTaken"))
    app.log("timers").append("far", id="far", after="1h")
    for number in range(3):  # from rest, each time, and sooner than what it waits for
        app.log("timers").append("near", id=f"n{number}", after="100ms")
        wait_until(lambda: len(came(app)) > number, SOON)  # noqa: B023
    assert came(app) == ["n0", "n1", "n2"]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_many_workers_append_each_event_once_and_in_order(world: World, app: App) -> None:
    dice = random.Random(1)
    waits = [dice.randrange(1, 400) for _ in range(400)]
    workers = [world.worker(heard=f"heard {number}") for number in range(3)]
    wait_until(lambda: any(world.signals("LeaseTaken", heard=f"heard {number}") for number in range(3)))
    timers = app.log("timers")
    for at in range(0, 400, 50):
        timers.append_many(
            {"type": "t", "id": str(number), "key": "k", "after": waits[number] / 1000} for number in range(at, at + 50)
        )
    dues = dict(world.rows("SELECT id, due_at FROM redrive_scheduled"))
    workers[0].kill()
    wait_until(lambda: len(came(app)) >= 400, SOON)
    assert sorted(came(app), key=int) == [str(number) for number in range(400)]
    assert [event.version for event in timers.read()] == list(range(1, 401))
    late = [dues[id] for id in came(app) if id in dues]  # the first may have come before anybody looked
    assert late == sorted(late)
    assert world.rows("SELECT id FROM redrive_scheduled") == []
