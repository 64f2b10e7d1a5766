"""Reopening a discard: the owner does it on an idle lane, in the transaction that consumes the request, or refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event, Reject, no_retry
from redrive.testing import Harness, failpoint


def controls(bank: Any) -> list[tuple[Any, ...]]:
    """What is still asked for."""
    rows: list[tuple[Any, ...]] = bank.harness.query("SELECT verb, letter FROM redrive_controls")
    return rows


@pytest.mark.parametrize("subscription", ["balances", "remind"])
def test_a_discard_is_taken_back_by_the_owner(bank: Any, subscription: str) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter(subscription, position)
    bank.desk.letters.discard(letter, "stale")
    bank.run()
    bank.bad.clear()
    receipt = bank.desk.letters.reopen(letter, "not stale at all")
    assert receipt.done == (letter,)
    assert controls(bank) == [("reopen", letter)]
    bank.run()
    assert bank.state_of(subscription, position) == "applied"
    assert controls(bank) == []
    assert [(who, action) for who, action, _, _ in bank.audit()] == [
        ("ada", "discard"),
        ("ada", "reopen"),
        ("ada", "reopened"),
    ]
    bank.check_sound()


@pytest.mark.parametrize("subscription", ["balances", "remind"])
def test_a_discard_stays_when_a_later_event_of_its_lane_is_settled(bank: Any, subscription: str) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter(subscription, position)
    bank.desk.letters.discard(letter, "stale")
    later = bank.deposit("a", 2)
    bank.run()
    bank.desk.letters.reopen(letter, "too late")
    bank.run()
    assert bank.state_of(subscription, position) == "discarded"
    assert bank.audit()[-1][1] == "reopen refused"
    assert f"position {later}" in bank.audit()[-1][3]
    assert controls(bank) == []
    bank.check_sound()


def test_request_about_a_letter_that_is_gone_is_answered(bank: Any) -> None:
    """It was pruned with its event before the owner looked."""
    bank.run()
    with bank.app.runtime.store.transaction() as tx:
        tx.books.ask(1, "reopen", 10**6, 0, "ada", "never mind", bank.harness.clock.now())
        tx.progress.lock(1)
    bank.run()
    assert controls(bank) == []
    assert bank.audit()[-1][1] == "reopen refused"


def test_later_events_of_other_lanes_do_not_matter(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("balances", position)
    bank.desk.letters.discard(letter, "stale")
    bank.deposit("b", 2)
    bank.run()
    bank.bad.clear()
    bank.desk.letters.reopen(letter, "not stale")
    bank.run()
    assert bank.state_of("balances", position) == "applied"


def test_a_reopened_letter_goes_before_the_letters_that_follow_it(bank: Any) -> None:
    first, second = bank.deposit("a", 1, "poison"), bank.deposit("a", 2, "poison")
    bank.run()
    letter = bank.letter("balances", first)
    bank.desk.letters.discard(letter, "stale")
    bank.run()
    assert bank.state_of("balances", second) == "dead"
    bank.desk.letters.reopen(letter, "not stale")
    bank.run()
    assert bank.state_of("balances", first) == "dead"  # tried once more, and the head again
    receipt = bank.desk.letters.replay(bank.letter("balances", second))
    assert f"behind letter {letter}" in receipt.refused[0].why
    bank.check_sound()


def test_lanes_made_by_a_key_function_are_respected() -> None:
    app = App("unused.db")
    logins = app.log("logins")
    bad = True

    @app.on(logins, key_by="user", start="first", retry=no_retry)
    def watch(event: Event[Any], ctx: Ctx) -> None:
        if bad and event.data["n"] == 1:
            raise Reject("bad")

    with Harness(app) as harness:
        for n, user in enumerate(["ada", "ada", "bob", "bob"]):
            harness.append(logins, "login", {"user": user, "n": 1 - n % 2}, key="one key for all")
        harness.run_until_idle()
        letters = app.operate("eve").letters
        heads = [letter.id for letter in letters.list()]
        letters.discard(heads, "stale")
        bad = False
        letters.reopen(heads[0], "at once, before its follower runs")
        harness.run_until_idle()
        letters.reopen(heads[1], "after its follower ran")
        harness.run_until_idle()
        states = [(letter.position, letter.state) for letter in harness.letters()]
        assert states == [(1, "applied"), (2, "applied"), (3, "discarded"), (4, "applied")]
        assert harness.query("SELECT action FROM redrive_audit ORDER BY id")[-1] == ("reopen refused",)


def test_a_busy_lane_is_waited_for() -> None:
    app = App("unused.db")
    logins = app.log("logins")
    bad, seen = True, list[int]()

    @app.on(logins, start="first", retry=no_retry, concurrency=4)
    async def watch(event: Event[Any], ctx: Ctx) -> None:
        if bad and event.position < 3:
            raise Reject("bad")
        if event.position == 2:
            app.operate("ada").letters.reopen(first, "while a later letter of the lane runs")
            logins.append("c", {}, key="other")
            await asyncio.sleep(10)
        seen.append(event.position)

    with Harness(app) as harness:
        harness.append(logins, "a", {}, key="k")
        harness.append(logins, "b", {}, key="k")
        harness.run_until_idle()
        first, desk = harness.letters()[0].id, app.operate("ada").letters
        desk.discard(first, "stale")
        harness.run_until_idle()
        second, bad = harness.letters("dead")[0].id, False
        desk.replay(second)
        harness.advance("60s")
        assert seen == [3, 2]
        assert [letter.state for letter in harness.letters()] == ["discarded", "applied"]
        assert harness.query("SELECT action FROM redrive_audit ORDER BY id")[-1] == ("reopen refused",)


def test_a_request_survives_the_death_of_the_owner_that_performs_it(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("remind", position)
    bank.desk.letters.discard(letter, "stale")
    bank.bad.clear()
    bank.desk.letters.reopen(letter, "not stale")
    with failpoint("operator.before_commit", bank.harness.crash), pytest.raises(Exception, match="died"):
        bank.run()
    assert controls(bank) == [("reopen", letter)]
    bank.run()
    assert bank.state_of("remind", position) == "applied"
    bank.check_sound()


def test_only_a_discard_is_reopened(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    receipt = bank.desk.letters.reopen(bank.letter("remind", position), "hm")
    assert receipt.done == ()
    assert "only a discarded letter" in receipt.refused[0].why


def test_a_request_for_a_letter_that_moved_is_refused(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("remind", position)
    bank.desk.letters.discard(letter, "stale")
    bank.desk.letters.reopen(letter, "once")
    bank.desk.letters.reopen(letter, "twice")
    bank.run()
    assert [action for _, action, _, _ in bank.audit()][-2:] == ["reopened", "reopen refused"]
    assert bank.state_of("remind", position) == "dead"


@pytest.mark.parametrize("change", ["another key", "an order"])
def test_a_letter_that_is_reopened_waits_in_the_lane_that_its_event_has_by_now(tmp_path: Path, change: str) -> None:
    path = str(tmp_path / "w.db")
    seen: list[int] = []

    def declared(bad: set[int], **options: Any) -> App:
        app = App("unused.db")

        @app.on(app.log("logins"), name="watch", start="first", retry=no_retry, **options)
        def watch(event: Event[Any], ctx: Ctx) -> None:
            if event.position in bad:
                raise Reject("bad")
            seen.append(event.position)

        return app

    before, after = {
        "another key": ({"key_by": "user"}, {"key_by": "team"}),
        "an order": ({"key_by": "team", "order": "none"}, {"key_by": "team"}),
    }[change]
    with Harness(declared({2}, **before), path) as harness:
        for user in ("ada", "bob"):
            harness.append("logins", "login", {"user": user, "team": "x"})
        harness.run_until_idle()
        (second,) = harness.letters("dead")
        harness.app.operate("ada").letters.discard(second, "stale")
    app = declared({1}, **after)
    with Harness(app, path) as harness:
        desk = app.operate("ada")
        desk.reset("watch", "by team, in order")
        harness.run_until_idle()
        seen.clear()
        desk.letters.reopen(second.id, "not stale at all")
        harness.run_until_idle()
        assert seen == []
        assert [(letter.position, letter.lane) for letter in harness.letters()[-2:]] == [(1, "x"), (2, "x")]
        assert all(verdict.sound for verdict in desk.verify())
    app = declared(set(), **after)
    with Harness(app, path) as harness:
        harness.replay()
        harness.run_until_idle()
        assert seen == [1, 2]
        assert all(verdict.sound for verdict in app.operate("ada").verify())
