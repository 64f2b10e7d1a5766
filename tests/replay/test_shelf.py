"""Looking at letters: pages, heads, history, totals."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import UsageError


def test_pages_begin_where_the_last_one_ended(bank: Any) -> None:
    for number in range(7):
        bank.deposit(f"k{number}", 1, "poison")
    bank.run()
    letters = bank.desk.letters
    pages, after = [], 0
    while page := letters.list(subscription="balances", after=after, limit=3):
        pages.append([letter.position for letter in page])
        after = page[-1].id
    assert [len(page) for page in pages] == [3, 3, 1]
    assert len(letters.list(limit=100)) == 14
    assert {letter.state for letter in letters.list("dead", limit=100)} == {"dead"}
    assert letters.list("applied") == []


def test_only_the_heads_of_lanes_are_heads(bank: Any) -> None:
    head = bank.deposit("a", 1, "poison")
    for _ in range(3):
        bank.deposit("a", 1, "poison")
    other = bank.deposit("b", 1, "poison")
    bank.run()
    heads = bank.desk.letters.heads("balances")
    assert [(letter.position, waiting) for letter, waiting in heads] == [(head, 3), (other, 0)]
    (first, _), (second, _) = heads
    assert [letter.id for letter, _ in bank.desk.letters.heads("balances", after=first.id)] == [second.id]
    assert bank.desk.letters.waiting(first) == 3


def test_a_dead_letter_behind_another_is_no_head(bank: Any) -> None:
    first, second = bank.deposit("a", 1, "poison"), bank.deposit("a", 2, "poison")
    bank.run()
    letter = bank.letter("balances", first)
    bank.desk.letters.discard(letter, "stale")
    bank.run()
    bank.desk.letters.reopen(letter, "not stale")
    bank.run()
    assert bank.state_of("balances", second) == "dead"
    assert [letter.position for letter, _ in bank.desk.letters.heads("balances", limit=1)] == [first]


def test_the_history_of_a_letter_tells_every_attempt(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    (entry,) = bank.desk.letters.history(bank.letter("balances", position))
    assert (entry.attempt, entry.outcome, entry.error_message) == (1, "rejected", "note poison")
    assert "conftest.py" in entry.traceback
    assert len(entry.fingerprint) == 12


def test_totals_come_by_every_field(bank: Any) -> None:
    bank.deposit("a", 1, "poison")
    bank.deposit("a", 1)
    bank.run()
    stats = bank.desk.letters.stats()
    assert stats.by("state") == {"dead": 2, "waiting": 2}
    assert stats.by("subscription") == {"balances": 2, "remind": 2}
    assert stats.by("reason") == {"rejected": 2, "behind_head": 2}
    assert stats.by("type") == {"deposited": 4}
    assert len(stats.by("fingerprint")) == 3


def test_what_is_not_there_is_none_and_what_makes_no_sense_is_an_error(bank: Any) -> None:
    bank.run()
    letters = bank.desk.letters
    assert letters.get(1) is None
    assert letters.event(1) is None
    assert letters.history(1) == []
    for wrong in ({"state": "sleeping"}, {"limit": 0}, {"after": -1}, {"subscription": "nobody"}):
        with pytest.raises(UsageError):
            letters.list(**wrong)
