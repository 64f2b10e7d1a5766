"""A broker that lets us wait is not one that has nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redrive import App
from redrive.event import NewEvent
from redrive.sources.port import Message, Positions, Reader, Source

N = 5


class Slow(Source):
    """Gives one message at a time, and nothing to who waits for it: it takes longer than anybody waits."""

    scheme, name, partitions, ordered, acknowledges = "slow", "orders", 1, True, False

    def open(self, group: str) -> Reader:
        return SlowReader()

    def check_order(self, order: str) -> None:
        """Whatever."""


class SlowReader(Reader):
    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message]:
        at = int(positions.get(0, -1)) + 1
        if wait > 0 or at == N:
            return []
        return [Message(0, str(at), NewEvent(f"orders/{at}", "order", "ada", 1, 0, None, b"%d" % at), False)]

    def settled(self, messages: Sequence[Message]) -> None:
        """Whatever."""

    def close(self) -> None:
        """Whatever."""


def test_who_runs_until_idle_has_read_all_that_a_slow_broker_has(tmp_path: Path) -> None:
    app = App(str(tmp_path / "x.db"))

    @app.projection(Slow(), tables={"seen": "n INTEGER"})
    def see(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (?)", (event.data,))

    asyncio.run(app.serve(until_idle=True))
    with app.reader() as tx:
        assert [n for (n,) in tx.execute("SELECT n FROM seen")] == [*range(N)]
    app.close()
