"""A graceful stop: no attempt is spent, everything is handed over, the next start is clean."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from processes import Zygote, wait_until
from worker_app import OF_HANDLERS, OF_PROJECTIONS
from world import World

EVERYBODY = {*OF_PROJECTIONS, *OF_HANDLERS}
STOPS = 16  # in each of the two worlds


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_at_any_moment_spend_no_attempt_and_leave_a_clean_lease(
    number: signal.Signals, zygote: Zygote, tmp_path: Path
) -> None:
    world, dice = World(zygote, tmp_path, seed=int(number)), random.Random(int(number))
    for turn in range(STOPS):
        producer = world.producer(8)
        worker = world.worker(heard=f"worker {turn}")
        enough = dice.randint(1, 40)
        wait_until(lambda: heard_enough(world, f"worker {turn}", enough))  # noqa: B023
        worker.signal(number)
        assert worker.wait() == 0, worker.said
        check_handed_over(world)
        assert {line["unclean"] for line in world.signals("LeaseTaken", f"worker {turn}")} == {False}
        assert producer.wait() == 0
    world.drain()
    world.check()
    # A flake fails two attempts and is good at the third: every stop in between gave the attempt back.
    flaky = "SELECT max(attempts) FROM redrive_letters WHERE state = 'applied' AND reason <> 'behind_head'"
    assert world.rows(flaky) == [(3,)]


def heard_enough(world: World, heard: str, enough: int) -> bool:
    """Has the worker begun, and said so many things (or has it nothing more to say)?"""
    count = len(world.signals(heard=heard))
    return count >= enough or (count > 0 and world.acked == world.said and world.is_drained())


def check_handed_over(world: World) -> None:
    """Nobody owns anything, nobody is suspected of a crash, nothing is charged."""
    leases = world.rows("SELECT owner, unclean, halted FROM redrive_progress")
    assert set(leases) == {(None, 0, None)}
    assert world.rows("SELECT * FROM redrive_inflight WHERE running = 1 OR charges > 0") == []
