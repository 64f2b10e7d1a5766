"""Producers that share a commit: one is refused, the others have their answers, and listeners hear of those alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from redrive import App, VersionConflict
from redrive.observe.signals import Appended, Signal


def test_listeners_hear_of_those_that_were_stored(tmp_path: Path) -> None:
    app, told = App(tmp_path / "shop.db"), list[Signal]()
    app.listen(told.extend)
    orders = app.log("orders")

    async def produce() -> list[object]:
        expected = (None, 7, None)  # the second expects events that nobody has appended
        waiting = [orders.append_async("order.placed", key="a", expected_version=version) for version in expected]
        return list(await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20))

    first, second, third = asyncio.run(produce())
    app.close()
    app.runtime.signals.flush(20)  # they hear it on a thread of their own, which nobody waits for
    assert isinstance(second, VersionConflict)
    assert [getattr(one, "version", None) for one in (first, third)] == [1, 2]
    assert sum(one.count for one in told if isinstance(one, Appended)) == 2
