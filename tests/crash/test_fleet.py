"""Several workers share the partitions of every function, and are killed, put to sleep and replaced all the time."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from processes import Child, Zygote, wait_until
from world import World

from redrive.testing.servers import Databases

FLEET = {"CRASH_PARTITIONS": "4", "REDRIVE_LEASE": "1500ms"}
ROUNDS = 5


def keep(world: World, workers: list[Child], size: int) -> None:
    """As many workers as there should be; who ended is replaced."""
    workers[:] = [worker for worker in workers if not worker.ended]
    while len(workers) < size:
        workers.append(world.worker(heard=f"heard-{len(workers)}"))


def finish(world: World, workers: list[Child]) -> None:
    """Everything that was said is applied once, by key in the order of the producer's list; the ledger is exact."""
    alive = [worker for worker in workers if not worker.ended]
    wait_until(world.is_drained)
    for worker in alive:
        worker.signal(signal.SIGTERM)
    for worker in alive:
        assert worker.wait() in (0, -signal.SIGTERM), worker.said  # one that has just started has no handler yet
    world.drain()
    world.check()
    world.repair()
    world.check(fixed=True)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("seed", range(2))
def test_killed_and_sleeping_workers_cost_nothing(
    size: int, seed: int, zygote: Zygote, tmp_path: Path, store: str | None
) -> None:
    world, dice, workers = World(zygote, tmp_path, seed=seed, env=FLEET, store=store), random.Random(seed), []
    for _ in range(ROUNDS):
        keep(world, workers, size)
        goal = world.acked + dice.randrange(5, 25)  # of what was said before: the producer may be done in a moment
        producer = world.producer(30)
        wait_until(lambda: world.acked >= goal)  # noqa: B023
        victim = dice.choice(workers)
        if store is None or dice.random() < 0.6:  # one that sleeps inside a transaction holds the lock of a file
            victim.signal(signal.SIGKILL)
            victim.wait()
            workers.remove(victim)
            keep(world, workers, size)
        else:
            victim.signal(signal.SIGSTOP)
            assert producer.wait() == 0, producer.said
            wait_until(world.is_drained)  # the others have taken over what it held
            victim.signal(signal.SIGCONT)
        assert producer.wait() == 0, producer.said
    finish(world, workers)


def test_another_number_of_partitions_in_a_rolling_deploy(zygote: Zygote, tmp_path: Path, postgres: Databases) -> None:
    url = postgres.make()
    world = World(zygote, tmp_path, env=FLEET, store=url)
    workers = [world.worker(heard="old-1"), world.worker(heard="old-2")]
    assert world.producer(40).wait() == 0
    for count in ("3", "5", "1"):
        world.env = {**world.env, "CRASH_PARTITIONS": count}
        producer = world.producer(40)
        for number, former in enumerate(list(workers)):
            workers.append(world.worker(heard=f"new-{count}-{number}"))
            # Who says that it is there hears a signal, too; before that it would just die.
            wait_until(lambda: world.rows("SELECT count(*) FROM redrive_workers") == [(len(workers),)])
            former.signal(signal.SIGTERM)
            assert former.wait() == 0, former.said
            workers.remove(former)
        assert producer.wait() == 0, producer.said
        wait_until(world.is_drained)
    finish(world, workers)
    postgres.drop(url)
