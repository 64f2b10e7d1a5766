"""A worker and its producer in one process that notes, with everything it was promised, what was synced by then."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from script import script
from syncs import Syncs
from worker_app import build, say

from redrive import App
from redrive.observe.signals import Buried, Signal


class Diary:
    """Promises, each with the size of the WAL that was synced when it was made."""

    def __init__(self, path: str, syncs: Syncs) -> None:
        self._path, self._syncs, self._lock = Path(path), syncs, threading.Lock()

    def note(self, **promise: Any) -> None:
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps({"synced": self._syncs.synced, **promise}) + "\n")

    def __call__(self, facts: Sequence[Signal]) -> None:
        """As a listener: what was announced as dead must still be dead after the power is back."""
        for fact in facts:
            if isinstance(fact, Buried):
                self.note(dead=fact.letter)


def run(path: str, flakes: str, diary: str, seed: int, count: int) -> None:
    """Say all events while the worker works; then die with everything in the WAL."""
    notes = Diary(diary, Syncs(path))
    app = build(path, flakes)
    app.listen(notes)
    producer = threading.Thread(target=produce, args=(app, notes, seed, count))

    async def main() -> None:
        async with app.running():
            producer.start()
            await asyncio.to_thread(producer.join)
            while app.operate("test").status()[0].lag_events:
                await asyncio.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


def produce(app: App, notes: Diary, seed: int, count: int) -> None:
    for event in script(seed, count):
        say(app, app.log("orders"), event)
        notes.note(said=event.n)
