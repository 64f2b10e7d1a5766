"""Workers between two brokers: the example, and a handler between two streams whose outbox is trimmed at once."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from redrive import App
from redrive.redis import Stream
from redrive.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "09_broker_to_broker.py"
QUICK = Settings(lease=1.0, halt_wait=0.02, halt_wait_max=0.05, crash_charges_max=100_000)  # the tests kill, not events


def example() -> App:
    """As a user has it; its brokers and settings are in the environment."""
    app = runpy.run_path(str(EXAMPLE))["app"]
    assert isinstance(app, App)
    return app


def run_example(until_idle: bool = False) -> None:
    """A worker process of the example."""
    app = example()
    app.run(until_idle=until_idle)
    app.close()


def between_streams(path: str, url: str) -> App:
    """Each key's numbers are added up in its state; every sum is told."""
    app = App(path, name="shop", settings=QUICK)
    orders, sums = Stream(url, "orders", partitions=1), Stream(url, "sums", partitions=2)
    app.outbox(sums, keep="0s")

    @app.on(orders)
    def add(event: Any, ctx: Any) -> None:
        ctx.state["sum"] = ctx.state.get("sum", 0) + event.data
        ctx.emit(sums, "sum.changed", ctx.state["sum"])

    return app


def run_between_streams(path: str, url: str, until_idle: bool = False) -> None:
    """A worker process of it."""
    app = between_streams(path, url)
    app.run(until_idle=until_idle)
    app.close()
