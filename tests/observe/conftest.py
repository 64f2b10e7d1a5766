"""A shop whose functions fail on request, run by the harness on each store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Reject, breaker, retry, rules
from redrive.testing import Harness


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(str(tmp_path / "untouched.db"))

    @app.on(
        app.log("orders"),
        start="first",
        retry=retry(attempts=2, wait="1s", jitter=0),
        letters=rules(discard="drop.*"),
        breaker=breaker("bank"),
    )
    def charge(event: Any, ctx: Any) -> None:
        match event.type:
            case "fails.once" if ctx.attempt == 1:
                raise OSError("once")
            case "fails.twice":
                raise OSError("twice")
            case "rejected" | "drop.me":
                raise Reject("no")

    return app


@pytest.fixture
def harness(app: App, backend: str | None) -> Iterator[Harness]:
    with Harness(app, backend) as harness:
        yield harness
