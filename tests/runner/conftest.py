"""Fixtures of the behaviour tests: an app whose real file must stay untouched, and harnesses that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redrive import App
from redrive.testing import Harness

Start = Callable[..., Harness]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """An app as a module would declare it."""
    file = tmp_path / "untouched.db"
    yield App(str(file))
    assert not file.exists(), "the harness must not touch the app's own store"


@pytest.fixture
def start() -> Iterator[Start]:
    """Harnesses that are closed when the test ends."""
    with ExitStack() as stack:

        def begin(app: App, *arguments: Any, **options: Any) -> Harness:
            return stack.enter_context(Harness(app, *arguments, **options))

        yield begin


@pytest.fixture
def harness(app: App, start: Start) -> Harness:
    """The app under test; declare functions before the first run."""
    return start(app)
