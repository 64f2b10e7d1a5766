"""A process may be killed anywhere: afterwards totals, order, letters and ledger are exact.

The parametrised test runs over every name in `failpoints.NAMES` and fails at one that is never reached.
"""

from __future__ import annotations

import os
import random
import signal
import zlib
from pathlib import Path

import pytest
from processes import Child, Zygote, wait_until
from worker_app import OF_PROJECTIONS
from world import World

from redrive.failpoints import NAMES

KILLS = 10  # at each failpoint
NOT_THERE = {("postgres", name) for name in NAMES if name.startswith("checkpoint.")}  # the server does its own
OF_BROKERS = ("land.", "trim.", "mirror.")  # test_landing_kills, test_chain_kills, test_mirror_kills
NOT_THERE |= {(store, name) for store in ("sqlite", "postgres") for name in NAMES if name.startswith(OF_BROKERS)}
SEED = int(os.environ.get("REDRIVE_TEST_SEED", "0"))  # other numbers, other schedules


def test_a_worker_that_nobody_kills_leaves_exact_totals(zygote: Zygote, tmp_path: Path, store: str | None) -> None:
    world = World(zygote, tmp_path, store=store)
    producer = world.producer(100)
    assert producer.wait() == 0, producer.said
    world.drain()
    world.check()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_failpoints_make_for_enough_kills(kind: str) -> None:
    assert len({name for name in NAMES if (kind, name) not in NOT_THERE}) * KILLS >= 200


@pytest.mark.parametrize(
    ("store", "name"),
    [(store, name) for store in ("sqlite", "postgres") for name in NAMES if (store, name) not in NOT_THERE],
    indirect=["store"],
)
def test_a_kill_at_a_failpoint_changes_nothing(name: str, zygote: Zygote, tmp_path: Path, store: str | None) -> None:
    seed = zlib.crc32(name.encode()) + SEED
    world, dice = World(zygote, tmp_path, seed, store=store), random.Random(seed)
    for _ in range(KILLS):
        victim = kill_at(world, name, dice)
        assert victim.code == -signal.SIGKILL, f"{name} was not reached: {victim.said}"
    assert world.producer(3).wait() == 0
    world.drain()
    world.check()
    world.repair()
    world.check(fixed=True)


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_any_moment_of_workers_and_producers_change_nothing(
    seed: int, zygote: Zygote, tmp_path: Path, store: str | None
) -> None:
    seed += SEED
    world = World(zygote, tmp_path, seed, env={"REDRIVE_CHECKPOINT_PAGES": "10"}, store=store)
    dice = random.Random(seed)
    for turn in range(20):
        heard = f"signals {turn}"
        workers = [world.worker(heard=heard) for _ in range(dice.choice([1, 1, 2]))]
        producer = world.producer(5)
        enough, said = dice.randint(1, 30), dice.randint(0, 5)
        wait_until(lambda: len(world.signals(heard=heard)) >= enough or world.is_drained())  # noqa: B023
        wait_until(lambda: world.acked >= world.said - said)  # noqa: B023
        for victim in dice.sample([*workers, producer], len(workers) + 1):
            victim.kill()
    assert world.producer(3).wait() == 0
    world.drain()
    world.check()
    world.repair()
    world.check(fixed=True)


@pytest.mark.parametrize("deed", ["hold", "release"])
@pytest.mark.parametrize("name", ["operator.before_commit", "operator.committed"])
def test_killed_operator_of_holds_leaves_nothing_undone(
    name: str, deed: str, zygote: Zygote, tmp_path: Path, store: str | None
) -> None:
    """What an operator has not come to is done by the same command again."""
    seed = zlib.crc32(f"{name} {deed}".encode()) + SEED
    world, dice = World(zygote, tmp_path, seed, store=store), random.Random(seed)
    for _ in range(3):
        assert world.producer(30).wait() == 0
        world.drain()
        armed = {"REDRIVE_FAILPOINT": f"{name}:{dice.randint(1, 4)}:kill"}
        assert world.operator("hold", armed if deed == "hold" else None).wait() in (0, -signal.SIGKILL)
        assert world.operator("hold").wait() == 0
        assert world.producer(30).wait() == 0
        assert world.worker(until_idle=True).wait() == 0
        held = world.rows("SELECT DISTINCT key FROM redrive_letters WHERE state = 'retrying' AND reason = 'held'")
        assert held and {key for (key,) in held} <= {"k1", "k3", "k10", "k11"}
        if deed == "release":
            assert world.operator("release", armed).wait() == -signal.SIGKILL
        again = world.operator("release")
        assert again.wait() == 0, again.said
        assert world.rows("SELECT * FROM redrive_holds") == []
    world.drain()
    world.check()
    world.repair()
    world.check(fixed=True)


def kill_at(world: World, name: str, dice: random.Random) -> Child:
    """Let the process that passes this failpoint die there, while others work."""
    place = name.partition(".")[0]
    hits = 1 if place == "due" else dice.randint(1, 3)  # what is due together is taken together: there may be but one
    armed = {"REDRIVE_FAILPOINT": f"{name}:{hits}:kill"}
    if place == "migrate":  # whoever opens the file first makes our tables
        victim = world.producer(0 if world.said else 3, {"REDRIVE_FAILPOINT": f"{name}:1:kill"})
        victim.wait()
        assert world.ours() == [], "the store is as it was"
        return victim
    if place == "append":
        worker = world.worker()
        victim = world.producer(6, armed)
        victim.wait()
        worker.kill()
        return victim
    once = {"REDRIVE_FAILPOINT": f"{name}:1:kill"}
    if place == "operator":
        assert world.producer(12 if world.said else 60).wait() == 0
        world.drain()
        world.replays += 1
        victim = world.operator("replay", armed)
    elif place == "reset":
        assert world.producer(4).wait() == 0
        world.drain()
        victim = world.operator("reset", once, name=dice.choice(OF_PROJECTIONS))
    elif place == "release":
        assert world.producer(4).wait() == 0
        victim = world.worker(once, until_idle=True)
    elif place == "alone":  # somebody must have died with events in flight
        assert world.producer(4).wait() == 0
        world.worker({"REDRIVE_FAILPOINT": "batch.fenced:1:kill"}).wait()
        victim = world.worker(once)
    else:
        producer = world.producer(10)
        victim = world.worker(armed | {"REDRIVE_CHECKPOINT_PAGES": "1"})
        victim.wait()
        assert producer.wait() == 0, producer.said
    victim.wait()
    return victim
