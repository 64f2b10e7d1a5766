"""Bulk operations: every letter that was selected is answered for, whoever dies, and the answer stays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from redrive import App, UsageError
from redrive.replay.bulk import CHUNK_MAX, Operation
from redrive.replay.deed import Receipt, Ticket
from redrive.replay.select import Selection, select, with_followers
from redrive.store.port import LetterRow


def dead(bank: Any, subscription: str = "balances") -> list[LetterRow]:
    return select(bank.app.runtime.store, Selection(subscription=subscription), heads=True)


def begin(bank: Any, rate: float | None = None, subscription: str = "balances") -> int:
    return int(bank.desk.bulk.begin("replay", dead(bank, subscription), "fixed", rate))


def ask(bank: Any, number: int) -> None:
    desk = bank.desk
    desk.bulk.ask(number, lambda rows, ticket: desk.letters.replay(rows, "fixed", within=ticket))


def counts(operation: Operation) -> tuple[int, int, int, int, int]:
    return operation.applied, operation.failed, operation.skipped, operation.waiting, operation.unasked


def poisoned(bank: Any, keys: str) -> None:
    for place, key in enumerate(keys):
        bank.deposit(key, 1 << place, "poison")
    bank.run()


def test_a_receipt_tells_what_came_of_each_letter(bank: Any) -> None:
    poisoned(bank, "abc")
    bank.bad.clear()
    bank.bad.add("other")
    number = begin(bank)
    assert (bank.desk.bulk.get(number).state, counts(bank.desk.bulk.get(number))) == ("interrupted", (0, 0, 0, 0, 3))
    ask(bank, number)
    assert (bank.desk.bulk.get(number).state, counts(bank.desk.bulk.get(number))) == ("running", (0, 0, 0, 3, 0))
    bank.run()
    operation = bank.desk.bulk.get(number)
    assert (operation.state, operation.selected, counts(operation)) == ("done", 3, (3, 0, 0, 0, 0))
    assert (operation.who, operation.reason) == ("ada", "fixed")
    bank.check_sound()


def test_what_fails_again_is_failed_and_a_later_success_does_not_change_the_receipt(bank: Any) -> None:
    poisoned(bank, "ab")
    first = begin(bank)
    ask(bank, first)
    bank.run()
    assert counts(bank.desk.bulk.get(first)) == (0, 2, 0, 0, 0)
    bank.bad.clear()
    second = begin(bank)
    ask(bank, second)
    bank.run()
    assert counts(bank.desk.bulk.get(second)) == (2, 0, 0, 0, 0)
    assert counts(bank.desk.bulk.get(first)) == (0, 2, 0, 0, 0)
    assert [one.id for one in bank.desk.bulk.recent()] == [second, first]
    assert {one.result for one in bank.desk.bulk.results(first)} == {"failed"}


def test_what_changed_since_the_selection_is_skipped_with_the_reason(bank: Any) -> None:
    poisoned(bank, "ab")
    number = begin(bank)
    letter = dead(bank)[0]
    bank.desk.letters.edit(letter, {"cents": 5, "note": ""}, "typo")
    ask(bank, number)
    bank.run()
    assert counts(bank.desk.bulk.get(number)) == (0, 1, 1, 0, 0)
    (skipped,) = bank.desk.bulk.results(number, "skipped")
    assert skipped.letter == letter.id
    assert "changed since you looked" in skipped.why


def test_a_letter_that_an_operator_discards_before_its_turn_is_skipped(bank: Any) -> None:
    poisoned(bank, "ab")
    bank.bad.clear()
    number = begin(bank)
    ask(bank, number)
    gone = bank.desk.bulk.results(number)[0].letter
    bank.desk.letters.discard(gone, "stale")
    bank.run()
    assert counts(bank.desk.bulk.get(number)) == (1, 0, 1, 0, 0)
    assert bank.desk.bulk.results(number, "skipped")[0].why == "it is discarded"
    bank.check_sound()


def test_what_the_function_ignores_is_done(bank: Any) -> None:
    bank.bad.add("ignore")
    bank.deposit("a", 1, "ignore")
    bank.run()
    bank.bad.clear()
    number = begin(bank, subscription="remind")
    ask(bank, number)
    bank.run()
    assert counts(bank.desk.bulk.get(number)) == (1, 0, 0, 0, 0)


def test_a_rate_spreads_the_replays_over_time(bank: Any) -> None:
    poisoned(bank, "abcde")
    bank.bad.clear()
    start = bank.harness.env.clock.now()
    number = begin(bank, rate=2.0)
    ask(bank, number)
    due = [
        row[0] - start
        for row in bank.harness.query("SELECT due_at FROM redrive_letters WHERE replaying = 2 ORDER BY id")
    ]
    assert due == pytest.approx([0, 0.5, 1.0, 1.5, 2.0], abs=0.01)
    bank.run()
    assert bank.desk.bulk.get(number).applied == 1
    bank.harness.advance("1s")
    assert bank.desk.bulk.get(number).applied == 3
    bank.harness.advance("1s")
    assert counts(bank.desk.bulk.get(number)) == (5, 0, 0, 0, 0)


def test_a_command_that_died_is_resumed_where_it_was(bank: Any) -> None:
    many = CHUNK_MAX + 50
    for number in range(many):
        bank.deposit(f"k{number}", 1, "poison")
    bank.run()
    bank.bad.clear()
    operation, desk = begin(bank), bank.desk

    def once(rows: Sequence[LetterRow], ticket: Ticket) -> Receipt:
        if desk.bulk.get(operation).unasked < many:
            raise KeyboardInterrupt
        return desk.letters.replay(rows, "fixed", within=ticket)

    with pytest.raises(KeyboardInterrupt):
        desk.bulk.ask(operation, once)
    bank.run()
    assert counts(desk.bulk.get(operation)) == (CHUNK_MAX, 0, 0, 0, 50)
    assert desk.bulk.get(operation).state == "interrupted"
    ask(bank, operation)
    bank.run()
    assert counts(desk.bulk.get(operation)) == (many, 0, 0, 0, 0)
    ask(bank, operation)  # nothing is left to ask for
    assert counts(desk.bulk.get(operation)) == (many, 0, 0, 0, 0)


def test_cancelling_takes_back_what_has_not_run(bank: Any) -> None:
    poisoned(bank, "abcd")
    bank.bad.clear()
    number = begin(bank, rate=1.0)
    ask(bank, number)
    bank.harness.advance("1s")
    operation = bank.desk.bulk.cancel(number)
    assert (operation.state, counts(operation)) == ("cancelled", (2, 0, 2, 0, 0))
    assert len(dead(bank)) == 2
    bank.harness.advance("1h")
    assert counts(bank.desk.bulk.get(number)) == (2, 0, 2, 0, 0)
    assert len(bank.balances()) == 2
    bank.check_sound()
    again = begin(bank)
    ask(bank, again)
    bank.run()
    assert counts(bank.desk.bulk.get(again)) == (2, 0, 0, 0, 0)


@pytest.mark.parametrize("action", ["replay", "discard"])
def test_what_is_cancelled_while_its_command_asks_is_not_done(bank: Any, action: str) -> None:
    poisoned(bank, "abc")
    bank.bad.clear()
    desk = bank.desk
    number = int(desk.bulk.begin(action, dead(bank), "fixed"))

    def too_late(rows: Sequence[LetterRow], ticket: Ticket) -> Receipt:
        desk.bulk.cancel(number)  # somebody else, between the look at the letters and the deed
        return getattr(desk.letters, action)(rows, "fixed", within=ticket)  # type: ignore[no-any-return]

    desk.bulk.ask(number, too_late)
    bank.run()
    assert counts(desk.bulk.get(number)) == (0, 0, 3, 0, 0)
    assert [letter.state for letter in dead(bank)] == ["dead"] * 3
    assert bank.balances() == {}
    bank.check_sound()


def test_two_commands_that_ask_for_one_operation_leave_one_true_receipt(bank: Any) -> None:
    poisoned(bank, "abc")
    bank.bad.clear()
    number, desk = begin(bank), bank.desk

    def resumed_meanwhile(rows: Sequence[LetterRow], ticket: Ticket) -> Receipt:
        ask(bank, number)
        return desk.letters.replay(rows, "fixed", within=ticket)  # type: ignore[no-any-return]

    desk.bulk.ask(number, resumed_meanwhile)
    bank.run()
    assert counts(desk.bulk.get(number)) == (3, 0, 0, 0, 0)
    assert len(bank.balances()) == 3
    bank.check_sound()


def test_an_operation_that_is_not_there(bank: Any) -> None:
    for look in (bank.desk.bulk.get, bank.desk.bulk.cancel):
        with pytest.raises(UsageError, match="no operation 7"):
            look(7)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_every_selected_letter_is_answered_for(bank: Any, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(30):
        bank.deposit(dice.choice("abcdefgh"), 1, dice.choice(["", "poison", "other", "ignore"]))
    bank.bad.update({"other", "ignore"})
    bank.run()
    operations: list[int] = []
    for _ in range(25):
        match dice.choice(["begin", "ask", "run", "fix", "break", "discard", "cancel", "restart"]):
            case "begin":
                operations.append(begin(bank, dice.choice([None, 3.0]), dice.choice(["balances", "remind"])))
            case "ask" if operations:
                ask(bank, dice.choice(operations))
            case "run":
                bank.harness.advance(f"{dice.random()}s")
            case "fix":
                bank.bad.discard(dice.choice(["poison", "other"]))
            case "break":
                bank.bad.add(dice.choice(["poison", "other"]))
            case "discard" if dead(bank):
                bank.desk.letters.discard(dice.choice(dead(bank)), "stale")
            case "cancel" if operations:
                bank.desk.bulk.cancel(dice.choice(operations))
            case "restart":
                bank.harness.restart()
        for number in operations:
            assert sum(counts(bank.desk.bulk.get(number))) == bank.desk.bulk.get(number).selected
    for number in operations:
        if not bank.desk.bulk.get(number).cancelled:
            ask(bank, number)
    bank.harness.advance("1h")
    for number in operations:
        applied, failed, skipped, waiting, unasked = counts(bank.desk.bulk.get(number))
        assert (waiting, unasked) == (0, 0)
        assert applied + failed + skipped == bank.desk.bulk.get(number).selected
    bank.check_sound()


def test_nothing_of_a_lane_runs_while_it_is_closed_chunk_by_chunk(bank: Any) -> None:
    bank.deposit("a", 1, "poison")
    for _ in range(CHUNK_MAX + 50):
        bank.deposit("a", 1)
    bank.run()
    desk = bank.desk
    lane = with_followers(bank.app.runtime.store, dead(bank))
    assert len(lane) == CHUNK_MAX + 51
    number = desk.bulk.begin("discard", lane, "stale")

    def with_a_worker(rows: Sequence[LetterRow], ticket: Ticket) -> Receipt:
        receipt = desk.letters.discard(rows, "stale", within=ticket)
        bank.run()  # a worker looks between two chunks
        return receipt

    desk.bulk.ask(number, with_a_worker)
    assert counts(desk.bulk.get(number)) == (CHUNK_MAX + 51, 0, 0, 0, 0)
    assert bank.balances() == {}
    bank.check_sound()


def test_a_replay_that_is_taken_back_while_it_runs_leaves_no_effect(bank: Any) -> None:
    bank.deposit("a", 1, "poison")
    bank.run()
    bank.bad.clear()
    number = begin(bank, subscription="remind")
    ask(bank, number)
    check, cancelled = bank.check, []

    def cancel(event: Any) -> None:
        if not cancelled:
            cancelled.append(bank.desk.bulk.cancel(number))
        check(event)

    bank.check = cancel
    bank.run()
    assert counts(bank.desk.bulk.get(number)) == (0, 0, 1, 0, 0)
    assert bank.harness.emitted(bank.letters_sent) == []
    assert bank.harness.query("SELECT count(*) FROM redrive_state") == [(0,)]
    assert [letter.state for letter in dead(bank, "remind")] == ["dead"]
    again = begin(bank, subscription="remind")
    ask(bank, again)
    bank.run()
    assert counts(bank.desk.bulk.get(again)) == (1, 0, 0, 0, 0)
    assert [data["of"] for kind, data in bank.harness.emitted(bank.letters_sent) if kind == "reminded"] == [1]
    bank.check_sound()


def test_the_few_that_were_skipped_are_found_without_reading_the_many(tmp_path: Path) -> None:
    """SQLite took the primary key: every letter of the operation was read to find the one that was skipped."""
    app = App(str(tmp_path / "shop.db"))
    store = app.runtime.store
    with store.transaction() as tx:
        tx.sql.many("operation_letter_add", [(7, letter, 0) for letter in range(1, 5_001)])
        tx.sql.many("operation_asked", [("applied", "", 7, letter) for letter in range(1, 5_000)])
        tx.sql.many("operation_asked", [("skipped", "it is gone", 7, 5_000)])
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with store.reading() as tx:
        tx.sql.connection.set_progress_handler(step, 100)
        found = tx.sql.all("operation_bad", {"id": 7, "after": 0, "result": "skipped", "limit": 10})
        tx.sql.connection.set_progress_handler(None, 0)
    app.close()
    assert [row[0] for row in found] == [5_000]
    assert steps < 10, f"{steps} hundred steps for one row"
