"""A process that tracks events and keeps its own list of how far it got; the tests kill it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from redrive import App
from redrive.settings import Settings

KEYS = 5


def build(path: str, spool: str, patience: float = 0.05) -> App:
    """Impatient: a store that is locked counts as away after 50 ms."""
    return App(path, settings=Settings(spool=spool, busy_timeout=patience, halt_wait=0.02, halt_wait_max=0.05))


def track(path: str, spool: str, said: str, name: str, count: int, *, flush: int = 0, stay: bool = False) -> None:
    """Track so many; `flush`: every so many, wait for the store and write down how far it has got.

    Without `flush`, what is on the disk is written down instead, as soon as it is there.
    """
    app = build(path, spool)
    orders = app.log("orders")
    counts = app.runtime.tracker.report.counts
    pause = threading.Event()
    for number in range(count):
        orders.track("made", {"by": name, "n": number}, key=f"{name}-{number % KEYS}")
        if flush and number % flush == flush - 1:
            while not orders.flush(1.0):
                pause.wait(0.01)
            note(said, number + 1)
        elif not flush and number % 50 == 49:
            while counts["spooled"] <= number and counts["committed"] <= number:
                pause.wait(0.001)
            note(said, number + 1)
    Path(f"{said}-done").touch()
    if stay:
        pause.wait(600)
    app.close()


def note(said: str, number: int) -> None:
    """Outside of the store, and safe from a kill."""
    with open(f"{said}.new", "w") as file:
        file.write(str(number))
    os.replace(f"{said}.new", said)


def take_in(path: str, spool: str) -> None:
    """A worker that tracks nothing itself: it finds what others have left, and ends when there is no more of it."""
    app = build(path, spool)
    app.runtime.tracker.look()
    pause = threading.Event()
    while list(Path(spool).rglob("*.spool")):
        pause.wait(0.005)
    app.close()
