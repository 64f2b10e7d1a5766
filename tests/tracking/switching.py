"""A store that can be taken away and given back, and ways to wait for what the tracker does on its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redrive import App, StoreError
from redrive.store.port import Appending, Store

PATIENCE = 90.0  # seconds until something counts as never; a busy machine may need many


def wait_until(condition: Callable[[], Any], what: str = "") -> None:
    """Look again and again until the condition holds."""
    pause, deadline = threading.Event(), time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what or condition}"
        pause.wait(0.002)


class Switched:
    """A real store behind a switch: `down` refuses, `hold` answers only when it is let go."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.down = self.holding = False
        self.held: list[Appending] = []
        self.appended = 0
        real: Store = app.runtime.store
        original = real.append

        def append(appending: Appending, *, here: bool = False) -> None:
            if self.down:
                appending.done(None, StoreError("the store is away"))
            elif self.holding:
                self.held.append(appending)
            else:
                self.appended += 1
                original(appending, here=here)

        self._original = original
        real.append = append  # type: ignore[method-assign]

    def let_go(self) -> None:
        """What was held is done now, in order."""
        self.holding = False
        for appending in self.held:
            self._original(appending)
        self.held.clear()


def spool_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "spool").rglob("*.spool"))
