"""A worker that reads a stream; the tests kill it."""

from __future__ import annotations

from typing import Any

from redrive import App
from redrive.redis import Stream
from redrive.settings import Settings

KEYS = 5
QUICK = Settings(
    lease=1.0, halt_wait=0.02, halt_wait_max=0.05, crash_charges_max=100_000
)  # the tests kill, not the events


def build(path: str, url: str, partitions: int | None) -> App:
    """What each key was given, in the order in which it was."""
    app = App(path, name="shop", settings=QUICK)
    stream = Stream(url, "orders", partitions=partitions, min_idle=0.05)

    @app.projection(
        stream, order="none" if partitions is None else "key",
        tables={"given": "seq INTEGER PRIMARY KEY, key TEXT NOT NULL, n INTEGER NOT NULL"},
    )  # fmt: skip
    def write_down(event: Any, tx: Any) -> None:
        tx.execute(
            "INSERT INTO given SELECT coalesce(max(seq), 0) + 1, :key, :n FROM given",
            {"key": event.key, "n": event.data},
        )

    return app


def work(path: str, url: str, partitions: int | None, until_idle: bool = False) -> None:
    """A worker process."""
    app = build(path, url, partitions)
    app.run(until_idle=until_idle)
    app.close()
