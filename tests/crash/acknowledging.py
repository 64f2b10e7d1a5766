"""A worker on a simulated stream that notes, at each XACK, what of the landing was synced by then."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from syncs import Syncs

from redrive import App
from redrive.testing import Harness
from redrive.testing.failpoints import failpoint
from redrive.testing.sim.streams import SimulatedStream, Streams


def run(path: str, diary: str, rounds: int) -> None:
    """Land an entry in each round; the diary holds (synced, size of the WAL behind the landing) for each XACK."""
    syncs, server, notes = Syncs(path), Streams(), []
    app = App("/nonexistent/shop.db", name="shop")

    @app.on(SimulatedStream(server, "orders"), start="first", order="none")
    def charge(event: Any, ctx: Any) -> None: ...

    landed: list[int] = []

    def note(command: str) -> str:
        if command == "XACK":
            notes.append((syncs.synced, landed[-1]))
        return ""

    server.trouble = note
    with Harness(app, path) as harness:
        for number in range(rounds):
            server.add("orders", {"type": "order.placed", "key": "k", "data": str(number)})
            with failpoint("land.committed", lambda: landed.append(os.path.getsize(syncs.wal))):
                harness.run_until_idle()
    Path(diary).write_text(json.dumps(notes))
