"""Fixtures of the tracking tests: an app on each store, with its spool in the test's own folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers of this folder are imported by their names

from switching import Switched

from redrive import App
from redrive.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Impatient, with the spool in the test's own folder."""
    return Settings(halt_wait=0.01, halt_wait_max=0.02, spool=str(tmp_path / "spool"))


@pytest.fixture
def app(backend: str | None, tmp_path: Path, settings: Settings) -> Iterator[App]:
    """An app on a store of its own."""
    app = App(backend or str(tmp_path / "shop.db"), settings=settings)
    yield app
    app.close()


@pytest.fixture
def switch(app: App) -> Switched:
    """The store of the app, with a switch."""
    return Switched(app)
