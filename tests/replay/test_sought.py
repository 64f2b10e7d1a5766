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


def test_two_skips_never_share_a_position_even_one_of_another_log() -> None:
    """A rebuild with another filter would count what lies in both twice."""
    app = App("unused.db")
    orders, others = app.log("orders"), app.log("others")

    @app.on(orders, name="work", start="first")
    async def work(event: Any, ctx: Any) -> None:
        pass

    with Harness(app) as harness:
        harness.append(orders, "order.placed", 1)
        harness.run_until_idle()
        operator = Operator(harness.app.runtime.store, harness.app.runtime.env)
        desk = SubscriptionDesk(operator)
        desk.pause("work")
        for log in (others, orders, orders):
            harness.append(log, "order.placed", 1)
        desk.seek("work", 4, "all but the first")
        reset(operator, "work", "rebuilt")
        desk.seek("work", 2, "the first as well, and the event of the other log behind it")
        verdicts = app.operate().verify()
        assert [verdict.violations for verdict in verdicts] == [()]
        assert [(one.position, one.discarded) for one in verdicts] == [(2, 3)]
