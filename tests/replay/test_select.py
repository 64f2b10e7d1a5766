"""Which letters are meant: every filter alone and together gives what a plain scan gives."""

from __future__ import annotations

import random
from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

import pytest

from redrive import UsageError
from redrive.replay import select as selecting
from redrive.replay.causes import causes, note
from redrive.replay.select import Selection, select, select_parked, select_with_waiting, with_followers
from redrive.replay.shelf import Stats
from redrive.replay.tally import tally
from redrive.store.port import LetterRow


@pytest.fixture
def many(bank: Any) -> Any:
    """Sixty events of six keys and three notes, two of them poisonous."""
    dice = random.Random(5)
    bank.bad.add("other")
    for _ in range(60):
        bank.deposit(dice.choice("abcdef"), 1, dice.choice(["", "poison", "other"]))
        bank.harness.advance("1s")
    bank.run()
    return bank


def everything(bank: Any) -> list[LetterRow]:
    return [letter for letter in bank.harness.letters() if letter.state == "dead"]


def matches(letter: LetterRow, chosen: Selection) -> bool:
    failed = letter.last_failed_at or letter.parked_at
    return (
        chosen.subscription in (None, letter.subscription)
        and (chosen.type is None or fnmatchcase(letter.type, chosen.type))
        and chosen.key in (None, letter.key)
        and chosen.reason in (None, letter.reason)
        and (chosen.error is None or chosen.error.lower() in f"{letter.error_type}: {letter.error_message}".lower())
        and (chosen.fingerprint is None or letter.fingerprint.startswith(chosen.fingerprint))
        and (chosen.since is None or failed >= chosen.since)
        and (chosen.until is None or failed < chosen.until)
    )


@pytest.mark.parametrize("rare", [0.0, 0.05, 2.0])  # by the page, as it is, and always by cause
@pytest.mark.parametrize(("few", "near"), [(10_000, 20_000), (0, 5), (5, 0)])  # always by time, never, sometimes
def test_every_combination_finds_what_a_scan_finds(
    many: Any, rare: float, few: int, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selecting, "RARE", rare)
    monkeypatch.setattr(selecting, "FEW", few)
    monkeypatch.setattr(selecting, "NEAR", near)
    store, letters = many.app.runtime.store, everything(many)
    assert len(letters) > 6
    middle = sorted(letter.last_failed_at or 0.0 for letter in letters)[len(letters) // 2]
    options: dict[str, list[Any]] = {
        "subscription": [None, "balances", "remind"], "type": [None, "deposited", "dep*", "x.*"],
        "key": [None, "a", "z"],
        "reason": [None, "rejected", "no such"], "error": [None, "POISON", "reject: note other", "nothing"],
        "fingerprint": [None, letters[0].fingerprint, letters[0].fingerprint[:4], "zzz"],
        "since": [None, middle, middle + 20, 0.0, 1e12], "until": [None, middle, middle - 20, 0.0, 1e12],
    }  # fmt: skip
    dice = random.Random(1)
    for _ in range(300):
        chosen = Selection(**{name: dice.choice(values + [None] * 3) for name, values in options.items()})
        expected = [letter.id for letter in letters if matches(letter, chosen)]
        assert [letter.id for letter in select(store, chosen)] == sorted(expected), chosen
        after = dice.choice(letters).id
        page = [letter.id for letter in select(store, chosen, after=after, limit=2)]
        assert page == [number for number in sorted(expected) if number > after][:2], (chosen, after)
        meant = [letter for letter in letters if letter.id in expected]
        assert counted(tally(store, chosen)) == Counter(map(what, meant)), chosen
        shown = [(one.subscription, one.fingerprint) for one in causes(store, chosen).found]
        assert sorted(shown) == sorted({(one.subscription, one.fingerprint) for one in meant}), chosen


def what(letter: LetterRow) -> tuple[str, ...]:
    return letter.subscription, letter.state, letter.reason, letter.type, letter.fingerprint


def counted(stats: Stats) -> Counter[tuple[str, ...]]:
    """The dead ones: the counters know the others too."""
    assert stats.exact
    return Counter({tuple(one[:-1]): one.n for one in stats.counts if one.state == "dead"})


def test_more_letters_than_are_looked_at_are_said_to_be_more(many: Any) -> None:
    store, letters = many.app.runtime.store, everything(many)
    enough, few = (tally(store, Selection(since=0.0), limit) for limit in (len(letters), len(letters) - 1))
    assert (enough.exact, sum(one.n for one in enough.counts)) == (True, len(letters))
    assert (few.exact, sum(one.n for one in few.counts)) == (False, len(letters) - 1)
    several = tuple(str(letter.id) for letter in letters[:3])
    assert counted(tally(store, Selection(ids=several), 1)) == Counter(map(what, letters[:3]))


def test_counters_know_letters_in_every_state(many: Any) -> None:
    all_of_them = many.harness.letters()
    chosen = Selection(subscription="balances", type="dep*")
    assert {one.state for one in tally(many.app.runtime.store, chosen).counts} == {"dead", "waiting"}
    total = sum(one.n for one in tally(many.app.runtime.store, chosen).counts)
    assert total == len([letter for letter in all_of_them if letter.subscription == "balances"])


def test_pages_and_heads(many: Any) -> None:
    store = many.app.runtime.store
    whole = select(store, Selection(everything=True), heads=True)
    pages: list[int] = []
    while page := select(store, Selection(everything=True), heads=True, after=pages[-1] if pages else 0, limit=2):
        pages += [letter.id for letter in page]
    assert pages == [letter.id for letter in whole]
    assert len({(letter.subscription, letter.lane) for letter in whole}) == len(whole)
    for letter, waiting in select_with_waiting(store, Selection(everything=True)):
        assert waiting == len(many.desk.letters.behind(letter, 1000))


def test_what_is_parked_is_everything_open_that_is_no_head(many: Any) -> None:
    store = many.app.runtime.store
    opened = [letter for letter in many.harness.letters() if letter.state == "retrying"]
    assert [letter.id for letter, _ in select_parked(store, Selection(), limit=1000)] == [one.id for one in opened]
    heads = select(store, Selection(everything=True), heads=True)
    assert len(with_followers(store, heads)) == len(opened) + len(heads)


def test_a_letter_is_named_by_its_number_or_the_beginning_of_its_event(many: Any) -> None:
    store, letter = many.app.runtime.store, everything(many)[0]
    assert select(store, Selection(ids=(str(letter.id), str(letter.id))))[0].id == letter.id
    alone = [one for one in everything(many) if one.event_id == letter.event_id]
    if len(alone) == 1:
        assert select(store, Selection(ids=(letter.event_id,)))[0].id == letter.id
    else:
        with pytest.raises(UsageError, match="beginning of several"):
            select(store, Selection(ids=(letter.event_id,)))
    for nothing in ("99999", "abc", "1; DROP TABLE", "ffffffff", "9" * 30):
        with pytest.raises(UsageError, match="no letter"):
            select(store, Selection(ids=(nothing,)))


def test_nothing_said_is_not_everything() -> None:
    for wrong in (Selection(), Selection(ids=("1",), key="a"), Selection(everything=True, key="a")):
        with pytest.raises(UsageError):
            wrong.check()
    for right in (Selection(everything=True, subscription="a"), Selection(ids=("1",)), Selection(since=0.0)):
        right.check()


def test_an_unknown_subscription_gets_the_nearest_named(many: Any) -> None:
    with pytest.raises(UsageError, match="did you mean 'balances'"):
        select(many.app.runtime.store, Selection(subscription="balance"))


# ---------------------------------------------------------------- causes


def test_causes_add_up_to_the_letters(many: Any) -> None:
    store, letters = many.app.runtime.store, everything(many)
    found, total, _ = causes(store)
    assert total == len(found) == len({(one.subscription, one.fingerprint) for one in letters})
    assert sum(one.dead for one in found) == len(letters)
    for one in found:
        same = (one.subscription, one.fingerprint)
        mine = [letter for letter in letters if (letter.subscription, letter.fingerprint) == same]
        assert (one.dead, one.lanes) == (len(mine), len({letter.lane for letter in mine}))
        assert one.waiting == sum(len(many.desk.letters.behind(letter, 1000)) for letter in mine)
        assert one.first_seen == min(letter.first_failed_at or 0.0 for letter in mine)
        assert one.last_seen == max(letter.last_failed_at or 0.0 for letter in mine)
    assert {one.subscription for one in causes(store, Selection(subscription="remind")).found} == {"remind"}


def test_a_cause_that_was_fixed_and_comes_back_has_regressed(many: Any) -> None:
    store, operator = many.app.runtime.store, many.desk.operator
    cause = causes(store, Selection(subscription="balances")).found[0].fingerprint
    assert note(operator, cause[:6], "a gateway bug, ticket 17") == cause
    assert causes(store, Selection(subscription="balances")).found[0].standing == ""
    many.harness.advance("1s")
    note(operator, cause, "fixed in 1.2", resolved=True)
    (known,) = [one for one in causes(store, Selection(subscription="balances")).found if one.fingerprint == cause]
    assert (known.standing, [entry.text for entry in known.notes]) == (
        "resolved",
        ["a gateway bug, ticket 17", "fixed in 1.2"],
    )
    many.harness.advance("1s")
    many.deposit("new", 1, "poison")
    many.run()
    assert causes(store, Selection(subscription="balances")).found[0].standing == "regressed"
    with pytest.raises(UsageError, match="no letter has the fingerprint"):
        note(operator, "nothing like it", "x")
    with pytest.raises(UsageError, match="needs a text"):
        note(operator, cause, "  ")


def test_too_little_of_an_id_is_said_to_be_too_little(bank: Any) -> None:
    with pytest.raises(UsageError, match="4 characters of an event's id are wanted"):
        select(bank.app.runtime.store, Selection(ids=("e4",)))
