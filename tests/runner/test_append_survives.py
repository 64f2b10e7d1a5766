"""An append whose caller is gone: the event is stored, and the store goes on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from redrive import App


def test_a_caller_whose_event_loop_is_gone_does_not_take_the_writer_with_it(tmp_path: Path) -> None:
    app = App(str(tmp_path / "real.db"))
    hold, held = threading.Event(), threading.Event()

    def block() -> None:
        with app.transaction():
            held.set()
            assert hold.wait(30)

    blocker = threading.Thread(target=block)
    blocker.start()
    assert held.wait(30)

    async def give_up() -> None:
        waiting = asyncio.ensure_future(app.log("orders").append_async("order.placed", 1))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(give_up())
    hold.set()
    blocker.join()
    app.log("orders").append("order.placed", 2)
    assert [event.data for event in app.log("orders").read()] == [1, 2]
    app.close()
