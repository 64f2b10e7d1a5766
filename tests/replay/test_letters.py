"""The letter desk: each deed does one thing, or says why not; nothing is reordered, doubled or forgotten."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import msgspec
import pytest

import redrive
from redrive import App, Ctx, Event, Reject, Tx, UsageError, no_retry
from redrive.errors import EventError
from redrive.observe.signals import Operated
from redrive.replay.letters import CHUNK_MAX, LetterDesk
from redrive.replay.operations import operate
from redrive.runtime import Runtime
from redrive.settings import Settings
from redrive.testing import Harness, failpoint


def test_a_dead_head_is_replayed_and_its_followers_run_in_order(bank: Any) -> None:
    first, second, third = bank.deposit("a", 1, "poison"), bank.deposit("a", 2), bank.deposit("a", 4)
    bank.run()
    assert bank.balances() == {}
    bank.bad.clear()
    receipt = bank.desk.letters.replay([bank.letter("balances", first)])
    assert (receipt.action, len(receipt.done), receipt.refused) == ("replay", 1, ())
    bank.run()
    assert bank.balances() == {"a": 7}
    assert [position for name, position, _ in bank.calls if name == "balances"] == [first, second, third]
    assert bank.state_of("balances", first) == bank.state_of("balances", third) == "applied"
    bank.check_sound()


def test_a_replay_that_fails_is_dead_again_after_one_attempt(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("remind", position)
    bank.desk.letters.replay(letter)
    bank.run()
    assert bank.state_of("remind", position) == "dead"
    assert [entry.attempt for entry in bank.desk.letters.history(letter)] == [1, 2]
    bank.check_sound()


def test_a_follower_is_not_replayed_and_the_refusal_names_the_head(bank: Any) -> None:
    head, follower = bank.deposit("a", 1, "poison"), bank.deposit("a", 2)
    bank.run()
    receipt = bank.desk.letters.replay(bank.letter("balances", follower))
    assert receipt.done == ()
    assert f"behind letter {bank.letter('balances', head)} (position {head})" in receipt.refused[0].why
    assert bank.audit() == []


@pytest.mark.parametrize("state", ["retrying", "applied", "discarded"])
def test_only_a_dead_letter_is_replayed(bank: Any, state: str) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("remind", position)
    if state == "discarded":
        bank.desk.letters.discard(letter, "stale")
    else:
        bank.bad.clear()
        bank.desk.letters.replay(letter)
        if state == "applied":
            bank.run()
    receipt = bank.desk.letters.replay(letter)
    assert receipt.done == ()
    assert state in receipt.refused[0].why


def test_letters_in_a_lane_of_their_own_are_replayed_in_any_order(bank: Any) -> None:
    first, second = bank.deposit(None, 1, "poison"), bank.deposit(None, 2, "poison")
    bank.run()
    bank.bad.clear()
    receipt = bank.desk.letters.replay([bank.letter("balances", second)])
    assert len(receipt.done) == 1
    bank.run()
    assert (bank.state_of("balances", first), bank.state_of("balances", second)) == ("dead", "applied")


def test_a_discard_frees_the_lane_and_says_who_and_why(bank: Any) -> None:
    head, second, third = bank.deposit("a", 1, "poison"), bank.deposit("a", 2), bank.deposit("a", 4)
    bank.run()
    letter = bank.letter("balances", head)
    bank.desk.letters.discard(letter, "a test deposit")
    bank.run()
    assert bank.balances() == {"a": 6}
    assert [position for name, position, _ in bank.calls if name == "balances"] == [second, third]
    assert bank.desk.letters.get(letter).resolved_by == "discard: ada"
    assert bank.audit() == [("ada", "discard", f"letter {letter}", "a test deposit")]
    assert Operated("discard", "balances", f"letter {letter}", "ada") in bank.harness.signals
    bank.check_sound()


def test_a_resolved_letter_counts_as_discarded_and_says_that_it_was_done_elsewhere(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("balances", position)
    bank.desk.letters.resolve([letter], "booked by hand")
    assert bank.desk.letters.get(letter).resolved_by == "resolve: ada"
    assert next(v for v in bank.desk.verify() if v.subscription == "balances").discarded == 1
    bank.check_sound()


@pytest.mark.parametrize("deed", ["discard", "resolve", "reopen", "edit"])
def test_what_cannot_be_taken_back_needs_a_reason(bank: Any, deed: str) -> None:
    desk = bank.desk.letters
    arguments: tuple[Any, ...] = (1, {}, " ") if deed == "edit" else (1, " ")
    with pytest.raises(UsageError, match="reason"):
        getattr(desk, deed)(*arguments)


def test_an_unknown_letter_is_refused_and_the_others_are_done(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("remind", position)
    receipt = bank.desk.letters.discard([letter, 999, letter], "both of them")
    assert receipt.done == (letter,)
    assert [(refusal.letter, refusal.why) for refusal in receipt.refused] == [(999, "there is no such letter")]


def test_a_letter_that_moved_since_it_was_looked_at_is_left_alone(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    seen = bank.desk.letters.get(bank.letter("remind", position))
    bank.desk.letters.replay(seen)
    bank.run()
    receipt = bank.desk.letters.discard([seen], "as I saw it")
    assert receipt.done == ()
    assert "changed since you looked" in receipt.refused[0].why
    assert bank.state_of("remind", position) == "dead"


def test_an_edit_is_replayed_with_its_data_and_its_own_idempotency_key(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("remind", position)
    original = bank.desk.letters.event(letter)
    bank.desk.letters.edit(letter, {"cents": 5, "note": "poison"}, "still wrong")
    bank.desk.letters.edit(letter, {"cents": 5, "note": "fine"}, "the note was wrong")
    bank.desk.letters.replay(letter)
    bank.run()
    assert bank.state_of("remind", position) == "applied"
    assert bank.calls == [("remind", position, f"remind:{original.id}:2")]
    revisions = bank.desk.letters.edits(bank.desk.letters.get(letter))
    assert [(one.rev, one.data) for one in revisions] == [
        (1, b'{"cents":5,"note":"poison"}'),
        (2, b'{"cents":5,"note":"fine"}'),
    ]
    assert next(bank.deposits.read()).data == original.data  # the log keeps the original
    assert bank.state_of("balances", position) == "dead"  # an edit is one subscription's
    bank.check_sound()


def test_an_edit_refuses_what_a_log_would_refuse(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    with pytest.raises(EventError):
        bank.desk.letters.edit(bank.letter("remind", position), {"cents": float("nan")}, "no number")


def test_an_edit_cannot_move_a_letter_to_another_lane() -> None:
    app = App("unused.db")
    logins = app.log("logins")

    @app.on(logins, key_by="user", start="first", retry=no_retry)
    def watch(event: Event[Any], ctx: Ctx) -> None:
        raise Reject("always")

    with Harness(app) as harness:
        harness.append(logins, "login", {"user": "ada"})
        harness.append(logins, "login", {"nobody": True})
        harness.run_until_idle()
        desk = app.operate("bob").letters
        keyed, unkeyed = sorted(desk.list(), key=lambda letter: letter.position)
        assert "changes its key" in desk.edit(keyed, {"user": "eve"}, "hm").refused[0].why
        assert "no key" in desk.edit(keyed, {}, "hm").refused[0].why
        assert desk.edit(keyed, {"user": "ada", "n": 1}, "same key").done == (keyed.id,)
        assert desk.edit(unkeyed, {"user": "eve"}, "it had none").done == (unkeyed.id,)


def test_an_edit_that_the_key_function_cannot_take_is_refused() -> None:
    app = App("unused.db")
    logins = app.log("logins")

    @app.on(logins, key_by=lambda event: event.data["user"], start="first", retry=no_retry)
    def watch(event: Event[Any], ctx: Ctx) -> None:
        raise Reject("always")

    with Harness(app) as harness:
        harness.append(logins, "login", {"user": "ada"})
        harness.run_until_idle()
        desk = app.operate("bob").letters
        (letter,) = desk.list()
        assert "key_by raised KeyError" in desk.edit(letter, {}, "hm").refused[0].why
        assert "key_by raised TypeError" in desk.edit(letter, "ada", "hm").refused[0].why


def stranger(app: App) -> LetterDesk:
    """The desk of somebody who has the store and not the program."""
    return operate(app.runtime.store, app.runtime.env, None, "bob").letters


@pytest.mark.parametrize("kind", ["handler", "projection"])
def test_an_edit_by_who_does_not_know_the_key_function_runs_under_no_other_key(kind: str) -> None:
    app = App("unused.db")
    logins, calls = app.log("logins"), []

    def watch(event: Event[Any], _: Any) -> None:
        calls.append(event.data)
        if event.data.get("bad"):
            raise Reject("bad")

    if kind == "handler":
        app.on(logins, key_by="user", start="first", retry=no_retry)(watch)
    else:
        app.projection(logins, key_by="user", retry=no_retry)(watch)
    with Harness(app) as harness:
        for user, bad in (("ada", 1), ("ada", 0), ("eve", 1)):
            harness.append(logins, "login", {"user": user, "bad": bad})
        harness.run_until_idle()
        first = stranger(app).list()[0]
        assert stranger(app).edit(first, {"user": "eve"}, "by hand, without --app").done == (first.id,)
        calls.clear()
        harness.replay([first.id])
        harness.restart()  # the lanes are as they were: nothing to refuse
        harness.run_until_idle()
        assert calls == []
        letter = stranger(app).get(first.id)
        assert letter is not None
        assert (letter.state, letter.reason, letter.lane) == ("dead", "bad_key", "ada")
        assert "from 'ada' to 'eve'" in letter.error_message
        assert "changes its key" in app.operate("bob").letters.edit(first.id, {"user": "eve"}, "hm").refused[0].why
        stranger(app).edit(first.id, {"user": "ada"}, "back")
        harness.replay([first.id])
        assert calls == [{"user": "ada"}, {"user": "ada", "bad": 0}]


@pytest.mark.parametrize("batch", [False, True])
def test_a_rebuild_that_meets_such_an_edit_runs_it_under_no_other_key_either(batch: bool) -> None:
    app = App("unused.db")
    logins, calls = app.log("logins"), []

    @app.projection(logins, key_by="user", retry=no_retry, batch=batch, tables={"seen": "name TEXT"})
    def watch(event: Any, tx: Any) -> None:
        for one in event if batch else [event]:
            calls.append(one.data)
            if one.data.get("bad"):
                raise Reject("bad")

    with Harness(app) as harness:
        for user, bad in (("eve", 0), ("ada", 1), ("ada", 0), ("eve", 0)):
            harness.append(logins, "login", {"user": user, "bad": bad})
        harness.run_until_idle()
        first = stranger(app).list()[0]
        stranger(app).edit(first, {"user": "eve"}, "by hand, without --app")
        app.operate("ada").reset("watch", "again")
        calls.clear()
        harness.run_until_idle()
        assert {one["user"] for one in calls} == {"eve"}
        assert {"user": "eve"} not in calls
        letter, behind = (one for one in harness.letters() if one.state in ("dead", "retrying"))
        assert (letter.state, letter.reason, letter.lane, letter.edits) == ("dead", "bad_key", "ada", 1)
        assert "from 'ada' to 'eve'" in letter.error_message
        assert (behind.state, behind.lane) == ("retrying", "ada")
        stranger(app).edit(letter.id, {"user": "ada"}, "back")
        calls.clear()
        harness.replay([letter.id])
        assert calls == [{"user": "ada"}, {"user": "ada", "bad": 0}]


def test_an_edit_may_give_a_key_to_what_could_not_be_read() -> None:
    app = App("unused.db")
    logins, calls = app.log("logins"), []

    @redrive.event("login.read")
    class Login(msgspec.Struct):
        user: str

    @app.on(logins, Login, key_by="user", start="first", retry=no_retry)
    def watch(event: Event[Login], ctx: Ctx) -> None:
        calls.append(ctx.key)

    with Harness(app) as harness:
        harness.append(logins, "login.read", {"usr": "ada"})
        harness.run_until_idle()
        desk = app.operate("bob").letters
        (letter,) = desk.list()
        assert letter.reason == "undecodable"
        assert desk.edit(letter, {"user": "ada"}, "a typo").done == (letter.id,)
        harness.replay()
        assert calls == ["ada"]


def test_an_attempt_that_loses_to_an_operator_drops_its_effects(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("remind", position)
    bank.bad.clear()
    bank.desk.letters.replay(letter)
    with failpoint("round.called", lambda: bank.desk.letters.discard(letter, "faster")):
        bank.run()
    assert ("remind", position) in {(name, where) for name, where, _ in bank.calls}  # it ran …
    assert bank.emitted("reminded") == []  # … in vain
    assert bank.state_of("remind", position) == "discarded"
    assert [entry.outcome for entry in bank.desk.letters.history(letter)] == ["rejected", "lost to an operator"]
    bank.check_sound()


def test_a_deed_that_dies_before_its_commit_has_not_happened(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("remind", position)

    def die() -> None:
        raise KeyboardInterrupt

    with failpoint("operator.before_commit", die), pytest.raises(KeyboardInterrupt):
        bank.desk.letters.discard(letter, "never mind")
    assert bank.state_of("remind", position) == "dead"
    assert bank.audit() == []


def test_of_two_operators_at_once_one_is_told_so(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    letter, path = bank.letter("remind", position), bank.harness.path
    bank.harness.close()
    receipts: list[Any] = []
    barrier = threading.Barrier(2)

    def operate(who: str) -> None:
        store = Runtime(path, Settings(), None, inline=False).store
        desk = LetterDesk(store, bank.harness.env, who=who)
        seen = desk.get(letter)
        assert seen is not None
        barrier.wait()
        receipts.append(desk.replay(seen) if who == "ada" else desk.discard(seen, "stale"))
        store.close()

    threads = [threading.Thread(target=operate, args=(who,)) for who in ("ada", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((len(receipt.done), len(receipt.refused)) for receipt in receipts) == [(0, 1), (1, 0)]
    with closing(App(path)) as app, app.reader() as tx:
        assert tx.execute("SELECT count(*) FROM redrive_audit").fetchall() == [(1,)]


def test_many_letters_are_done_in_chunks_and_all_are_on_the_receipt(bank: Any) -> None:
    for number in range(CHUNK_MAX + 5):
        bank.deposit(f"k{number}", 1, "poison")
    bank.run()
    letters = [letter.id for letter in bank.desk.letters.list(subscription="balances", limit=1000)]
    receipt = bank.desk.letters.discard(letters, "all of them")
    assert sorted(receipt.done) == letters
    assert len(bank.audit()) == len(letters)
    bank.check_sound()


def test_a_running_worker_of_another_process_hears_of_a_deed_by_the_version(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    before = bank.harness.query("SELECT parked_version FROM redrive_progress ORDER BY subscription")
    bank.desk.letters.discard(bank.letter("balances", position), "stale")
    after = bank.harness.query("SELECT parked_version FROM redrive_progress ORDER BY subscription")
    assert [b[0] - a[0] for a, b in zip(before, after, strict=True)] == [1, 0]


def test_a_letter_of_total_order_is_replayed_before_anything_later_runs() -> None:
    app = App("unused.db")
    orders = app.log("orders")
    bad = {1}

    @app.projection(orders, order="total", retry=no_retry, tables={"seen": "n INTEGER, place INTEGER"})
    def total(event: Event[Any], tx: Tx) -> None:
        if event.data in bad:
            raise Reject("bad")
        tx.execute("INSERT INTO seen VALUES (?, (SELECT count(*) FROM seen))", (event.data,))

    with Harness(app) as harness:
        for number in range(4):
            harness.append(orders, "o", number)
        harness.run_until_idle()
        assert harness.query("SELECT n FROM seen") == [(0,)]
        bad.clear()
        (letter,) = app.operate("ada").letters.list()
        app.operate("ada").letters.replay(letter)
        harness.run_until_idle()
        assert harness.query("SELECT n FROM seen ORDER BY place") == [(0,), (1,), (2,), (3,)]
        assert all(verdict.sound for verdict in app.operate().verify())
