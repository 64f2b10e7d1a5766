"""Fixtures of the behaviour tests: an app whose real file must stay untouched, and harnesses that end with the test.

Every test that starts a harness runs on each store, unless it says `sqlite` and why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redrive import App
from redrive.store.address import is_postgres
from redrive.testing import Harness

Start = Callable[..., Harness]


class CheckedHarness(Harness):
    """At the end of every test the books must balance: each event has exactly one fate, and no lane was overtaken."""

    tampered = False  # set by tests that change the store behind the engine's back

    @property
    def on_postgres(self) -> bool:
        return is_postgres(self.path)

    def own(self, sql: str) -> str:
        """A statement about redrive's own tables, or the order of rows, in the words of this store."""
        if self.on_postgres:
            sql = re.sub(r"\bredrive_(?=[a-z])", "redrive.", sql.replace("ORDER BY rowid", "ORDER BY ctid"))
        return sql

    def query(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        return super().query(self.own(sql), params)

    def close(self) -> None:
        wrong = []
        if not self.tampered and not self._driver.loop.is_closed():
            self.fault = None
            wrong = [verdict for verdict in self.app.operate().verify() if not verdict.sound]
        super().close()
        assert not wrong, wrong


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """An app as a module would declare it."""
    file = tmp_path / "untouched.db"
    yield App(str(file))
    assert not file.exists(), "the harness must not touch the app's own store"


@pytest.fixture
def start(backend: str | None) -> Iterator[Start]:
    """Harnesses that are closed when the test ends."""
    with ExitStack() as stack:

        def begin(app: App, store: str | None = None, **options: Any) -> Harness:
            return stack.enter_context(CheckedHarness(app, store or backend, **options))

        yield begin


@pytest.fixture
def harness(app: App, start: Start) -> Harness:
    """The app under test; declare functions before the first run."""
    return start(app)
