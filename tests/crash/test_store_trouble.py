"""The store cannot be written: no attempt is spent, nothing is lost, work resumes by itself."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

from processes import Child, Zygote, wait_until
from worker_app import OF_HANDLERS, OF_PROJECTIONS
from world import World

EVERYBODY = {*OF_PROJECTIONS, *OF_HANDLERS}
ON_ORDERS = EVERYBODY - {"mirror"}


def limit_files(child: Child, size: int) -> None:
    """No file of this process may grow beyond so many bytes: what a full disk is to it."""
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def halted(world: World) -> set[str]:
    return {line["subscription"] for line in world.signals("Halted")}


def test_a_full_disk_halts_the_workers_and_loses_nothing(zygote: Zygote, tmp_path: Path) -> None:
    world = World(zygote, tmp_path)
    assert world.producer(20).wait() == 0
    worker = world.worker()
    wait_until(world.is_drained)
    limit_files(worker, 4096)
    assert world.producer(30).wait() == 0  # it has another quota
    marks = [tmp_path / f"signals-halted-{name}" for name in sorted(ON_ORDERS)]
    wait_until(lambda: all(mark.exists() for mark in marks), what="all that have work to do are halted")
    before = world.durable_state()
    assert world.producer(5).wait() == 0
    assert world.durable_state()[0] == before[0], "no progress while nothing can be written"
    assert not worker.ended
    limit_files(worker, resource.RLIM_INFINITY)
    wait_until(world.is_drained)
    assert {line["subscription"] for line in world.signals("Resumed")} >= ON_ORDERS
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.said
    world.drain()
    world.check()
    assert world.rows("SELECT halted FROM redrive_progress WHERE halted IS NOT NULL") == []


def test_a_producer_on_a_full_disk_is_told_and_may_say_it_again(zygote: Zygote, tmp_path: Path) -> None:
    world = World(zygote, tmp_path)
    assert world.producer(20).wait() == 0
    worker = world.worker()
    wait_until(world.is_drained)
    producer = world.producer(2000)
    wait_until(lambda: world.acked > 25)
    limit_files(producer, 4096)
    wait_until((tmp_path / "acks-refused").exists)
    assert not producer.ended
    limit_files(producer, resource.RLIM_INFINITY)
    wait_until(lambda: world.acked > 60)
    producer.kill()
    world.said = world.acked
    wait_until(lambda: world.rows("SELECT count(*) FROM redrive_events WHERE log = 1")[0][0] >= world.said)
    assert world.producer(1).wait() == 0
    wait_until(world.is_drained)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.said
    world.drain()
    world.check()


def test_a_stranger_that_holds_the_write_lock_costs_no_attempt(zygote: Zygote, tmp_path: Path) -> None:
    world = World(zygote, tmp_path, env={"REDRIVE_BUSY_TIMEOUT": "50ms", "REDRIVE_LEASE": "300ms"})
    assert world.producer(20).wait() == 0
    worker = world.worker()
    wait_until(world.is_drained)
    assert world.producer(30).wait() == 0
    held, gate = tmp_path / "held", tmp_path / "gate"
    stranger = world.start("operating:hold_the_write_lock", path=world.path, held=str(held), gate=str(gate))
    wait_until(held.exists)
    before = world.durable_state()
    wait_until(lambda: halted(world) == EVERYBODY, what="everybody has waited in vain")
    assert {"write lock" in line["reason"] for line in world.signals("Halted")} == {True}
    assert world.durable_state() == before
    gate.touch()
    assert stranger.wait() == 0
    wait_until(world.is_drained)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.said
    world.drain()
    world.check()
    flaky = "SELECT max(attempts) FROM redrive_letters WHERE state = 'applied'"
    assert world.rows(flaky) == [(3,)]


def test_a_worker_that_cannot_get_the_write_lock_at_its_start_says_who_is_in_the_way(
    zygote: Zygote, tmp_path: Path
) -> None:
    world = World(zygote, tmp_path, env={"REDRIVE_BUSY_TIMEOUT": "50ms"})
    held, gate = tmp_path / "held", tmp_path / "gate"
    stranger = world.start("operating:hold_the_write_lock", path=world.path, held=str(held), gate=str(gate))
    wait_until(held.exists)
    worker = world.worker()
    assert worker.wait() != 0
    assert "another process holds the write lock" in worker.said
    gate.touch()
    assert stranger.wait() == 0
