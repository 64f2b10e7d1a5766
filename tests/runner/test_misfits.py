"""A subscription that does not fit the store is halted; the other functions of its program run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redrive import App, UsageError
from redrive.errors import Halted
from redrive.observe import signals as sig
from redrive.settings import Settings

QUICK = Settings(halt_wait=0.05, halt_wait_max=0.05, poll_min=0.01, poll_max=0.05)
OLD, NEW = "position INTEGER", "position INTEGER, note TEXT"


@pytest.fixture
def place(tmp_path: Path, backend: str | None) -> str:
    return backend or str(tmp_path / "shop.db")


def shop(place: str, columns: str = OLD, *types: str, handled: list[int] | None = None, **options: Any) -> App:
    app = App(place, settings=QUICK)
    orders = app.log("orders")

    @app.projection(orders, *types, tables={"seen": columns}, **options)
    def seen(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen (position) VALUES (:at)", {"at": event.position})

    @app.on(orders, start="first")
    def other(event: Any, ctx: Any) -> None:
        if handled is not None:
            handled.append(event.position)

    return app


def run_once(app: App) -> dict[str, str]:
    """Until nothing is left to do; what is halted then, with the reason."""
    try:
        app.run(until_idle=True)
    except Halted as error:
        return dict(error.subscriptions)
    finally:
        app.close()
    return {}


@pytest.fixture
def used(place: str) -> str:
    """A store that a first version of the program has worked on."""
    app = shop(place)
    app.log("orders").append("order.placed", {})
    app.log("orders").append("order.shipped", {})
    assert run_once(app) == {}
    return place


def count(place: str) -> int:
    app = App(place)
    with app.reader() as tx:
        [(found,)] = tx.execute("SELECT count(*) FROM seen").fetchall()
    app.close()
    return int(found)


def test_changed_table_halts_only_its_projection(used: str) -> None:
    handled: list[int] = []
    app = shop(used, NEW, handled=handled)
    heard: list[Any] = []
    app.listen(heard.extend)
    app.log("orders").append("order.placed", {})
    halted = run_once(app)
    assert list(halted) == ["seen"]
    assert "the definition of table 'seen' changed; `redrive rebuild seen --app MODULE:APP`" in halted["seen"]
    assert len(handled) == 1 and count(used) == 2
    assert [one.subscription for one in heard if isinstance(one, sig.Halted)] == ["seen"]
    [status] = [one for one in app.operate().status() if one.subscription == "seen"]
    app.close()
    assert (status.state, status.halted) == ("halted", halted["seen"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"columns": NEW}, "definition of table"),
        ({"types": ["order.*", "refund"]}, "redrive accept-from-now seen"),
        ({"version": 2}, "has filled its tables"),
    ],
)
def test_strict_start_refuses_what_does_not_fit(place: str, change: dict[str, Any], told: str) -> None:
    app = shop(place, OLD, "order.*", version=1)
    app.log("orders").append("order.placed", {})
    assert run_once(app) == {}
    handled: list[int] = []
    wanted: dict[str, Any] = {"columns": OLD, "types": ["order.*"], "version": 1, **change}
    app = shop(place, wanted["columns"], *wanted["types"], handled=handled, version=wanted["version"])
    with pytest.raises(UsageError, match=told):
        app.run(until_idle=True, strict=True)
    app.close()
    assert handled == []
    assert told in run_once(shop(place, wanted["columns"], *wanted["types"], version=wanted["version"]))["seen"]


def test_new_subscription_that_cannot_start_refuses_the_program(used: str) -> None:
    """Nothing in the store depends on it, and its author is there: an error at start, as before."""
    app = shop(used, NEW)
    app.on(app.log("orders"), name="new")(lambda event, ctx: None)
    with pytest.raises(UsageError, match="Say where it starts"):
        app.run(until_idle=True)
    app.close()


def test_halted_projection_goes_on_after_its_reset(used: str) -> None:
    """It is tried again by the process that was started with it."""
    app, heard = shop(used, NEW), list[Any]()
    app.listen(heard.extend)

    async def mend() -> None:
        async with app.running():
            while not any(isinstance(one, sig.Halted) for one in heard):
                await asyncio.sleep(0)
            await asyncio.to_thread(app.operate().reset, "seen", "a new column")
            while not app.operate().progress("seen").done:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(mend(), 60.0))
    app.close()
    assert count(used) == 2


def test_several_misfits_are_halted_together(used: str) -> None:
    app = App(used, settings=QUICK)
    handled: list[int] = []
    app.projection(app.log("orders"), tables={"seen": NEW}, name="seen")(lambda event, tx: None)
    app.on(app.log("others"), name="other", start="first")(lambda event, ctx: None)
    app.on(app.log("orders"), name="third", start="first")(lambda event, ctx: handled.append(event.position))
    halted = run_once(app)
    assert sorted(halted) == ["other", "seen"]
    assert "reads log 'orders' so far" in halted["other"]
    assert len(handled) == 2
