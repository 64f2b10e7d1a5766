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
    assert (status.applied, status.dead, status.retrying, status.waiting) == (1, 1, 0, 1)
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


def test_events_behind_a_letter_are_waiting_and_the_oldest_of_them_ages(bank: Any) -> None:
    """Without lag the subscription looks finished; the oldest event that is not applied says that it is not."""
    bank.deposit("a", 1)
    bank.harness.clock.advance(10)
    bank.deposit("b", 1, "poison")
    bank.deposit("b", 2)
    bank.deposit("b", 3)
    bank.run()
    bank.harness.clock.advance(90)
    status = of(bank)
    assert (status.lag_events, status.lag_seconds, round(status.oldest_seconds)) == (0, 0.0, 90)
    assert (status.dead, status.retrying, status.waiting) == (1, 0, 2)
    (verdict,) = [one for one in bank.desk.verify() if one.subscription == "balances"]
    assert (verdict.dead, verdict.retrying, verdict.waiting) == (1, 0, 2)
    bank.deposit("c", 1)
    bank.harness.clock.advance(10)
    assert (of(bank).lag_events, round(of(bank).lag_seconds), round(of(bank).oldest_seconds)) == (1, 10, 100)
    bank.bad.discard("poison")
    bank.desk.letters.replay(bank.letter("balances", 2))
    bank.run()
    assert (of(bank).dead, of(bank).waiting, of(bank).oldest_seconds) == (0, 0, 0.0)


def test_reset_and_order_checks_count_waiting_letters_as_open(bank: Any) -> None:
    bank.deposit("b", 1, "poison")
    bank.deposit("b", 2)
    bank.run()
    assert bank.desk.plan_reset("balances").open_letters == 2
