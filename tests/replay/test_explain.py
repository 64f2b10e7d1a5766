"""What became of one event, which keys wait, and what a key remembers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest

from redrive import App, Ctx, Event, Tx, UsageError, retry, rules
from redrive.errors import RedriveError
from redrive.event import emission_id
from redrive.replay.events import Wanted, find_event, following, newest
from redrive.replay.explain import Fate, explain
from redrive.replay.keyed import state_of
from redrive.replay.lanes import lanes
from redrive.testing import Harness


def fates(harness: Harness, position: int) -> dict[str, Fate]:
    """By subscription, of the event at a position."""
    ((event, log),) = harness.query(
        "SELECT e.id, l.name FROM redrive_events e JOIN redrive_logs l ON l.id = e.log WHERE position = ?", (position,)
    )
    runtime = harness.app.runtime
    return {fate.subscription: fate for fate in explain(runtime.store, runtime.env, event, log).fates}


def test_an_applied_event_names_what_was_made_of_it(bank: Any) -> None:
    position = bank.deposit("a", 1)
    bank.run()
    (event,) = bank.deposits.read()
    for name, fate in fates(bank.harness, position).items():
        assert (fate.fate, fate.letter) == ("applied", None)
        ((log, made, _),) = fate.emitted
        assert (log, made) == ("letters_sent", emission_id(name, event.id, 0))


def test_a_dead_event_and_those_behind_it(bank: Any) -> None:
    head, second, third = bank.deposit("a", 1, "poison"), bank.deposit("a", 2), bank.deposit("a", 3)
    bank.run()
    letter = bank.letter("remind", head)
    dead = fates(bank.harness, head)["remind"]
    assert (dead.fate, dead.letter, dead.lane, dead.behind, dead.attempts) == ("dead", letter, "a", None, 1)
    assert "note poison" in dead.why
    assert dead.error == "redrive.errors.Reject: note poison"
    for position, ahead in ((second, 1), (third, 2)):
        waits = fates(bank.harness, position)["remind"]
        assert (waits.fate, waits.behind, waits.ahead) == ("waiting", letter, ahead)
        assert waits.letter == bank.letter("remind", position)
        assert "note poison" in waits.why


@pytest.mark.parametrize("verb", ["discard", "resolve"])
def test_who_gave_an_event_up_and_why(bank: Any, verb: str) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    getattr(bank.desk.letters, verb)(bank.letter("remind", position), "a test order")
    fate = fates(bank.harness, position)["remind"]
    assert fate.fate == "discarded"
    assert "by ada: a test order" in fate.why


def test_a_replay_applied_it(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    bank.bad.clear()
    bank.desk.letters.replay(bank.letter("remind", position))
    before = fates(bank.harness, position)["remind"]
    assert (before.fate, "replayed" in before.why) == ("retrying", True)
    bank.run()
    after = fates(bank.harness, position)["remind"]
    assert (after.fate, "by a replay" in after.why) == ("applied", True)
    assert len(after.emitted) == 1


def test_a_pending_event_says_how_far_behind_it_is_and_whether_anybody_works(bank: Any) -> None:
    bank.deposit("a", 1)
    bank.run()
    bank.desk.subscriptions.pause("remind")
    for _ in range(3):
        position = bank.deposit("a", 1)
    found = fates(bank.harness, position)
    assert (found["remind"].fate, found["remind"].ahead) == ("pending", 2)
    assert found["remind"].why.endswith("the subscription is paused")
    assert not found["balances"].why.endswith("paused")
    bank.run()
    assert {name: fate.fate for name, fate in fates(bank.harness, position).items()} == {
        "balances": "applied", "remind": "pending",
    }  # fmt: skip


def test_what_cannot_be_told_apart_is_not_claimed(bank: Any) -> None:
    bank.deposit("a", 1, "ignore")
    plain = bank.deposit("b", 1)
    bank.run()
    ignored = fates(bank.harness, 1)["remind"]
    assert (ignored.fate, "unless the function ignored it, as it did one event (" in ignored.why) == ("settled", True)
    assert fates(bank.harness, plain)["remind"].fate == "applied"  # its emission is there


def test_seeking_past_and_back() -> None:
    app = App("unused.db")
    plain = app.log("plain")

    @app.on(plain, start="first")
    def note(event: Event[Any], ctx: Ctx) -> None: ...

    with Harness(app) as harness:
        first = harness.append(plain, "noted", {}).position
        harness.run_until_idle()
        second = harness.append(plain, "noted", {}).position
        desk = app.operate("ada").subscriptions
        desk.seek("note", "now", "old news")
        skipped = fates(harness, second)["note"]
        assert (skipped.fate, "by ada: old news" in skipped.why) == ("skipped", True)
        assert fates(harness, first)["note"].fate == "applied"
        desk.seek("note", first, "not so old")
        assert fates(harness, second)["note"].fate == "pending"
        before = fates(harness, first)["note"]
        assert (before.fate, "the ledger begins above" in before.why) == ("settled", True)
        harness.run_until_idle()
        assert fates(harness, second)["note"].fate == "applied"


def test_a_letter_from_before_a_reset_is_named(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("balances", position)
    bank.desk.reset("balances", "a fix")
    fate = fates(bank.harness, position)["balances"]
    assert (fate.fate, fate.superseded, fate.letter) == ("pending", (letter,), None)
    bank.run()
    again = fates(bank.harness, position)["balances"]
    assert (again.fate, again.superseded) == ("dead", (letter,))
    assert again.letter not in (None, letter)


@pytest.fixture
def filtered() -> Iterator[Harness]:
    app = App("unused.db")
    orders = app.log("orders")

    @app.projection(orders, "order.*", tables=[], order="none")
    def totals(event: Event[Any], tx: Tx) -> None: ...

    @app.on(orders, start="now", retry=retry(attempts=3, wait="1m"), letters=rules(discard=["order.silly"]))
    def late(event: Event[Any], ctx: Ctx) -> None:
        raise ValueError("never works")

    with Harness(app) as harness:
        yield harness


def test_filters_starts_rules_and_retries(filtered: Harness) -> None:
    early = filtered.append("orders", "order.placed", {}).position
    filtered.run_until_idle()
    other = filtered.append("orders", "user.joined", {}, key="u").position
    silly = filtered.append("orders", "order.silly", {}, key="s").position
    filtered.run_until_idle()
    found = fates(filtered, other)
    assert (found["totals"].fate, "order.*" in found["totals"].why) == ("filtered", True)
    assert (found["late"].fate, found["late"].attempts) == ("retrying", 1)
    assert "ValueError: never works" in found["late"].why
    assert fates(filtered, early)["late"].fate == "not_started"
    assert fates(filtered, early)["totals"].fate == "applied"
    filtered.advance("10m")
    assert fates(filtered, other)["late"].fate == "dead"
    assert fates(filtered, silly)["late"].fate == "discarded"
    assert "by the rule" in fates(filtered, silly)["late"].why


def test_the_fates_add_up_to_what_the_ledger_says(bank: Any) -> None:
    for number in range(40):
        bank.deposit(f"k{number % 7}", 1, {3: "poison", 11: "poison", 20: "ignore"}.get(number, ""))
    bank.run()
    bank.desk.letters.discard(bank.letter("balances", 4), "stale")
    bank.run()
    bank.desk.subscriptions.pause("remind")
    late = bank.deposit("k0", 1)
    bank.run()
    tallies: dict[str, Counter[str]] = {"balances": Counter(), "remind": Counter()}
    for position in range(1, late + 1):
        if bank.harness.query("SELECT log FROM redrive_events WHERE position = ?", (position,)) == [(1,)]:
            for name, fate in fates(bank.harness, position).items():
                tallies[name][fate.fate] += 1
    for verdict in bank.desk.verify():
        found = tallies[verdict.subscription]
        assert found["applied"] + found["settled"] == verdict.applied + verdict.ignored
        assert (found["waiting"], found["retrying"]) == (verdict.waiting, verdict.retrying)
        assert (found["dead"], found["discarded"], found["pending"]) == (
            verdict.dead, verdict.discarded, verdict.pending,
        )  # fmt: skip


# ------------------------------------------------------------ finding


def test_an_event_is_found_by_the_beginning_of_its_id_if_it_is_the_only_one(bank: Any) -> None:
    for name in ("order-1", "order-12", "other"):
        bank.harness.append(bank.deposits, "deposited", {"cents": 1}, id=name)
    bank.harness.append(bank.letters_sent, "sent", {}, id="other")
    store = bank.app.runtime.store
    with store.reading() as tx:
        assert find_event(tx, "order-1").id == "order-1"  # exact, though another begins with it
        assert find_event(tx, "order-12").id == "order-12"
        assert find_event(tx, "oth", "deposits").id == "other"
        for text, log, what in (
            ("order", None, "several"), ("other", None, "add --log"), ("nothing", None, "no event"),
            ("order-1", "letters_sent", "no event"), ("order-1", "deposit", "did you mean 'deposits'"),
        ):  # fmt: skip
            with pytest.raises(UsageError, match=what):
                find_event(tx, text, log)


def test_listings_agree_with_a_plain_look_at_the_log(bank: Any) -> None:
    for number in range(30):
        log = bank.deposits if number % 3 else bank.letters_sent
        bank.harness.append(log, f"t.{number % 4}", {}, key=f"k{number % 2}" if number % 5 else None)
        bank.harness.advance("1m")
    everything = bank.harness.query(
        "SELECT e.position, l.name, e.type, e.key, e.time_us FROM redrive_events e JOIN redrive_logs l ON l.id = e.log "
        "ORDER BY e.position"
    )
    store, middle = bank.app.runtime.store, everything[15][4] / 1e6
    for wanted in (
        Wanted(), Wanted("deposits"), Wanted("deposits", key="k1"), Wanted(key="k0"), Wanted(type="t.[12]"),
        Wanted("letters_sent", type="t.3"), Wanted(since=middle), Wanted("deposits", "k1", "t.*", middle),
        Wanted(until=middle), Wanted(type="nothing"),
    ):  # fmt: skip
        expected = [
            row[0]
            for row in everything
            if wanted.log in (None, row[1])
            and wanted.key in (None, row[3])
            and (wanted.type is None or fnmatchcase(row[2], wanted.type))
            and (wanted.since is None or row[4] / 1e6 >= middle)
            and (wanted.until is None or row[4] / 1e6 < middle)
        ]  # fmt: skip
        assert [row.position for row in newest(store, wanted, 5)] == expected[-5:]
        paged: list[int] = []
        while page := following(store, wanted, paged[-1] if paged else 0, 4):
            paged += [row.position for row in page]
        assert paged == expected


# ------------------------------------------------------------ lanes and state


@pytest.mark.parametrize("seed", range(10))
def test_lanes_are_listed_as_their_letters_lie_whatever_happened_to_them(bank: Any, seed: int) -> None:
    dice, store = random.Random(seed), bank.app.runtime.store
    for _ in range(12):
        for _ in range(dice.randrange(6)):
            bank.deposit(dice.choice([*"abcde", None]), 1, dice.choice(["", "poison", "poison"]))
        bank.run()
        bank.bad ^= {"poison"} if dice.random() < 0.3 else set()
        desk, dead = bank.desk.letters, bank.desk.letters.list()
        for letter in dice.sample(dead, min(2, len(dead))):
            dice.choice([desk.discard, desk.replay])(letter.id, "so it is")
        if dice.random() < 0.1:
            bank.desk.reset(dice.choice(["balances", "remind"]), "again")
        bank.check_sound()
        counted = bank.harness.query(
            "SELECT s.name, lane, count(*) - 1, min(position) FROM redrive_letters l JOIN redrive_subscriptions s "
            "ON s.id = l.subscription WHERE lane IS NOT NULL AND state IN ('retrying', 'dead') "
            "GROUP BY s.id, s.name, lane ORDER BY count(*) DESC, min(position), s.id"
        )
        assert [(one.subscription, one.lane, one.waiting, one.head.position) for one in lanes(store)] == counted


def test_the_worst_lane_comes_first_and_pages_follow(bank: Any) -> None:
    for account, followers in (("a", 1), ("b", 3), ("c", 0), ("d", 3)):
        bank.deposit(account, 1, "poison")
        for _ in range(followers):
            bank.deposit(account, 1)
    bank.deposit(None, 1, "poison")  # holds nobody back
    bank.run()
    store = bank.app.runtime.store
    assert [(one.lane, one.waiting) for one in lanes(store, "remind")] == [("b", 3), ("d", 3), ("a", 1), ("c", 0)]
    everything = [(one.subscription, one.lane) for one in lanes(store)]
    assert sorted(everything) == sorted((name, lane) for name in ("balances", "remind") for lane in "abcd")
    for size in (1, 2, 3, 7):
        paged: list[Any] = []
        while page := lanes(store, after=paged[-1].head.id if paged else None, limit=size):
            paged += page
        assert [(one.subscription, one.lane) for one in paged] == everything
    head = lanes(store, "remind")[0].head
    assert (head.state, head.reason, head.position) == ("dead", "rejected", 3)
    bank.desk.letters.discard(head.id, "gone")
    with pytest.raises(UsageError, match="begin again"):
        lanes(store, after=head.id)


def test_the_state_of_a_key_tells_who_wrote_it(bank: Any) -> None:
    bank.deposit("ada", 1)
    last = bank.harness.append(bank.deposits, "deposited", {"cents": 1}, key="ada")
    bank.run()
    found = state_of(bank.app.runtime.store, "remind", "ada")
    assert (found.version, found.event_id, found.event_type) == (last.position, last.id, "deposited")
    assert found.data == b'{"seen":[1,2]}'
    with pytest.raises(RedriveError, match="'ada'"):
        state_of(bank.app.runtime.store, "remind", "adam")
    with pytest.raises(UsageError, match="did you mean 'remind'"):
        state_of(bank.app.runtime.store, "rmind", "ada")
