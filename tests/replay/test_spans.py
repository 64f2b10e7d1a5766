"""Events are found by type and time as if each had been looked at, however small the spans that listings go by."""

from __future__ import annotations

import random
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from redrive import App, VersionConflict
from redrive.replay.events import EventRow, Wanted, following, newest
from redrive.replay.prune import What
from redrive.store import spans, versions

pytestmark = pytest.mark.sqlite("there are no spans where transactions append side by side")

DAY = 86_400.0


def looked_at(bank: Any, wanted: Wanted) -> list[int]:
    """Positions of what is wanted, from every event there is."""
    rows = bank.harness.query(
        "SELECT position, l.name, type, time_us / 1e6 FROM redrive_events e JOIN redrive_logs l ON l.id = e.log "
        "ORDER BY position"
    )
    return [
        position
        for position, log, kind, time in rows
        if wanted.log in (None, log)
        and (wanted.type is None or fnmatchcase(kind, wanted.type))
        and (wanted.since is None or time >= wanted.since)
        and (wanted.until is None or time < wanted.until)
    ]


def positions(rows: list[EventRow]) -> list[int]:
    return [row.position for row in rows]


def refused(bank: Any, size: int) -> None:
    with bank.app.transaction() as tx:
        for number in range(size):
            bank.deposits.append("refused", number, tx=tx)
        bank.deposits.append("refused", 0, key="a", expected_version=10_000, tx=tx)


def found_after(bank: Any, damage: str) -> set[tuple[str, tuple[int, ...]]]:
    """What verify says of twenty sound events after that."""
    for _ in range(20):
        bank.deposit("a", 1)
    bank.run()
    bank.check_sound()
    with bank.app.runtime.store.transaction() as tx:
        tx.connection.execute(damage)
    return {(one.rule, one.positions) for verdict in bank.desk.verify() for one in verdict.violations}


def happen(bank: Any, dice: random.Random) -> None:
    """Something that appends events, fails to, or deletes them."""
    match dice.choice(["deposit", "deposit", "other", "run", "refused", "back", "forth", "restart", "prune"]):
        case "deposit":
            for _ in range(dice.randrange(8)):
                bank.deposit(dice.choice("abc"), 1, dice.choice(["", "", "poison"]))
        case "other":
            bank.harness.append(bank.letters_sent, dice.choice(["t.1", "t.2", "rare"]), {}, key="k")
        case "run":
            bank.run()
        case "refused":  # what was appended before it in the same transaction is taken back
            with pytest.raises(VersionConflict):
                refused(bank, dice.randrange(1, 20))
        case "back":  # clocks are set back
            bank.harness.clock.jump(-dice.uniform(0, 600))
        case "forth":
            bank.harness.advance(f"{dice.randrange(1, 600)}s")
        case "restart":
            bank.harness.restart()
        case "prune" if dice.random() < 0.3:
            bank.harness.advance("2d")
            what = What(DAY, None, ("deposits",), ("balances", "remind"))
            bank.desk.prune(what, bank.desk.plan_prune(what), "old")


@pytest.mark.parametrize("seed", range(12))
def test_listings_find_what_a_look_at_every_event_finds(bank: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(spans, "SPAN", dice.choice([1, 2, 5, 16]))
    monkeypatch.setattr(spans, "PAGE", dice.choice([1, 2, 256]))
    bank.deposit("a", 1)
    bank.harness.append(bank.letters_sent, "t.1", {})
    for _ in range(40):
        happen(bank, dice)
        store = bank.app.runtime.store
        times = [time / 1e6 for (time,) in bank.harness.query("SELECT time_us FROM redrive_events")]
        moments = [None, None, dice.choice(times), min(times), max(times), max(times) + 1]
        wanted = Wanted(
            dice.choice([None, "deposits", "letters_sent"]), None,
            dice.choice([None, "deposited", "t.*", "rare", "refused", "balance.*", "none"]),
            dice.choice(moments), dice.choice(moments),
        )  # fmt: skip
        expected = looked_at(bank, wanted)
        size = dice.choice([1, 3, 50])
        assert positions(newest(store, wanted, size)) == expected[-size:]
        after, upto = sorted(dice.choices(range(max(expected, default=9) + 3), k=2))
        between = [position for position in expected if after < position <= upto]
        assert positions(following(store, wanted, after, size, upto=upto)) == between[:size]
        assert positions(following(store, wanted, after, size)) == [one for one in expected if one > after][:size]
    bank.run()
    bank.check_sound()
    assert bank.harness.query("SELECT count(*) FROM redrive_spans") != [(0,)]


@pytest.mark.parametrize(
    "damage",
    ["DELETE FROM redrive_spans WHERE span = 1", "UPDATE redrive_spans SET low = high + 1 WHERE span = 1",
     "UPDATE redrive_spans SET type = 'other' WHERE span = 1", "UPDATE redrive_spans SET log = 9 WHERE span = 1"],
)  # fmt: skip
def test_a_span_that_hides_events_is_found(bank: Any, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN", 4)
    assert found_after(bank, damage) == {("strays", (4, 5, 6, 7))}


def test_another_process_has_appended_meanwhile(bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN", 4)
    store = bank.app.runtime.store
    for position in range(1, 30):
        bank.deposit("a", 1)
        if position % 7 == 0:
            with store.transaction() as tx:
                tx.logs.spans._due = 0  # as one who has seen nothing yet
        whole = bank.harness.query("SELECT DISTINCT span FROM redrive_spans ORDER BY span")
        assert whole == [(span,) for span in range(position // 4)]


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize("seed", range(12))
def test_events_are_found_by_their_key_as_if_each_had_been_looked_at(
    bank: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(spans, "SPAN", dice.choice([1, 2, 5, 16]))
    monkeypatch.setattr(versions, "NEAR", dice.choice([0, 3, 2_000]))
    monkeypatch.setattr(versions, "KEYS_MAX", dice.choice([0, 2, 100_000]))
    bank.deposit("a", 1)
    counts: Counter[str] = Counter()
    for _ in range(40):
        happen(bank, dice)
        store, key = bank.app.runtime.store, dice.choice("abc")
        rows = bank.harness.query(
            "SELECT position, version FROM redrive_events WHERE log = (SELECT id FROM redrive_logs WHERE name = "
            f"'deposits') AND key = '{key}' ORDER BY position"
        )
        counts[key] = max([counts[key], *(version for _, version in rows)])
        after, size = dice.randrange(4), dice.choice([1, 3, 50])
        found = [(event.position, event.version) for event in bank.deposits.read_key(key, after_version=after)]
        assert found == [row for row in rows if row[1] > after]
        wanted = Wanted("deposits", key)
        assert positions(newest(store, wanted, size)) == [position for position, _ in rows][-size:]
        assert positions(following(store, wanted, 3, size)) == [position for position, _ in rows if position > 3][:size]
        if dice.random() < 0.5:
            with pytest.raises(VersionConflict):
                bank.deposits.append("refused", 0, key=key, expected_version=counts[key] + 1)
            event = bank.deposits.append("deposited", {"amount": 1}, key=key, expected_version=counts[key])
            counts[key] += 1
            assert event.version == counts[key]
        assert bank.harness.query(
            "SELECT count(*) FROM redrive_keys WHERE position NOT IN (SELECT position FROM redrive_events)"
        ) == [(0,)]
    bank.run()
    bank.check_sound()


@pytest.mark.parametrize("seed", range(4))
def test_two_who_append_in_turns_count_on_from_each_other(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(spans, "SPAN", dice.choice([1, 4, 30]))
    monkeypatch.setattr(versions, "NEAR", dice.choice([0, 5, 2_000]))
    monkeypatch.setattr(versions, "KEYS_MAX", dice.choice([1, 100_000]))
    apps = [App(str(tmp_path / "shop.db")) for _ in range(2)]
    counts: Counter[tuple[str, str]] = Counter()
    for _ in range(120):
        name, keys = dice.choice(["orders", "payments"]), dice.choices("abcdefgh", k=dice.choice([1, 1, 2, 9]))
        made = dice.choice(apps).log(name).append_many([{"type": "made", "key": key} for key in keys])
        for event, key in zip(made, keys, strict=True):
            counts[name, key] += 1
            assert event.version == counts[name, key]
    for app in apps:
        for (name, key), count in counts.items():
            assert [event.version for event in app.log(name).read_key(key)] == [*range(1, count + 1)]
        app.close()


@pytest.mark.parametrize(
    "damage",
    ["DELETE FROM redrive_keys WHERE version IN (2, 3)", "UPDATE redrive_keys SET position = 1 WHERE version IN (2, 3)",
     "UPDATE redrive_keys SET key = 'b' WHERE version IN (2, 3)"],
)  # fmt: skip
def test_an_event_that_its_key_does_not_lead_to_is_found(
    bank: Any, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "SPAN", 4)
    assert found_after(bank, damage) == {("strays", (2, 3))}
