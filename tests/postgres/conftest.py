"""An app in a harness on a Postgres database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redrive import App
from redrive.testing import Harness
from redrive.testing.servers import empty


@pytest.fixture
def app() -> App:
    return App("/nonexistent/x.db")


@pytest.fixture
def harness(app: App, postgres_store: str) -> Iterator[Harness]:
    """At the end of every test the books must balance."""
    with Harness(app, postgres_store) as harness:
        yield harness
        assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []
    empty(postgres_store)
