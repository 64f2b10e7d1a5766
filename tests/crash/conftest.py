"""Real processes for the crash tests: a parent that has imported everything forks the workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the programs of this folder are imported by their names

from processes import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """One per test process; whatever it forked is killed and reaped when the session ends."""
    parent = Zygote()
    yield parent
    parent.close()


@pytest.fixture(autouse=True)
def _no_child_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "zygote" in request.fixturenames:
        request.getfixturevalue("zygote").reap_all()
