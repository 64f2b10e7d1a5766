"""Real processes for the crash tests: a parent that has imported everything forks the workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the programs of this folder are imported by their names

from processes import Zygote

from redrive.testing.servers import Databases


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


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """Where a world is: an empty database of its own, or None for a file."""
    if request.param == "sqlite":
        yield None
        return
    databases: Databases = request.getfixturevalue("postgres")
    url = databases.make()
    yield url
    databases.drop(url)
