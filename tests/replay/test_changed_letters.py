"""The owner reads the letters that an operator changed, and no others; what it remembers equals the store."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from redrive.policy.lanes import Head
from redrive.runner import leases
from redrive.runner.duty import Duty
from redrive.runner.project import Projector
from redrive.store.sql import Sql

LANES = 40


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many rows each named query has returned."""
    read: Counter[str] = Counter()
    for kind in (Sql, *Sql.__subclasses__()):
        if "all" in vars(kind):
            monkeypatch.setattr(kind, "all", _counting(vars(kind)["all"], read))
    return read


def _counting(real: Any, read: Counter[str]) -> Any:
    def counted(self: Sql, name: str, params: Any = ()) -> Any:
        rows = real(self, name, params)
        read[name] += len(rows)
        return rows

    return counted


def duty_of(bank: Any, name: str) -> Duty:
    """What the owner of a subscription remembers."""
    supervisor = bank.app.runtime.supervisor
    assert supervisor is not None
    duty: Duty = supervisor.loops[name].duty
    return duty


def remembered(duty: Duty) -> tuple[dict[str, Head], dict[int, Head], dict[str, int]]:
    lanes = duty.lanes
    return dict(lanes._heads), dict(lanes._loose), dict(lanes._sizes)


def stored(bank: Any, duty: Duty) -> tuple[dict[str, Head], dict[int, Head], dict[str, int]]:
    with bank.app.runtime.store.reading() as tx:
        heads = tx.letters.heads(duty.id)
    lanes = {lane: head for lane, head, _ in heads if lane is not None}
    return lanes, {head.letter: head for lane, head, _ in heads if lane is None}, {
        lane: size for lane, _, size in heads if lane is not None
    }  # fmt: skip


def test_owner_reads_only_the_letter_that_changed(bank: Any, rows_read: Counter[str]) -> None:
    for number in range(LANES):
        bank.deposit(f"k{number}", 1, "poison")
    bank.run()
    letters = bank.desk.letters.list(subscription="remind", limit=1000)
    rows_read.clear()
    bank.bad.clear()
    bank.desk.letters.replay(letters[7].id)
    bank.run()
    assert bank.desk.letters.get(letters[7].id).state == "applied"
    assert rows_read["lane_heads"] == rows_read["loose_letters"] == 0
    assert rows_read["changed_lanes"] == 1


def test_owner_reads_all_letters_when_a_list_of_changes_is_missing(bank: Any, rows_read: Counter[str]) -> None:
    """A program of an older version, or one that forgot to list: the version moved and nothing says why."""
    bank.deposit("a", 1, "poison")
    bank.run()
    (letter,) = bank.desk.letters.list(subscription="remind")
    rows_read.clear()
    bank.bad.clear()
    bank.desk.letters.replay(letter.id)
    with bank.app.runtime.store.transaction() as tx:
        tx.sql.run("changes_forget", {"subscription": letter.subscription_id, "upto": 2**62, "limit": 2**40})
    bank.run()
    assert bank.desk.letters.get(letter.id).state == "applied"
    assert rows_read["lane_heads"] == 1


def test_what_the_owner_remembers_equals_the_store_after_random_deeds(bank: Any) -> None:
    dice = random.Random(7)
    for round_ in range(12):
        for _ in range(6):
            bank.deposit(dice.choice(["a", "b", "c", "d", None]), 1, dice.choice(["poison", "", "ignore"]))
        bank.run()
        bank.bad = dice.choice([{"poison"}, set()])
        for name in ("balances", "remind"):
            opened = [one for state in ("dead", "retrying") for one in bank.desk.letters.list(state, name, limit=1000)]
            for letter in dice.sample(opened, min(len(opened), 3)):
                deed = dice.choice(["replay", "discard", "edit", "reopen"])
                if deed == "replay":
                    bank.desk.letters.replay(letter.id)
                elif deed == "discard":
                    bank.desk.letters.discard(letter.id, "given up")
                elif deed == "edit":
                    bank.desk.letters.edit(letter.id, {"cents": 2, "note": ""}, "repaired")
            closed = bank.desk.letters.list("discarded", name, limit=1000)
            for letter in dice.sample(closed, min(len(closed), 1)):
                bank.desk.letters.reopen(letter.id, "not after all")
        bank.run()
        for name in ("balances", "remind"):
            duty = duty_of(bank, name)
            assert remembered(duty) == stored(bank, duty), round_
        bank.check_sound()


def test_projection_reads_many_changes_outside_of_its_transaction(bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More changes than a transaction that writes may read: it ends first, and the owner reads them without it."""
    monkeypatch.setattr("redrive.runner.open_letters.CHANGES_MAX", 1)
    for number in range(5):
        bank.deposit(f"k{number}", 1, "poison")
    bank.run()
    bank.bad.clear()
    projector_turns: list[int] = []
    real = Projector._commit

    def commit(self: Projector, *given: Any, **named: Any) -> None:
        if not projector_turns:  # after the batch was read, before it is written
            projector_turns.append(1)
            letters = bank.desk.letters.list(subscription="balances", limit=10)
            bank.desk.letters.replay([letter.id for letter in letters])
        real(self, *given, **named)

    monkeypatch.setattr(Projector, "_commit", commit)
    bank.deposit("k9", 1)
    bank.run()
    assert projector_turns
    assert bank.balances() == {**{f"k{number}": 1 for number in range(5)}, "k9": 1}
    bank.check_sound()


def test_list_of_changes_is_dropped_when_every_owner_has_read_it(bank: Any) -> None:
    bank.deposit("a", 1, "poison")
    bank.run()
    (letter,) = bank.desk.letters.list(subscription="balances")
    bank.desk.letters.edit(letter.id, {"cents": 1, "note": "poison"}, "no change")
    count = "SELECT count(*) FROM redrive_changes"
    assert bank.harness.query(count) == [(2,)]
    duty = duty_of(bank, "balances")
    for _ in range(leases.RENEWALS_PER_LEASE):
        leases.renew(duty)
        assert bank.harness.query(count) == [(2,)]
    leases.renew(duty)
    assert bank.harness.query(count) == [(0,)]


def test_listed_changes_are_complete_for_every_version_between(bank: Any) -> None:
    bank.deposit("a", 1, "poison")
    bank.deposit("b", 1, "poison")
    bank.run()
    letters = bank.desk.letters.list(subscription="balances", limit=10)
    known = bank.harness.query("SELECT parked_version FROM redrive_progress ORDER BY subscription")[0][0]
    for letter in letters:
        bank.desk.letters.discard(letter.id, "given up")
    with bank.app.runtime.store.reading() as tx:
        found = tx.letters.changes.after(letters[0].subscription_id, known, known + 2)
        assert found is not None
        assert sorted((lane, head) for lane, head, _ in found.lanes) == [("a", None), ("b", None)]
        assert tx.letters.changes.after(letters[0].subscription_id, known, known + 3) is None
