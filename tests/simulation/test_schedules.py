"""Thousands of schedules with fresh seeds, and every seed that ever found a bug.

`REDRIVE_TEST_SCHEDULES=20000` runs more of them, `REDRIVE_TEST_SEED=…` starts from a chosen point. A failure
prints its seed, its options and its trace; `python -m redrive.testing.simulator SEED` runs it again.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.errors import UsageError
from redrive.testing.sim.options import Faults, Options
from redrive.testing.simulator import Result, simulate

SCHEDULES = int(os.environ.get("REDRIVE_TEST_SCHEDULES", "2000"))
CHUNKS = 8
ROOT = Path(__file__).parent.parent.parent


def fresh_seed() -> int:
    """New ground for every commit, and the same answer for the same commit: a test that flickers helps nobody."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no git here, or no checkout
        return time.time_ns() % 2**40
    return int(found.stdout[:10], 16)


START = int(os.environ.get("REDRIVE_TEST_SEED") or fresh_seed())

PAST = [
    tuple(part.strip() for part in line.split("#"))
    for line in Path(__file__).with_name("seeds.txt").read_text("utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]


def check_kept(result: Result) -> None:
    assert not result.violation, f"\n{result}\nthe last steps:\n{result.tail()}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_is_kept_whatever_fails(chunk: int, record_property: Callable[[str, object], None]) -> None:
    dice = random.Random(START + chunk)
    began, commits, deaths = time.perf_counter(), 0, 0
    for _ in range(SCHEDULES // CHUNKS):
        result = simulate(dice.getrandbits(40))
        check_kept(result)
        commits, deaths = commits + result.commits, deaths + result.deaths
    took = time.perf_counter() - began
    record_property(
        "simulation",
        f"{SCHEDULES // CHUNKS} schedules from seed {START + chunk}: {commits} commits, {deaths} deaths, {took:.0f} s",
    )


@pytest.mark.parametrize(("seed", "why"), PAST)
def test_a_seed_that_found_a_bug_finds_none_any_more(seed: str, why: str) -> None:
    assert why
    check_kept(simulate(int(seed)))


PAST_HOLDS = [  # seeds that found a bug in a world where keys are held
    (142, "an event that a new hold kept back freed its lane twice"),
    (1436, "an event that was charged and then held stayed suspected after its end"),
    (3122, "a call was made again after a conflict though its key was held"),
    (70059, "a list that failed in a rebuild emitted again after the next rebuild"),
]


@pytest.mark.parametrize(("seed", "why"), PAST_HOLDS)
def test_seed_with_holds_that_found_a_bug_finds_none(seed: int, why: str) -> None:
    assert why
    check_kept(simulate(seed, holds=True))


@pytest.mark.parametrize("kind", ["projection", "batch", "async", "sync"])
def test_the_same_seed_gives_the_same_trace(kind: str) -> None:
    for seed in range(5):
        first, second = simulate(seed, kind=kind), simulate(seed, kind=kind)
        assert first.hash == second.hash
        assert first.trace == second.trace


def test_other_seeds_give_other_traces() -> None:
    assert len({simulate(seed).hash for seed in range(20)}) == 20


def test_a_calm_world_keeps_its_promises_too() -> None:
    for seed in range(20):
        options = Options.of(seed)
        result = simulate(
            seed, faults=options.faults.scaled(0.0), operate_every=1e6, repartition=options.partitions, versions=False
        )  # nobody is replaced by another version
        check_kept(result)
        assert result.deaths == 0 or Options.of(seed).odd  # an event may ask its process to exit


def test_nobody_waits_for_a_lease_to_do_what_could_be_done_now() -> None:
    """Leases of ten minutes: what is done within seconds was not woken by a renewal or a take-over."""
    for seed in range(100):
        result = simulate(seed, lease=600.0, poll=0.05, faults=Faults())
        check_kept(result)
        assert result.seconds < result.options.phase + 15


def test_the_world_is_as_bad_as_it_claims() -> None:
    """Over some seeds each kind of trouble must really have happened."""
    wanted = {
        "unknown, done", "unknown, lost", "stalls", "freezes", "jumps", "dies", "is asked to stop", "loses commits",
        "Buried", "Retried", "Parked", "Recovered", "LeaseTaken", "LeaseLost", "LeaseReleased", "Halted", "Resumed",
        "BreakerOpened", "BreakerProbing", "BreakerClosed",
        "Discarded", "LaneFull", "replay", "discard", "resolve", "edit", "pause", "resume", "reset", "reopen",
    }  # fmt: skip
    for seed in range(150):
        for step in simulate(seed).trace:
            wanted.difference_update(map(str, step[1:3]))
        if not wanted:
            break
    assert wanted == set()


def test_an_option_can_be_given_by_hand_and_a_wrong_one_is_refused() -> None:
    assert simulate(3, events=2).options.events == 2
    with pytest.raises(UsageError, match="evnets"):
        simulate(3, evnets=2)


def test_a_result_says_how_to_run_it_again() -> None:
    text = str(simulate(17, events=1))
    assert "seed 17" in text and "events=1" in text and "python -m redrive.testing.simulator 17" in text
