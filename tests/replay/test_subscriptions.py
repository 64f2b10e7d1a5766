"""The subscription desk: pause, rename, seek and rekey keep every promise, or refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event, Reject, UsageError, no_retry
from redrive.errors import BadKey
from redrive.observe.signals import Operated
from redrive.testing import Harness, failpoint


class Watch:
    """A handler without state, on one log; positions in `bad` are rejected."""

    def __init__(self, **options: Any) -> None:
        self.app = App("unused.db")
        self.log = self.app.log("logins")
        self.bad: set[int] = set()
        self.seen: list[int] = []
        self.keys: list[str] = []

        @self.app.on(self.log, start="first", retry=no_retry, **options)
        def watch(event: Event[Any], ctx: Ctx) -> None:
            self.keys.append(ctx.idempotency_key)
            if event.position in self.bad:
                raise Reject("bad")
            self.seen.append(event.position)

        self.harness = Harness(self.app)
        self.desk = self.app.operate("ada")

    def fill(self, count: int, *, key: str | None = None) -> None:
        for _ in range(count):
            self.harness.append(self.log, "login", {}, key=key)

    def run(self) -> None:
        self.harness.run_until_idle()

    def check_sound(self) -> None:
        for verdict in self.desk.verify():
            assert verdict.violations == (), verdict

    def verdict(self) -> Any:
        self.check_sound()
        (verdict,) = self.desk.verify()
        return verdict


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    with watch.harness:
        yield watch


# ------------------------------------------------------------ pause


def test_a_paused_subscription_does_nothing_until_it_is_resumed(watch: Watch) -> None:
    watch.run()
    watch.desk.subscriptions.pause("watch", "maintenance")
    watch.fill(2)
    watch.run()
    watch.harness.restart()
    watch.run()
    assert watch.seen == []
    watch.app.operate("bob").subscriptions.resume("watch")
    watch.run()
    assert watch.seen == [1, 2]
    audit = watch.harness.query("SELECT who, action, reason FROM redrive_audit")
    assert audit == [("ada", "pause", "maintenance"), ("bob", "resume", "")]
    assert Operated("pause", "watch", "watch", "ada") in watch.harness.signals


# ------------------------------------------------------------ rename


def renamed(name: str, keys: list[str], path: str, *, bad: bool) -> Harness:
    app = App("unused.db")
    receipts = app.log("receipts")

    @app.on(app.log("logins"), name=name, start="first", retry=no_retry)
    def function(event: Event[Any], ctx: Ctx) -> None:
        keys.append(ctx.idempotency_key)
        if bad:
            raise Reject("bad")
        ctx.emit(receipts, "seen", {})

    return Harness(app, path)


def test_a_renamed_subscription_keeps_its_progress_letters_and_idempotency_keys(tmp_path: Path) -> None:
    path, keys = str(tmp_path / "w.db"), []  # type: tuple[str, list[str]]
    with renamed("charge", keys, path, bad=True) as harness:
        harness.append("logins", "login", {})
        harness.run_until_idle()
        harness.app.operate("ada").subscriptions.rename("charge", "charge_card", "says what it does")
    with renamed("charge_card", keys, path, bad=False) as harness:
        (letter,) = harness.letters("dead")
        harness.app.operate("ada").letters.replay(letter)
        harness.run_until_idle()
        assert harness.letters()[0].state == "applied"
        assert len(set(keys)) == 1
        assert keys[0].startswith("charge:")
        harness.app.operate("ada").subscriptions.rename("charge_card", "charge_a_card")
    with renamed("charge_a_card", keys, path, bad=False) as harness:
        harness.append("logins", "login", {})
        harness.run_until_idle()
        assert keys[-1].startswith("charge:")
        assert all(verdict.sound for verdict in harness.app.operate().verify())


def test_a_new_subscription_under_a_former_name_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    path, keys = str(tmp_path / "w.db"), []  # type: tuple[str, list[str]]
    with renamed("charge", keys, path, bad=False) as harness:
        harness.append("logins", "login", {})
        harness.run_until_idle()
        harness.app.operate("ada").subscriptions.rename("charge", "charge_card")
    with renamed("charge", keys, path, bad=False) as harness:
        harness.run_until_idle()
        assert len(set(keys)) == 2
        assert len(harness.query("SELECT 1 FROM redrive_events WHERE type = 'seen'")) == 2


def test_a_rename_refuses_a_name_that_is_taken_or_unknown(bank: Any) -> None:
    bank.run()
    with pytest.raises(UsageError, match="already"):
        bank.desk.subscriptions.rename("balances", "remind")
    with pytest.raises(UsageError, match="no subscription 'balanc'"):
        bank.desk.subscriptions.rename("balanc", "sums")


# ------------------------------------------------------------ seek


def test_seeking_forward_gives_up_what_lies_between_and_says_so(watch: Watch) -> None:
    watch.run()
    watch.fill(5)
    sought = watch.desk.subscriptions.seek("watch", 3, "known to be junk")
    assert (sought.was, sought.position, sought.discarded, sought.superseded) == (0, 3, 3, 0)
    watch.run()
    assert watch.seen == [4, 5]
    assert (watch.verdict().applied, watch.verdict().discarded) == (2, 3)
    actions = watch.harness.query("SELECT action, target FROM redrive_audit")
    assert actions == [("skip", "positions 1 to 3"), ("seek", "position 3")]


def test_seeking_forward_leaves_what_is_settled_already(watch: Watch) -> None:
    watch.run()
    watch.fill(6)
    with watch.app.runtime.store.transaction() as tx:  # 2 and 5 were settled out of order
        tx.progress.done.add(1, [2, 5])
        tx.connection.execute("UPDATE redrive_progress SET applied = 2")
    sought = watch.desk.subscriptions.seek("watch", "now", "skip the rest")
    assert sought.discarded == 4
    ranges = watch.harness.query("SELECT from_position, to_position, discarded FROM redrive_ranges")
    assert ranges == [(0, 1, 1), (2, 4, 2), (5, 6, 1)]
    assert (watch.verdict().applied, watch.verdict().discarded) == (2, 4)


def test_open_letters_stay_open_when_progress_skips_over_others(watch: Watch) -> None:
    watch.bad = {1}
    watch.fill(1)
    watch.run()
    watch.fill(2)
    watch.desk.subscriptions.seek("watch", "now", "junk")
    watch.bad.clear()
    watch.desk.letters.replay(watch.harness.letters("dead")[0])
    watch.run()
    assert watch.seen == [1]
    watch.check_sound()


def test_seeking_back_runs_events_again_and_supersedes_their_letters(watch: Watch) -> None:
    watch.bad = {2, 3}
    watch.fill(4)
    watch.run()
    dead, discarded = watch.harness.letters("dead")
    watch.desk.letters.discard(discarded, "stale")
    watch.run()
    watch.bad.clear()
    sought = watch.desk.subscriptions.seek("watch", 1, "the mails were lost")
    assert (sought.position, sought.superseded) == (1, 1)
    watch.run()
    assert watch.seen == [1, 4, 2, 4]  # the discard stays
    assert watch.desk.letters.get(dead.id).state == "superseded"  # type: ignore[union-attr]
    watch.check_sound()


def test_seeking_back_undoes_a_skip(watch: Watch) -> None:
    watch.run()
    watch.fill(6)
    watch.desk.subscriptions.seek("watch", 4, "junk")
    watch.run()
    watch.desk.subscriptions.seek("watch", 2, "not all of it")
    watch.run()
    assert watch.seen == [5, 6, 3, 4, 5, 6]
    assert watch.harness.query("SELECT from_position, to_position, discarded FROM redrive_ranges") == [(0, 2, 2)]
    watch.check_sound()
    watch.desk.subscriptions.seek("watch", "first", "none of it")
    watch.run()
    assert watch.seen[-6:] == [1, 2, 3, 4, 5, 6]
    watch.check_sound()


def test_a_skip_survives_a_reset(watch: Watch) -> None:
    watch.run()
    watch.fill(4)
    watch.desk.subscriptions.seek("watch", 2, "junk")
    watch.run()
    watch.desk.reset("watch", "again")
    watch.check_sound()
    watch.run()
    assert watch.seen == [3, 4, 3, 4]
    assert watch.verdict().discarded == 2


def test_seeking_by_time_lands_before_the_first_event_of_that_time(watch: Watch) -> None:
    watch.fill(2)
    watch.harness.advance("1h")
    watch.fill(1)
    watch.run()
    start = watch.harness.clock.now()
    from datetime import UTC, datetime

    time = datetime.fromtimestamp(start - 60, UTC).isoformat()
    assert watch.desk.subscriptions.seek("watch", time, "the last hour again").position == 2
    watch.run()
    assert watch.seen == [1, 2, 3, 3]


@pytest.mark.parametrize(("to", "message"), [(99, "goes from 0 to 1"), ("soon", "neither"), ("2026-01-01", "zone")])
def test_a_target_that_is_not_there_is_refused(watch: Watch, to: Any, message: str) -> None:
    watch.fill(1)
    watch.run()
    with pytest.raises(UsageError, match=message):
        watch.desk.subscriptions.seek("watch", to, "hm")


def test_what_builds_something_is_rebuilt_not_sought_back(bank: Any) -> None:
    bank.deposit("a", 1)
    bank.run()
    for name in ("balances", "remind"):
        with pytest.raises(UsageError, match=f"redrive rebuild {name}"):
            bank.desk.subscriptions.seek(name, 0, "again")
    bank.check_sound()


def test_an_owner_in_the_middle_of_a_round_is_fenced_by_a_seek(watch: Watch) -> None:
    watch.run()
    watch.fill(3)
    seek = watch.desk.subscriptions.seek
    with failpoint("round.called", lambda: seek("watch", "now", "right now")):
        watch.run()
    assert watch.verdict().discarded == 3
    assert watch.verdict().applied == 0


# ------------------------------------------------------------ rekey


def test_letters_move_to_the_lanes_of_a_new_key_function(tmp_path: Path) -> None:
    path = str(tmp_path / "w.db")
    seen: list[int] = []

    def declared(key_by: str, *, bad: bool) -> App:
        app = App("unused.db")

        @app.on(app.log("logins"), key_by=key_by, start="first", retry=no_retry)
        def watch(event: Event[Any], ctx: Ctx) -> None:
            if bad and event.position == 1:
                raise Reject("bad")
            seen.append(event.position)

        return app

    with Harness(declared("user", bad=True), path) as harness:
        for user, team in [("ada", "x"), ("ada", "y"), ("bob", "x")]:
            harness.append("logins", "login", {"user": user, "team": team})
        harness.run_until_idle()
        assert seen == [3]
    app = declared("team", bad=False)
    with Harness(app, path) as harness:
        with pytest.raises(UsageError, match="redrive rekey watch"):
            harness.run_until_idle()
        assert app.operate("ada").subscriptions.rekey("watch", "teams, not users") == 2
        assert [letter.lane for letter in harness.letters()] == ["x", "y"]
        harness.run_until_idle()
        assert seen == [3, 2]
        app.operate("ada").letters.replay(harness.letters("dead")[0])
        harness.run_until_idle()
        assert seen == [3, 2, 1]
        assert all(verdict.sound for verdict in app.operate().verify())


@pytest.mark.parametrize("error", [BadKey("no"), KeyError("user")], ids=["no key", "a bug"])
def test_a_letter_without_a_key_gets_a_lane_of_its_own_by_rekey(error: Exception) -> None:
    watch = Watch()
    with watch.harness:
        watch.bad = {1}
        watch.fill(1, key="a")
        watch.run()

        def nothing(event: Event[Any]) -> str:
            raise error

        assert watch.desk.subscriptions.rekey("watch", "hm", nothing) == 1
        assert [letter.lane for letter in watch.harness.letters()] == [None]


@pytest.mark.parametrize("deed", ["accept_from_now", "rekey"])
def test_what_needs_the_program_says_so(watch: Watch, deed: str) -> None:
    from redrive.replay.operations import operate

    watch.run()
    bare = operate(watch.app.runtime.store, watch.harness.env, who="ada")
    with pytest.raises(UsageError, match="--app"):
        getattr(bare.subscriptions, deed)("watch", "hm")


@pytest.mark.parametrize("deed", ["accept_from_now", "rekey", "seek"])
def test_what_changes_a_promise_needs_a_reason(watch: Watch, deed: str) -> None:
    watch.run()
    arguments = ("watch", 0, "") if deed == "seek" else ("watch", "")
    with pytest.raises(UsageError, match="reason"):
        getattr(watch.desk.subscriptions, deed)(*arguments)
