"""Failpoints: a test names a place of the engine, and there the worker raises, exits or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redrive import App, UsageError, failpoints
from redrive.testing.failpoints import EXIT_CODE, FailpointHit, arm_from_environment, failpoint, parse

APPENDS = """
from redrive import App
log = App("shop.db").log("orders")
for n in range(5):
    log.append("order.placed", {"n": n})
    print(n, flush=True)
"""


def run_with(failpoint: str, folder: Path) -> tuple[int, list[str]]:
    environ = {**os.environ, "REDRIVE_FAILPOINT": failpoint}
    done = subprocess.run(
        [sys.executable, "-c", APPENDS],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.split()


def test_a_process_armed_by_its_environment_is_killed_at_the_chosen_hit(tmp_path: Path) -> None:
    assert run_with("append.before_commit:3:kill", tmp_path) == (-signal.SIGKILL, ["0", "1"])
    assert len(list(App(str(tmp_path / "shop.db")).log("orders").read())) == 2


def test_a_process_armed_with_exit_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    assert run_with("append.committed:1:exit", tmp_path) == (EXIT_CODE, [])
    assert len(list(App(str(tmp_path / "shop.db")).log("orders").read())) == 1


def test_a_failpoint_in_this_process_raises_once_and_is_gone_after_the_block(tmp_path: Path) -> None:
    log = App(str(tmp_path / "shop.db"), inline=True).log("orders")
    with failpoint("append.before_commit", at=2) as place:
        log.append("a")
        with pytest.raises(FailpointHit):
            log.append("b")
        log.append("c")
    assert (place.fired, place.hits) == (True, 3)
    log.append("d")
    assert [event.type for event in log.read()] == ["a", "c", "d"]
    assert failpoints.armed() is None


def test_a_failpoint_raises_a_given_exception_or_calls_a_function(tmp_path: Path) -> None:
    log = App(str(tmp_path / "shop.db"), inline=True).log("orders")
    called: list[str] = []
    with failpoint("append.begun", OSError("disk")), pytest.raises(OSError, match="disk"):
        log.append("a")
    with failpoint("append.begun", KeyError), pytest.raises(KeyError):
        log.append("a")
    with failpoint("append.begun", lambda: called.append("here")):
        log.append("a")
    assert called == ["here"]


@pytest.mark.parametrize("text", ["nowhere:1:kill", "batch.read:0:kill", "batch.read:x:kill", "batch.read:1:faint"])
def test_a_wrong_failpoint_is_an_error_and_not_a_test_that_proves_nothing(text: str) -> None:
    with pytest.raises(UsageError):
        arm_from_environment(lambda hook: None, {"REDRIVE_FAILPOINT": text})


def test_a_failpoint_without_more_kills_at_the_first_hit() -> None:
    armed: list[object] = []
    arm_from_environment(armed.append, {"REDRIVE_FAILPOINT": "batch.read"})
    arm_from_environment(armed.append, {})
    assert len(armed) == 1
    assert parse("batch.read").at == 1
