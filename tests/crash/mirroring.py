"""A worker whose letters are mirrored; the tests kill it."""

from __future__ import annotations

from typing import Any

from redrive import App, Reject, mirrors
from redrive.redis import LetterIndex, LetterStream
from redrive.settings import Settings

# The tests kill, not the events.
QUICK = Settings(lease=1.0, halt_wait=0.02, halt_wait_max=0.05, crash_charges_max=100_000)


def build(store: str, folder: str, url: str) -> App:
    """Every third order is rejected, until it is edited."""
    app = App(store, name="shop", settings=QUICK)

    @app.on(app.log("orders"), start="first")
    def charge(event: Any, ctx: Any) -> None:
        if event.data % 3 == 0:
            raise Reject("no")

    app.mirror(
        to=[
            mirrors.files(folder, name="dead-files", rotate="4KiB"),
            LetterStream(url, name="dead-stream"),
            LetterIndex(url, "shop:letters", name="dead-index"),
        ]
    )
    return app


def work(store: str, folder: str, url: str, until_idle: bool = False) -> None:
    """A worker process."""
    app = build(store, folder, url)
    app.run(until_idle=until_idle)
    app.close()
