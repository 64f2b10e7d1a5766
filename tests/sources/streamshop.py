"""An app on one stream, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redrive import App, Event, Tx
from redrive.redis import Stream
from redrive.testing import Harness


def say(server: Any, n: int, stream: str = "orders", **more: Any) -> list[str]:
    """So many entries; their ids."""
    return [
        server.xadd(stream, {"type": "order.placed", "key": f"k{i % 3}", "data": f'{{"n": {i}}}', **more}).decode()
        for i in range(n)
    ]


class Shop:
    """An app on one stream that writes down what it was given."""

    def __init__(self, url: str, store: str | None, **how: Any) -> None:
        self.app = App("/nonexistent/x.db", name="shop")
        self.stream = Stream(url, "orders", **how)
        self.meanwhile: Callable[[Event[Any]], object] = lambda event: None  # called by the function, with each event
        order = "key" if self.stream.ordered else "none"

        @self.app.projection(
            self.stream, "order.placed", "orders", order=order, tables={"given": "id TEXT, key TEXT, said TEXT"}
        )
        def write_down(event: Event[Any], tx: Tx) -> None:
            self.meanwhile(event)
            tx.execute(
                "INSERT INTO given VALUES (:id, :key, :said)",
                {"id": event.id, "key": event.key, "said": str(event.data)},
            )

        self.harness = Harness(self.app, store)

    @property
    def given(self) -> list[Any]:
        with self.app.reader() as tx:
            return [tuple(row) for row in tx.execute("SELECT id, key, said FROM given").fetchall()]

    @property
    def halted(self) -> str:
        rows = self.app.operate().status()
        return next(row.halted for row in rows if row.subscription == self.stream.log) or ""

    @property
    def reasons(self) -> list[str]:
        return [letter.reason for letter in self.app.operate().letters.list()]
