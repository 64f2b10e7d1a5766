"""The tools of this folder: a failing assertion says why a worker is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Zygote, wait_until


def test_worker_that_dies_at_import_says_so_in_the_failing_assertion(zygote: Zygote, tmp_path: Path) -> None:
    zygote.start("worker_that_fails:work", tmp_path / "stderr")
    with pytest.raises(AssertionError) as failed:
        wait_until(lambda: False, what="the worker has done its work")
    for part in ("the worker has done its work", "exit code 71", "No module named 'a_library_that_nobody_has'"):
        assert part in str(failed.value)


def test_worker_that_hangs_is_named_when_the_time_is_over(zygote: Zygote, tmp_path: Path) -> None:
    child = zygote.start("processes:wait_for_ever", tmp_path / "stderr")
    with pytest.raises(AssertionError, match=f"process {child.pid} runs"):
        wait_until(lambda: False, timeout=0.0)
