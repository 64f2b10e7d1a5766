"""A worker that reads a topic; the tests kill it."""

from __future__ import annotations

from typing import Any

from redrive import App, Reject
from redrive.kafka import Topic
from redrive.settings import Settings

QUICK = Settings(
    lease=2.0, halt_wait=0.02, halt_wait_max=0.05, crash_charges_max=100_000
)  # the tests kill, not the events


def build(store: str, bootstrap: str, topic: str) -> App:
    """What each key was given, in the order in which it was."""
    app = App(store, name="shop", settings=QUICK)
    source = Topic(bootstrap, topic, options={"fetch.wait.max.ms": 5})

    @app.projection(source, tables={"given": "seq INTEGER PRIMARY KEY, key TEXT NOT NULL, n INTEGER NOT NULL"})
    def write_down(event: Any, tx: Any) -> None:
        if event.data < 0:
            raise Reject("below zero")
        tx.execute(
            "INSERT INTO given SELECT coalesce(max(seq), 0) + 1, :key, :n FROM given",
            {"key": event.key, "n": event.data},
        )

    return app


def work(store: str, bootstrap: str, topic: str, until_idle: bool = False) -> None:
    """A worker process."""
    app = build(store, bootstrap, topic)
    app.run(until_idle=until_idle)
    app.close()
