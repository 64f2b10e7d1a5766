"""How long a replay runs, how one knows that it is over, and what bounds its rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event, Reject, no_retry
from redrive.policy.lanes import ONCE, PACED, Head, draws_on_budget
from redrive.replay import bulk as bulk_module
from redrive.settings import Settings
from redrive.store.sqlite.store import SqliteStore
from redrive.store.sqlite.transaction import queries
from redrive.testing import Harness


def head(attempts: int, replaying: int) -> Head:
    return Head(1, 1, "retrying", 0.0, 0.0, 0.0, 0, attempts, replaying, 0)


@pytest.mark.parametrize(
    ("attempts", "replaying", "draws"), [(0, 0, False), (1, 0, True), (5, ONCE, True), (5, PACED, False)]
)
def test_only_a_replay_with_a_rate_is_free_of_the_retry_budget(attempts: int, replaying: int, draws: bool) -> None:
    assert draws_on_budget(head(attempts, replaying)) is draws


@pytest.mark.parametrize(("rate", "least", "most"), [(100.0, 0.15, 1.0), (None, 15.0, 60.0)])
def test_rate_of_a_replay_takes_the_place_of_the_retry_budget(rate: float | None, least: float, most: float) -> None:
    """Twenty letters at 100 a second; or at one a second, which the budget gives."""
    app = App("unused.db")
    orders, bad, applied = app.log("orders"), True, list[float]()

    @app.on(orders, start="first", retry=no_retry)
    def charge(event: Event[Any], ctx: Ctx) -> None:
        if bad:
            raise Reject("not now")
        applied.append(harness.clock.now())

    with Harness(app, settings=Settings(retry_budget=1.0)) as harness:
        for number in range(20):
            harness.append(orders, "order", {}, key=f"k{number}")
        harness.run_until_idle()
        bad = False
        desk = app.operate("ada")
        number = desk.bulk.begin("replay", desk.letters.list(), "fixed", rate)
        desk.bulk.ask(number, lambda rows, ticket: desk.letters.replay(rows, "fixed", within=ticket))
        began = harness.clock.now()
        harness.advance("60s")
        assert len(applied) == 20
        assert least <= max(applied) - began <= most


def test_replay_is_over_when_what_waited_behind_it_has_run(bank: Any) -> None:
    for account in "ab":
        bank.deposit(account, 1, "poison")
        bank.deposit(account, 1)
    bank.run()
    bank.bad.clear()
    desk = bank.desk
    letters = [letter for letter, _ in desk.letters.heads("balances")]
    number = desk.bulk.begin("replay", letters, "fixed")
    assert desk.bulk.unfinished(number).look() is False  # nothing was asked for yet
    desk.bulk.ask(number, lambda rows, ticket: desk.letters.replay(rows, "fixed", within=ticket))
    unfinished = desk.bulk.unfinished(number)
    assert unfinished.look() is True
    assert desk.bulk.unfinished(number, {"remind"}).look() is False
    with bank.app.runtime.store.transaction() as tx:  # the first is applied, and its follower has not run yet
        change = {"state": "applied", "attempts": 2, "now": 0.0, "resolved_by": "replay"}
        tx.sql.run("letter_settle", {"id": letters[0].id, "rev": letters[0].rev + 1, **change})
        tx.progress.lock(letters[0].subscription_id)
        tx.letters.changes.add(letters[0].subscription_id, [(letters[0].id, letters[0].lane)])
    assert unfinished.look() is True
    bank.run()
    assert unfinished.look() is False
    assert desk.bulk.get(number).state == "done"


def test_a_look_reads_a_limited_number_of_letters(bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_module, "LOOKED_AT_MAX", 3)
    for number in range(8):
        bank.deposit(f"k{number}", 1, "poison")
    bank.run()
    bank.bad.clear()
    desk = bank.desk
    number = desk.bulk.begin("replay", desk.letters.list(subscription="remind"), "fixed")
    desk.bulk.ask(number, lambda rows, ticket: desk.letters.replay(rows, "fixed", within=ticket))
    unfinished = desk.bulk.unfinished(number)
    assert [unfinished.look() for _ in range(3)] == [True, True, True]
    bank.run()
    assert [unfinished.look() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("query", ["operation_unfinished", "changed_lanes"])
def test_sqlite_answers_from_indexes(query: str, tmp_path: Path) -> None:
    """For Postgres see tests/postgres/test_plans.py."""
    store = SqliteStore(str(tmp_path / "s.db"))
    values: Any = {"id": 1, "after": 0, "now": 0.0, "limit": 400} if query.startswith("operation") else (1, 2, 3)
    with store.reading() as tx:
        plan = [row[-1] for row in tx.execute(f"EXPLAIN QUERY PLAN {queries()[query]}", values)]
    store.close()
    assert [step for step in plan if step.startswith("SCAN") and step not in ("SCAN c", "SCAN (subquery-1)")] == [], (
        plan
    )


def test_new_event_does_not_wait_behind_a_large_replay() -> None:
    """Forty letters are due at once; a quarter of the window is theirs."""
    app = App("unused.db")
    orders, bad, calls = app.log("orders"), True, list[int]()

    @app.on(orders, start="first", retry=no_retry, concurrency=1)
    async def charge(event: Event[Any], ctx: Ctx) -> None:
        if bad:
            raise Reject("not now")
        calls.append(event.position)
        if len(calls) == 1:
            orders.append("order", {}, key="fresh")

    with Harness(app, settings=Settings(window_max=40, settle_max=1, retry_budget=1e6)) as harness:
        for number in range(40):
            harness.append(orders, "order", {}, key=f"k{number}")
        harness.run_until_idle()
        bad = False
        desk = app.operate("ada")
        number = desk.bulk.begin("replay", desk.letters.list(), "fixed")
        desk.bulk.ask(number, lambda rows, ticket: desk.letters.replay(rows, "fixed", within=ticket))
        harness.run_until_idle()
        assert len(calls) == 41
        assert calls.index(max(calls)) <= 25
