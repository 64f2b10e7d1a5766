"""Where every subscription stands."""

from __future__ import annotations

from typing import Any

from redrive.replay.status import SubscriptionStatus


def of(bank: Any, name: str = "balances") -> SubscriptionStatus:
    found: dict[str, SubscriptionStatus] = {one.subscription: one for one in bank.desk.status()}
    return found[name]


def test_a_status_tells_position_lag_letters_owner_and_the_last_event(bank: Any) -> None:
    bank.deposit("a", 1)
    bank.deposit("b", 1, "poison")
    last = bank.deposit("b", 2)
    bank.run()
    bank.harness.clock.advance(90)
    bank.deposit("c", 1)
    bank.harness.clock.advance(30)
    status = of(bank)
    assert (status.kind, status.source, status.order) == ("projection", "deposits", "key")
    assert (status.position, status.lag_events, status.lag_seconds) == (last, 1, 30.0)
    assert (status.applied, status.dead, status.retrying) == (1, 1, 1)
    assert (status.last_type, status.last_id) == ("deposited", list(bank.deposits.read())[-2].id)
    assert (status.owner, status.state) == (bank.harness.env.owner, "running")


def test_a_stopped_worker_owns_nothing(bank: Any) -> None:
    bank.run()
    bank.harness.restart()  # gracefully; the new process has not begun to work
    assert (of(bank).owner, of(bank).lease_until, of(bank).state) == (None, None, "stopped")


def test_a_worker_that_died_owns_nothing(bank: Any) -> None:
    bank.run()
    bank.harness.crash()
    assert of(bank).owner is None


def test_a_lease_that_lapsed_is_no_ownership(bank: Any) -> None:
    bank.run()
    with bank.app.runtime.store.transaction() as tx:
        tx.connection.execute("UPDATE redrive_progress SET lease_until = 1, owner = 'far away'")
    assert of(bank).owner is None


def test_pause_halt_and_rebuild_show_in_the_state(bank: Any) -> None:
    bank.deposit("a", 1)
    bank.run()
    bank.desk.reset("balances", "again")
    assert (of(bank).state, of(bank).rebuilding_until) == ("stopped", 1)
    with bank.app.runtime.store.transaction() as tx:
        tx.connection.execute("UPDATE redrive_progress SET halted = 'the disk is full'")
    assert (of(bank).state, of(bank).halted) == ("halted", "the disk is full")
    bank.desk.subscriptions.pause("balances")
    assert of(bank).state == "paused"


def test_events_settled_out_of_order_are_no_lag(bank: Any) -> None:
    bank.deposit("a", 1)
    bank.deposit("b", 1)
    bank.run()
    with bank.app.runtime.store.transaction() as tx:
        tx.connection.execute("UPDATE redrive_progress SET position = 0")
        tx.progress.done.add(1, [2])
    assert of(bank).lag_events == 1
