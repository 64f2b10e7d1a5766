"""Reset and rebuild: everything goes back together, discards and edits stay, nothing is emitted twice or never."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event, Ignore, Reject, Tx, UsageError, no_retry
from redrive.replay.prune import What, plan_prune, prune
from redrive.replay.rebuild import Rebuilding, plan_reset, reset
from redrive.testing import Harness, failpoint
from redrive.testing.crashing import Crashed


def test_a_rebuild_gives_the_same_tables_and_emits_nothing_again(bank: Any) -> None:
    for cents in (1, 2, 4):
        bank.deposit("a", cents)
    bank.run()
    before, sent = bank.balances(), bank.emitted("balance.changed")
    state = bank.desk.reset("balances", "the sum was wrong")
    assert (state.position, state.share, state.done) == (0, 0.0, False)
    assert bank.balances() == {}
    bank.run()
    assert bank.desk.progress("balances").done
    assert bank.balances() == before == {"a": 7}
    assert bank.emitted("balance.changed") == sent == [1, 2, 3]
    assert ("ada", "reset", f"position {state.target}", "the sum was wrong") in bank.audit()
    bank.check_sound()


def test_what_comes_after_the_old_position_is_emitted(bank: Any) -> None:
    bank.deposit("a", 1)
    bank.run()
    bank.desk.reset("balances", "again")
    late = bank.deposit("a", 2)
    bank.run()
    assert bank.emitted("balance.changed") == [1, late]


@pytest.mark.parametrize("batch", [True, False])
def test_events_that_came_during_a_rebuild_are_emitted_in_one_batch_with_old_ones(batch: bool) -> None:
    """Emissions of the events before the reset stay unmade, those of the events behind it are made."""
    app = App("unused.db")
    orders, sums = app.log("orders"), app.log("sums")

    def add(given: Any, tx: Tx) -> None:
        for event in given if batch else [given]:
            tx.execute("INSERT INTO seen VALUES (?)", (event.position,))
            tx.emit(sums, "seen", {"of": event.position}, key="k")

    app.projection(orders, name="add", batch=batch, tables={"seen": "n INTEGER"})(add)
    with Harness(app) as harness:
        old = [harness.append(orders, "o", {}).position for _ in range(3)]
        harness.run_until_idle()
        assert [data["of"] for _, data in harness.emitted(sums)] == old
        app.operate("ada").reset("add", "again")
        new = [harness.append(orders, "o", {}).position for _ in range(2)]
        harness.run_until_idle()
        assert [data["of"] for _, data in harness.emitted(sums)] == old + new
        assert harness.query("SELECT n FROM seen ORDER BY n") == [(at,) for at in old + new]
        assert all(verdict.sound for verdict in app.operate().verify())


def test_rebuild_emits_nothing_again_that_was_pruned_since(bank: Any) -> None:
    """While the emitted events are in their log, their ids would keep them from being stored twice."""
    for cents in (1, 2, 4):
        bank.deposit("a", cents)
    bank.run()
    bank.harness.clock.advance(40 * 86_400)
    bank.harness.append(bank.letters_sent, "other", {"of": 0}, key="a")
    operator, what = bank.desk.operator, What(30 * 86_400.0, None, ("letters_sent",))
    prune(operator, what, plan_prune(operator.store, operator.now(), what))
    assert (bank.emitted("balance.changed"), bank.emitted("reminded")) == ([], [])
    for name in ("balances", "remind"):
        bank.desk.reset(name, "again")
    late = bank.deposit("a", 8)
    bank.run()
    assert (bank.emitted("balance.changed"), bank.emitted("reminded")) == ([late], [late])
    bank.check_sound()


def test_events_settled_above_the_progress_come_round_again() -> None:
    """The first event is still running when its worker dies; the others have been settled before it."""
    app = App("unused.db")
    orders = app.log("orders")
    called: list[int] = []

    with Harness(app) as harness:

        @app.on(orders, start="first", concurrency=5)
        async def watch(event: Event[Any], ctx: Ctx) -> None:
            called.append(event.position)
            if event.data == "slow" and called.count(event.position) == 1:
                await asyncio.sleep(60)
                harness.crash()

        for data in ("slow", "quick", "quick"):
            harness.append(orders, "o", data)
        with pytest.raises(Crashed):
            harness.run_until_idle()
        assert harness.query("SELECT position FROM redrive_done ORDER BY position") == [(2,), (3,)]
        app.operate("ada").reset("watch", "again")
        harness.run_until_idle()
        assert sorted(called) == [1, 1, 2, 2, 3, 3]
        assert all(verdict.sound for verdict in app.operate().verify())


def test_plan_of_a_reset_refuses_what_the_reset_would_refuse(bank: Any) -> None:
    bank.deposit("a", 1, "poison")
    bank.run()
    declared = replace(bank.app.subscriptions["balances"], types=("other",))
    with pytest.raises(UsageError, match="no longer asks for"):
        plan_reset(bank.desk.operator.store, "balances", declared)
    with pytest.raises(UsageError, match="no longer asks for"):
        reset(bank.desk.operator, "balances", "again", declared)


def test_share_of_a_rebuild_goes_from_nothing_to_one() -> None:
    shares = [Rebuilding("sums", 10, position, 20).share for position in (10, 15, 20, 25)]
    assert shares == [0.0, 0.5, 1.0, 1.0]
    assert Rebuilding("sums", 10, 10, 10).share == 1.0


@pytest.mark.sqlite  # positions are given again, as after a restored backup of a file
@pytest.mark.parametrize("kind", ["balances", "remind"])
def test_reset_after_a_shorter_log_was_restored_silences_no_new_event(bank: Any, kind: str) -> None:
    """The log ends earlier than what was settled of it; the events that get the free positions were never emitted."""
    positions = [bank.deposit("a", cents) for cents in (1, 2, 4)]
    bank.run()
    name = {"balances": "balance.changed", "remind": "reminded"}[kind]
    bank.harness.restart()
    with bank.app.transaction() as tx:
        tx.execute("DELETE FROM redrive_events WHERE position > ?", (positions[0],))
        tx.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'redrive_events'", (positions[0],))
    bank.desk.reset("balances", "a backup was restored")
    bank.desk.reset("remind", "a backup was restored")
    again = [bank.deposit("a", cents) for cents in (8, 16)]
    assert again[0] <= positions[-1]
    bank.run()
    assert bank.emitted(name) == again
    bank.check_sound()


def test_an_event_that_was_dead_before_is_applied_and_emitted_by_the_rebuild(bank: Any) -> None:
    dead, follower = bank.deposit("a", 1, "poison"), bank.deposit("a", 2)
    bank.run()
    old = bank.letter("balances", dead)
    bank.bad.clear()
    bank.desk.reset("balances", "the bug is fixed")
    bank.run()
    assert bank.balances() == {"a": 3}
    assert bank.emitted("balance.changed") == [dead, follower]
    assert bank.desk.letters.get(old).state == "superseded"
    assert len(bank.desk.letters.history(old)) == 1  # its history is kept
    bank.check_sound()
    bank.desk.reset("balances", "once more")
    bank.run()
    assert bank.emitted("balance.changed") == [dead, follower]
    bank.check_sound()


def test_an_event_that_fails_again_emits_when_it_is_applied_in_the_end(bank: Any) -> None:
    dead = bank.deposit("a", 1, "poison")
    bank.run()
    for reason in ("hoping", "still hoping"):
        bank.desk.reset("balances", reason)
        bank.run()
    assert bank.emitted("balance.changed") == []
    bank.bad.clear()
    bank.desk.letters.replay(bank.letter("balances", dead))
    bank.run()
    assert bank.emitted("balance.changed") == [dead]
    bank.check_sound()


def teller(batch: bool) -> tuple[App, set[int]]:
    """An app with a projection `tell` that emits once for each event; it fails at the positions in the set."""
    app, bad = App("unused.db"), set[int]()
    orders, told = app.log("orders"), app.log("told")

    def tell(given: Any, tx: Tx) -> None:
        for event in given if batch else [given]:
            if event.position in bad:
                raise Reject("bad")
            tx.emit(told, "told", {"of": event.position}, key="k")

    app.projection(orders, name="tell", batch=batch, retry=no_retry)(tell)
    return app, bad


@pytest.mark.parametrize("deed", ["leave", "replay", "reopen", "reopen later"])
@pytest.mark.parametrize("batch", [True, False])
def test_event_that_emitted_emits_no_more_after_it_failed_in_a_rebuild(batch: bool, deed: str) -> None:
    """The emissions are pruned, because otherwise the same ids would hide a second emission of a single event."""
    app, bad = teller(batch)
    with Harness(app) as harness:
        for _ in range(3):
            harness.append("orders", "o", {})
        harness.run_until_idle()
        assert [data["of"] for _, data in harness.emitted("told")] == [1, 2, 3]
        harness.clock.advance(40 * 86_400)
        harness.append("told", "other", {"of": 0}, key="k")
        desk = app.operate("ada")
        what = What(30 * 86_400.0, None, ("told",))
        prune(desk.operator, what, plan_prune(desk.operator.store, desk.operator.now(), what))
        bad.add(2)
        desk.reset("tell", "a new version, which fails")
        harness.run_until_idle()
        (letter,) = harness.letters("dead")
        if deed.startswith("reopen"):
            desk.letters.discard(letter, "no use")
            harness.run_until_idle()
        if deed == "reopen later":
            desk.reset("tell", "another version")
            harness.run_until_idle()
        if deed.startswith("reopen"):
            desk.letters.reopen(letter.id, "of some use")
            harness.run_until_idle()
        bad.clear()
        if deed == "leave":
            desk.reset("tell", "a version that does not fail")
        else:
            harness.restart()  # a worker reads only once which events emitted
            desk = app.operate("ada")
            desk.letters.replay(letter.id)
        harness.run_until_idle()
        assert not harness.letters("dead")
        assert harness.emitted("told") == []
        assert all(verdict.sound for verdict in desk.verify())


@pytest.mark.parametrize("batch", [True, False])
def test_event_that_was_open_in_two_rebuilds_emits_once_it_is_applied(batch: bool) -> None:
    app, bad = teller(batch)
    bad.add(2)
    with Harness(app) as harness:
        for _ in range(3):
            harness.append("orders", "o", {})
        harness.run_until_idle()
        desk = app.operate("ada")
        for reason in ("hoping", "still hoping"):
            desk.reset("tell", reason)
            harness.run_until_idle()
        assert [data["of"] for _, data in harness.emitted("told")] == [1, 3]
        bad.clear()
        for reason in ("fixed", "once more"):
            desk.reset("tell", reason)
            harness.run_until_idle()
            assert [data["of"] for _, data in harness.emitted("told")] == [1, 3, 2]
        bad.add(2)
        desk.reset("tell", "broken again")
        harness.run_until_idle()
        assert [letter.position for letter in harness.letters("dead")] == [2]
        bad.clear()
        desk.reset("tell", "and fixed again")
        harness.run_until_idle()
        assert [data["of"] for _, data in harness.emitted("told")] == [1, 3, 2]
        assert all(verdict.sound for verdict in desk.verify())


@pytest.mark.parametrize("batch", [True, False])
def test_event_discarded_before_two_rebuilds_emits_once_it_is_applied(batch: bool) -> None:
    app, bad = teller(batch)
    bad.add(2)
    with Harness(app) as harness:
        for _ in range(3):
            harness.append("orders", "o", {})
        harness.run_until_idle()
        desk = app.operate("ada")
        (letter,) = harness.letters("dead")
        desk.letters.discard(letter, "no use")
        harness.run_until_idle()
        for reason in ("again", "and again"):
            desk.reset("tell", reason)
            harness.run_until_idle()
        desk.letters.reopen(letter.id, "of some use")
        harness.run_until_idle()
        assert [data["of"] for _, data in harness.emitted("told")] == [1, 3]
        bad.clear()
        desk.letters.replay(letter.id)
        harness.run_until_idle()
        desk.reset("tell", "once more")
        harness.run_until_idle()
        assert [data["of"] for _, data in harness.emitted("told")] == [1, 3, 2]
        assert all(verdict.sound for verdict in desk.verify())


def test_a_discard_survives_a_rebuild(bank: Any) -> None:
    bad, good = bank.deposit("a", 1, "poison"), bank.deposit("a", 2)
    bank.run()
    letter = bank.letter("balances", bad)
    bank.desk.letters.discard(letter, "a test deposit")
    bank.run()
    bank.bad.clear()
    bank.desk.reset("balances", "again")
    bank.check_sound()
    bank.run()
    assert bank.balances() == {"a": 2}
    assert bank.desk.letters.get(letter).state == "discarded"
    assert [position for name, position, _ in bank.calls if name == "balances"] == [good, good]
    bank.check_sound()


def test_what_the_function_ignored_is_asked_again() -> None:
    app = App("unused.db")
    orders = app.log("orders")
    answer: list[Exception] = [Reject("first")]

    @app.projection(orders, tables={"seen": "n INTEGER"}, retry=no_retry)
    def seen(event: Event[Any], tx: Tx) -> None:
        if answer:
            raise answer[0]
        tx.execute("INSERT INTO seen VALUES (?)", (event.position,))

    with Harness(app) as harness:
        harness.append(orders, "o", {})
        harness.run_until_idle()
        answer[:] = [Ignore("nothing to do")]
        desk = app.operate("ada")
        desk.letters.replay(harness.letters()[0].id)
        harness.run_until_idle()
        assert [letter.state for letter in harness.letters()] == ["discarded"]
        answer.clear()
        desk.reset("seen", "the function knows better now")
        harness.run_until_idle()
        assert harness.query("SELECT n FROM seen") == [(1,)]
        assert all(verdict.sound for verdict in desk.verify())


def test_an_edit_survives_a_rebuild_also_when_its_event_fails_again(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    bank.desk.letters.edit(bank.letter("balances", position), {"cents": 10, "note": "late"}, "wrong amount")
    bank.bad = {"late"}
    bank.desk.reset("balances", "again")
    bank.run()
    letter = bank.desk.letters.get(bank.letter("balances", position))
    assert (letter.state, letter.edits) == ("dead", 1)
    bank.bad.clear()
    bank.desk.letters.replay(letter)
    bank.run()
    assert bank.balances() == {"a": 10}
    bank.desk.reset("balances", "and again")
    bank.run()
    assert bank.balances() == {"a": 10}
    bank.check_sound()


def test_keyed_state_starts_over_with_a_reset(bank: Any) -> None:
    bank.deposit("a", 1)
    bank.run()
    bank.desk.reset("remind", "state was wrong")
    assert bank.harness.query("SELECT count(*) FROM redrive_state") == [(0,)]
    bank.run()
    assert bank.harness.query("SELECT data FROM redrive_state") == [(b'{"seen":[1]}',)]
    assert bank.emitted("reminded") == [1]
    bank.check_sound()


def test_a_handler_goes_back_to_where_it_once_began() -> None:
    app = App("unused.db")
    logins = app.log("logins")
    seen: list[int] = []

    @app.on(logins, start="now")
    def watch(event: Event[Any], ctx: Ctx) -> None:
        seen.append(event.position)

    with Harness(app) as harness:
        harness.append(logins, "before", {})
        harness.run_until_idle()
        harness.append(logins, "after", {})
        harness.run_until_idle()
        app.operate("ada").reset("watch", "again")
        harness.run_until_idle()
        assert seen == [2, 2]
        assert all(verdict.sound for verdict in app.operate().verify())


def test_an_owner_that_is_in_the_middle_of_something_can_commit_nothing(bank: Any) -> None:
    bank.deposit("a", 1)
    with failpoint("batch.read", lambda: bank.desk.reset("balances", "right now")):
        bank.run()
    assert bank.balances() == {"a": 1}
    assert bank.emitted("balance.changed") == [1]
    bank.check_sound()


def test_a_reset_that_dies_before_its_commit_has_not_happened(bank: Any) -> None:
    bank.deposit("a", 1)
    bank.run()
    with failpoint("reset.before_commit", KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        bank.desk.reset("balances", "never mind")
    assert bank.balances() == {"a": 1}
    bank.check_sound()


def test_a_rebuild_that_is_killed_goes_on_where_it_was(bank: Any) -> None:
    for number in range(5):
        bank.deposit(f"k{number}", 1)
    bank.run()
    bank.desk.reset("balances", "again")
    with failpoint("batch.before_commit", bank.harness.crash), pytest.raises(Crashed):
        bank.run()
    assert not bank.desk.progress("balances").done
    bank.run()
    assert bank.desk.progress("balances").done
    assert bank.balances() == {f"k{number}": 1 for number in range(5)}
    assert sorted(bank.emitted("balance.changed")) == sorted(set(bank.emitted("balance.changed")))
    bank.check_sound()


def test_a_reset_needs_a_reason_and_a_name_that_exists(bank: Any) -> None:
    bank.run()
    with pytest.raises(UsageError, match="reason"):
        bank.desk.reset("balances", "")
    with pytest.raises(UsageError, match="did you mean 'balances'"):
        bank.desk.reset("balance", "typo")


def test_a_reset_refuses_when_the_log_has_lost_an_open_letters_event(bank: Any) -> None:
    position = bank.deposit("a", 1, "poison")
    bank.run()
    with bank.app.runtime.store.transaction() as tx:
        tx.execute("DELETE FROM redrive_events WHERE position = ?", (position,))
    with pytest.raises(UsageError, match="no longer holds"):
        bank.desk.reset("balances", "again")


def test_a_changed_definition_of_a_table_is_taken_over_by_a_reset(tmp_path: Path) -> None:
    path = str(tmp_path / "t.db")

    def declared(columns: str, insert: str, *types: str) -> App:
        app = App("unused.db")

        @app.projection(app.log("orders"), *types, tables={"seen": columns})
        def seen(event: Event[Any], tx: Tx) -> None:
            tx.execute(insert, {"p": event.position})

        return app

    with Harness(declared("p INTEGER", "INSERT INTO seen VALUES (:p)", "a"), path) as harness:
        harness.append("orders", "a", {})
        harness.append("orders", "b", {})
        harness.run_until_idle()
        with harness.app.transaction() as tx:
            tx.execute("CREATE INDEX mine ON seen (p)")
    app = declared("p INTEGER, twice INTEGER", "INSERT INTO seen VALUES (:p, 2 * :p)")
    with Harness(app, path) as harness:
        with pytest.raises(UsageError, match="rebuild seen"):
            harness.run_until_idle()
        app.operate("ada").reset("seen", "one more column, and all types")
        harness.run_until_idle()
        assert harness.query("SELECT * FROM seen") == [(1, 2), (2, 4)]
        with harness.app.transaction() as tx:
            tx.execute("DROP INDEX mine")  # it was there
        assert all(verdict.sound for verdict in app.operate().verify())


def test_an_index_that_does_not_fit_the_new_table_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = str(tmp_path / "t.db")

    def declared(columns: str) -> App:
        app = App("unused.db")

        @app.projection(app.log("orders"), tables={"seen": columns})
        def seen(event: Event[Any], tx: Tx) -> None: ...

        return app

    with Harness(declared("p INTEGER"), path) as harness:
        harness.run_until_idle()
        with harness.app.transaction() as tx:
            tx.execute("CREATE INDEX mine ON seen (p)")
    with Harness(declared("q INTEGER"), path) as harness, pytest.raises(UsageError, match="CREATE INDEX mine"):
        harness.app.operate("ada").reset("seen", "another column")


def test_a_table_of_the_users_own_is_emptied_not_dropped() -> None:
    app = App("unused.db")

    @app.projection(app.log("orders"), tables=["mine"])
    def seen(event: Event[Any], tx: Tx) -> None:
        tx.execute("INSERT INTO mine VALUES (?)", (event.position,))

    with Harness(app) as harness:
        with app.transaction() as tx:
            tx.execute("CREATE TABLE mine (p INTEGER CHECK (p > 0))")
        harness.append("orders", "a", {})
        harness.run_until_idle()
        app.operate("ada").reset("seen", "again")
        assert harness.query("SELECT count(*) FROM mine") == [(0,)]
        harness.run_until_idle()
        assert harness.query("SELECT p FROM mine") == [(1,)]
        with app.transaction() as tx:
            tx.execute("DROP TABLE mine")
        with pytest.raises(UsageError, match="does not exist"):
            app.operate("ada").reset("seen", "again")


def test_a_table_that_is_no_longer_declared_is_let_go_untouched(tmp_path: Path) -> None:
    path = str(tmp_path / "t.db")

    def declared(tables: dict[str, str]) -> App:
        app = App("unused.db")

        @app.projection(app.log("orders"), tables=tables)
        def seen(event: Event[Any], tx: Tx) -> None:
            if "old" in tables:
                tx.execute("INSERT INTO old VALUES (1)")

        return app

    with Harness(declared({"old": "n INTEGER"}), path) as harness:
        harness.append("orders", "a", {})
        harness.run_until_idle()
    with Harness(declared({}), path) as harness:
        harness.app.operate("ada").reset("seen", "other tables")
        assert harness.query("SELECT n FROM old") == [(1,)]
        assert harness.query("SELECT count(*) FROM redrive_tables") == [(0,)]


def test_a_crash_of_the_owner_is_not_charged_to_an_event_when_a_reset_was_the_cause(bank: Any) -> None:
    bank.deposit("a", 1)
    bank.run()
    with bank.app.runtime.store.transaction() as tx:
        tx.execute("INSERT INTO redrive_inflight VALUES (1, 1, 1, 0, ?, 0)", (bank.harness.env.boot,))
    bank.desk.reset("balances", "while it ran alone")
    assert bank.harness.query("SELECT running, charges FROM redrive_inflight") == []


def test_a_discard_that_is_taken_back_after_a_rebuild_emits_like_any_other(bank: Any) -> None:
    bad = bank.deposit("a", 1, "poison")
    bank.run()
    letter = bank.letter("balances", bad)
    bank.desk.letters.discard(letter, "stale")
    bank.run()
    bank.desk.reset("balances", "again")
    bank.run()
    bank.desk.letters.reopen(letter, "not stale at all")
    bank.run()
    assert bank.state_of("balances", bad) == "dead"
    bank.harness.restart()
    bank.bad.clear()
    bank.desk.letters.replay(letter)
    bank.run()
    assert bank.emitted("balance.changed") == [bad]
    bank.check_sound()
