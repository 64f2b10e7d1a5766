"""Going back over what an earlier rebuild went over."""

from __future__ import annotations

from typing import Any

from redrive import App
from redrive.replay.deed import Operator
from redrive.replay.rebuild import reset
from redrive.replay.subscriptions import SubscriptionDesk
from redrive.testing import Harness


def test_what_was_skipped_before_a_rebuild_emits_when_it_is_taken_back() -> None:
    app = App("unused.db")
    orders, done = app.log("orders"), app.log("done")

    @app.on(orders, name="work", start="first")
    async def work(event: Any, ctx: Any) -> None:
        ctx.emit(done, "done", event.data)

    with Harness(app) as harness:
        harness.run_until_idle()
        operator = Operator(harness.app.runtime.store, harness.app.runtime.env)
        desk = SubscriptionDesk(operator)
        desk.pause("work")
        harness.append(orders, "order.placed", 1)
        desk.seek("work", 1, "skipped by mistake")
        desk.resume("work")
        harness.run_until_idle()
        reset(operator, "work", "and rebuilt")
        harness.run_until_idle()
        assert harness.emitted(done) == []
        desk.seek("work", 0, "taken back")
        harness.run_until_idle()
        assert harness.emitted(done) == [("done", 1)]
