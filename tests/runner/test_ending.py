"""SQLite ends the whole transaction at `OR ROLLBACK`: that is a failure of the event whose statement it was.

Nothing else is concluded from it: neighbours are applied once, letters are retried and lanes wait as after any error.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redrive import App, Ignore, Reject, StoreError, no_retry, retry
from redrive.context import Escalate
from redrive.runner.anew import run_with_care
from redrive.runner.batch import Turn
from redrive.runner.strides import Pace
from redrive.store.sqlite.careful import Careful
from redrive.store.sqlite.connection import Lent
from redrive.store.sqlite.store import SqliteStore
from redrive.testing import Harness
from redrive.testing.crashing import Crashed
from tests.runner.conftest import Start
from tests.runner.test_crash_counting import run_through
from tests.runner.test_joining import Shop

pytestmark = pytest.mark.sqlite  # on Postgres no statement ends a transaction

MESSAGE = "UNIQUE constraint failed: q.a"
APPLIED = {"applied": "id TEXT"}
HISTORY = "SELECT attempt, outcome, error_message FROM redrive_attempts ORDER BY id"

# How a statement can end the transaction, and what has to be there for it.
ENDINGS = {
    "or": ("INSERT OR ROLLBACK INTO q VALUES (1)", "CREATE TABLE q (a UNIQUE)"),
    "many": ("INSERT OR ROLLBACK INTO q VALUES (1)", "CREATE TABLE q (a UNIQUE)"),
    "update": ("UPDATE OR ROLLBACK q SET a = 1 WHERE a = 2", "CREATE TABLE q (a UNIQUE)"),
    "table": ("INSERT INTO q VALUES (1)", "CREATE TABLE q (a UNIQUE ON CONFLICT ROLLBACK)"),
    "trigger": (
        "INSERT INTO q VALUES (3)",
        "CREATE TABLE q (a UNIQUE);"
        f"CREATE TRIGGER t BEFORE INSERT ON q WHEN new.a = 3 BEGIN SELECT RAISE(ROLLBACK, '{MESSAGE}'); END",
    ),
}


def prepare(harness: Harness, how: str = "or") -> None:
    with harness.app.transaction() as tx:
        for statement in ENDINGS[how][1].split(";", 1):
            tx.execute(statement)
        tx.execute("INSERT INTO q VALUES (1), (2)")


def end(tx: Any, how: str = "or") -> None:
    if how == "many":
        tx.executemany(ENDINGS[how][0], [()])
    else:
        tx.execute(ENDINGS[how][0])


def project(app: App, bad: Callable[[Any, Any], None] = lambda event, tx: end(tx), **options: Any) -> list[str]:
    """A projection that writes down each event, and of those whose id begins with `bad` does something else as well."""
    calls: list[str] = []

    @app.projection(app.log("orders"), name="project", tables=APPLIED, **{"retry": no_retry, **options})
    def function(event: Any, tx: Any) -> None:
        for one in event if isinstance(event, list) else [event]:
            calls.append(one.id)
            tx.execute("INSERT INTO applied VALUES (?)", (one.id,))
            if one.id.startswith("bad"):
                bad(one, tx)

    return calls


def put(harness: Harness, *ids: str, key: str | None = "") -> None:
    for one in ids:
        harness.append("orders", "order.placed", id=one, key=one if key == "" else key)


def applied(harness: Harness) -> list[str]:
    return [one for (one,) in harness.query("SELECT id FROM applied ORDER BY rowid")]


def letters(harness: Harness) -> list[tuple[Any, ...]]:
    return [(one.event_id, one.state, one.attempts, one.error_message) for one in harness.letters()]


@pytest.mark.parametrize("how", ENDINGS)
def test_the_event_becomes_a_letter_and_its_neighbours_are_applied_once(app: App, start: Start, how: str) -> None:
    project(app, lambda event, tx: end(tx, how))
    harness = start(app)
    prepare(harness, how)
    put(harness, "a", "bad", "c")
    harness.run_until_idle()
    assert applied(harness) == ["a", "c"]
    [letter] = harness.letters()
    assert (letter.event_id, letter.state, letter.error_type) == ("bad", "dead", "sqlite3.IntegrityError")
    assert letter.error_message == MESSAGE
    [(trace,)] = harness.query("SELECT traceback FROM redrive_attempts")
    assert "in end\n" in trace
    assert "/redrive/" not in trace


@pytest.mark.parametrize("order", ["key", "none", "total"])
@pytest.mark.parametrize("batch", [False, True])
def test_many_of_them_among_others_in_every_order(app: App, harness: Harness, order: str, batch: bool) -> None:
    calls = project(app, order=order, batch=batch)
    prepare(harness)
    put(harness, "a", "bad1", "b", "bad2", "bad3", "c", "d", "bad4")
    put(harness, *(f"more{number}" for number in range(70)))
    put(harness, *(f"bad{number}" for number in range(5, 10)), "e")
    for _ in range(9 if order == "total" else 0):
        harness.run_until_idle()
        [letter] = [one for one in harness.letters() if one.state == "dead"]
        app.operate().letters.discard(letter.id, reason="seen")
    harness.run_until_idle()
    good = ["a", "b", "c", "d", *(f"more{number}" for number in range(70)), "e"]
    assert applied(harness) == good
    if order != "total":
        assert letters(harness) == [(f"bad{n}", "dead", 1, MESSAGE) for n in range(1, 10)]
    assert len(calls) < 4 * len(good)  # what comes behind one is not called again for each that comes before it


def test_attempts_are_counted_and_the_lane_waits(app: App, harness: Harness) -> None:
    fails = [True]
    calls = project(app, lambda event, tx: end(tx) if fails[0] else None, retry=retry(attempts=3, wait="1s"))
    prepare(harness)
    put(harness, "bad", "follower", key="x")
    put(harness, "other")
    harness.run_until_idle()
    assert applied(harness) == ["other"]
    harness.advance("1m")
    assert harness.query(HISTORY) == [
        (1, "failing", MESSAGE), (2, "failing", MESSAGE), (3, "attempts_exhausted", MESSAGE),
    ]  # fmt: skip
    fails[0] = False
    app.operate().letters.replay(harness.letters()[0].id)
    harness.run_until_idle()
    assert applied(harness) == ["other", "bad", "follower"]
    assert calls.count("follower") == 1
    assert [one.state for one in harness.letters()] == ["applied", "applied"]


def test_letters_that_do_it_are_retried_among_letters_that_do_not(app: App, harness: Harness) -> None:
    fails = [True]

    def bad(event: Any, tx: Any) -> None:
        if event.id == "bad2" and not fails[0]:
            return
        end(tx)

    project(app, bad, retry=retry(attempts=2, wait="1s"))
    prepare(harness)
    put(harness, "bad1", "bad2", "bad3")
    put(harness, "badfollower", "last", key="bad2")
    harness.run_until_idle()
    assert [one.state for one in harness.letters()] == ["retrying"] * 5
    fails[0] = False
    harness.advance("1m")
    assert applied(harness) == ["bad2"]
    assert sorted(letters(harness)) == [
        ("bad1", "dead", 2, MESSAGE), ("bad2", "applied", 2, MESSAGE), ("bad3", "dead", 2, MESSAGE),
        ("badfollower", "dead", 2, MESSAGE), ("last", "retrying", 0, ""),
    ]  # fmt: skip


def test_many_letters_that_do_it_are_not_called_again_for_each_other(app: App, harness: Harness) -> None:
    is_well = [False]

    def bad(event: Any, tx: Any) -> None:
        if not event.id.startswith("bad-well"):
            end(tx)
        elif not is_well[0]:
            raise ValueError("no")

    calls = project(app, bad, retry=retry(attempts=2, wait="1s", jitter=0))
    prepare(harness)
    put(harness, *(f"bad-well{number}" for number in range(10)), *(f"bad{number}" for number in range(10)))
    harness.run_until_idle()
    before, is_well[0] = len(calls), True
    harness.advance("1m")
    assert [one.state for one in harness.letters()] == ["applied"] * 10 + ["dead"] * 10
    assert len(calls) - before <= 2 * 10 + 10


@pytest.mark.parametrize("order", ["key", "none"])
def test_attempts_that_need_not_wait_wait_for_the_next_transaction(app: App, harness: Harness, order: str) -> None:
    calls = project(app, retry=retry(attempts=3, wait=0), order=order)
    prepare(harness)
    put(harness, "a", "bad", "c")
    harness.run_until_idle()
    assert applied(harness) == ["a", "c"]
    assert [one[:2] for one in harness.query(HISTORY)] == [(1, "failing"), (2, "failing"), (3, "attempts_exhausted")]
    assert calls.count("bad") <= 2 + 3  # until it is known that somebody does it, and whose it is


def test_one_of_the_attempts_that_need_not_wait_ends_it(app: App, harness: Harness) -> None:
    raised: list[str] = []

    def bad(event: Any, tx: Any) -> None:
        if event.id == "bad-before":  # what follows is run in strides
            raise Reject("no")
        raised.append(event.id)
        if len(raised) % 2:
            raise OSError("first")
        end(tx)

    project(app, bad, retry=retry(attempts=3, wait=0))
    prepare(harness)
    app.runtime.store._be_careful()  # type: ignore[attr-defined]
    put(harness, "bad-before")
    harness.run_until_idle()
    put(harness, "a", "bad", "c")
    harness.run_until_idle()
    assert applied(harness) == ["a", "c"]
    _, letter = harness.letters()
    assert (letter.state, letter.attempts) == ("dead", 3)
    assert harness.query(HISTORY)[1][::2] == (1, "first")


def test_neighbours_that_fail_in_another_way_fail_as_ever(app: App, harness: Harness) -> None:
    def bad(event: Any, tx: Any) -> None:
        if event.id.startswith("badend"):
            end(tx)
        raise ValueError(event.id)

    project(app, bad, order="none")
    prepare(harness)
    for turn in range(3):  # the second time statements would be held, the third time there are strides
        put(harness, f"a{turn}", f"bad{turn}", f"badend{turn}", f"b{turn}", f"bad{turn}x", f"c{turn}")
        harness.run_until_idle()
    assert applied(harness) == [f"{one}{turn}" for turn in range(3) for one in "abc"]
    messages = {one.event_id: one.error_message for one in harness.letters()}
    assert messages == {
        f"{name.format(turn)}": MESSAGE if "end" in name else name.format(turn)
        for turn in range(3)
        for name in ("bad{}", "badend{}", "bad{}x")
    }


def test_statements_are_held_when_the_first_of_them_comes(app: App, harness: Harness) -> None:
    def bad(event: Any, tx: Any) -> None:
        if event.id == "badend":
            end(tx)
        raise ValueError("no")

    project(app, bad, order="none")
    prepare(harness)
    put(harness, "bad1", "a")
    harness.run_until_idle()
    put(harness, "b", "badend", "c")
    harness.run_until_idle()
    assert applied(harness) == ["a", "b", "c"]
    assert letters(harness)[1] == ("badend", "dead", 1, MESSAGE)


def test_a_verdict_that_follows_counts(app: App, harness: Harness) -> None:
    def bad(event: Any, tx: Any) -> None:
        try:
            end(tx)
        except sqlite3.IntegrityError:
            raise Ignore("known") from None

    project(app, bad)
    prepare(harness)
    put(harness, "a", "bad", "c")
    harness.run_until_idle()
    assert (applied(harness), harness.letters()) == (["a", "c"], [])
    assert harness.query("SELECT applied, ignored FROM redrive_progress") == [(2, 1)]


AFTERWARDS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda tx: None,
    "insert": lambda tx: tx.execute("INSERT INTO applied VALUES ('late')"),
    "with": lambda tx: tx.execute("WITH x(id) AS (SELECT 'late') INSERT INTO applied SELECT id FROM x"),
    "cursor": lambda tx: tx.connection.cursor().execute(
        "WITH x(id) AS (SELECT 'l') INSERT INTO applied SELECT id FROM x"
    ),
    "raw": lambda tx: tx.connection.execute("WITH x(id) AS (SELECT 'l') INSERT INTO applied SELECT id FROM x"),
    "many": lambda tx: tx.executemany("REPLACE INTO applied VALUES (?)", [("late",)]),
    "script": lambda tx: tx.connection.executescript("INSERT INTO applied VALUES ('late')"),
    "table": lambda tx: tx.execute("CREATE TABLE late (n)"),
    "savepoint": lambda tx: (tx.execute("SAVEPOINT mine"), tx.execute("INSERT INTO applied VALUES ('late')")),
}


@pytest.mark.parametrize("is_quiet", [False, True])
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("what", AFTERWARDS)
def test_who_passes_over_the_end_and_goes_on_writes_nothing(
    app: App, harness: Harness, what: str, used: bool, is_quiet: bool
) -> None:
    """`used`: the same statement was prepared before, inside of the transaction, and is only taken up again."""

    def bad(event: Any, tx: Any) -> None:
        if used and what not in ("script", "table"):
            AFTERWARDS[what](tx)
        try:
            end(tx)
        except sqlite3.IntegrityError:
            try:
                AFTERWARDS[what](tx)
            except Exception:
                if not is_quiet:
                    raise

    project(app, bad)
    prepare(harness)
    put(harness, "a", "b", "bad", "c", "d")
    harness.run_until_idle()
    assert applied(harness) == ["a", "b", "c", "d"]
    assert harness.query("SELECT count(*) FROM sqlite_master WHERE name = 'late'") == [(0,)]
    [letter] = harness.letters()
    assert (letter.event_id, letter.state) == ("bad", "dead")
    assert "ended the transaction" in (letter.error_message or "")
    assert MESSAGE in (letter.error_message or "")


@pytest.mark.parametrize("batch", [False, True])
def test_who_comes_behind_one_that_passed_over_it_is_not_blamed(app: App, harness: Harness, batch: bool) -> None:
    def bad(event: Any, tx: Any) -> None:
        with closing(tx.connection.cursor()) as cursor, pytest.raises(sqlite3.IntegrityError):
            cursor.execute(ENDINGS["or"][0])

    project(app, bad, batch=batch)
    prepare(harness)
    put(harness, "a", "bad", "c", "d")
    harness.run_until_idle()
    assert applied(harness) == ["a", "c", "d"]
    assert [one.event_id for one in harness.letters()] == ["bad"]


def test_a_trigger_that_somebody_else_makes_meanwhile_is_met_once_and_known_from_then_on(
    app: App, harness: Harness
) -> None:
    project(app, lambda event, tx: tx.execute("INSERT INTO q VALUES (3)"), retry=retry(attempts=2, wait="1s"))
    with app.transaction() as tx:
        tx.execute("CREATE TABLE q (a)")
    put(harness, "a", "bad")
    harness.run_until_idle()
    assert applied(harness) == ["a", "bad"]
    with closing(sqlite3.connect(harness.path)) as other:
        other.execute("CREATE TRIGGER t BEFORE INSERT ON q BEGIN SELECT RAISE(ROLLBACK, 'no'); END")
    put(harness, "b", "bad2", "c")
    harness.run_until_idle()
    assert applied(harness) == ["a", "bad", "b", "c"]
    assert letters(harness) == [("bad2", "retrying", 1, "no")]


@pytest.mark.parametrize("what", AFTERWARDS)
def test_who_meets_that_trigger_and_goes_on_writes_nothing_outside_of_a_transaction(
    app: App, harness: Harness, what: str
) -> None:
    def bad(event: Any, tx: Any) -> None:
        try:
            tx.execute("INSERT INTO q VALUES (3)")
        except sqlite3.IntegrityError:
            AFTERWARDS[what](tx)

    project(app, bad)
    with app.transaction() as tx:
        tx.execute("CREATE TABLE q (a)")
    harness.append("orders", "order.placed", id="bad", key="bad")
    harness.run_until_idle()
    with closing(sqlite3.connect(harness.path)) as other:
        other.execute("CREATE TRIGGER t BEFORE INSERT ON q BEGIN SELECT RAISE(ROLLBACK, 'no'); END")
    put(harness, "bad2")
    harness.run_until_idle()
    assert applied(harness) == ["bad"]
    assert harness.query("SELECT count(*) FROM sqlite_master WHERE name = 'late'") == [(0,)]
    assert [one.event_id for one in harness.letters()] == ["bad2"]


def test_tables_and_triggers_of_that_kind_are_known_from_the_start(tmp_path: Path) -> None:
    for at, statement in enumerate((ENDINGS["or"][1], ENDINGS["table"][1], ENDINGS["trigger"][1])):
        path = str(tmp_path / f"{at}.db")
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(statement)
        with closing(SqliteStore(path, inline=True)) as store:
            assert store.is_careful == (at > 0)
        with closing(App(path, inline=True)) as app:
            with app.transaction() as tx:
                tx.execute("CREATE TABLE other (a UNIQUE ON CONFLICT ROLLBACK)")
            assert app.runtime.store.is_careful  # type: ignore[attr-defined]


def test_a_signal_of_ours_that_is_caught_is_raised_again(app: App, harness: Harness) -> None:
    def bad(event: Any, tx: Any) -> None:
        with suppress(BaseException):
            end(tx)

    project(app, bad)
    prepare(harness)
    put(harness, "a", "bad", "c")
    harness.run_until_idle()
    assert (applied(harness), [one.event_id for one in harness.letters()]) == (["a", "c"], ["bad"])


def test_a_suspect_that_runs_alone_is_not_charged_for_it(app: App, harness: Harness) -> None:
    deaths: list[int] = []

    def bad(event: Any, tx: Any) -> None:
        if not deaths:
            deaths.append(1)
            harness.crash()
        end(tx)

    project(app, bad, retry=retry(attempts=2, wait="1s"))
    prepare(harness)
    put(harness, "a", "bad", "c")
    assert run_through(harness) == 1
    assert (applied(harness), letters(harness)) == (["a", "c"], [("bad", "retrying", 1, MESSAGE)])
    harness.advance("1m")
    assert letters(harness) == [("bad", "dead", 2, MESSAGE)]
    assert harness.query("SELECT * FROM redrive_inflight") == []


def test_a_letter_that_runs_alone_after_a_crash_does_it(app: App, harness: Harness) -> None:
    calls: list[int] = []

    def bad(event: Any, tx: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no")
        if len(calls) == 2:
            harness.crash()
        end(tx)

    project(app, bad, retry=retry(attempts=3, wait="1s"))
    prepare(harness)
    put(harness, "bad")
    harness.run_until_idle()
    with pytest.raises(Crashed):
        harness.advance("2s")
    harness.advance("1m")
    assert letters(harness) == [("bad", "dead", 3, MESSAGE)]
    assert harness.query("SELECT * FROM redrive_inflight") == []


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_quiet", [False, True])
def test_what_lands_is_kept_when_the_turn_that_joins_it_ends_the_transaction(is_quiet: bool, is_known: bool) -> None:
    """`is_known`: the store is careful before anything lands."""
    shop = Shop(order="none")
    with shop.harness:
        with shop.app.transaction() as tx:
            tx.execute("CREATE TABLE q (a UNIQUE)")
            tx.execute("INSERT INTO q VALUES (1)")
        if is_known:
            shop.harness.app.runtime.store._be_careful()  # type: ignore[attr-defined]
        shop.begin()

        def deed(event: Any, tx: Any) -> None:
            if event.data == 10:
                with pytest.raises(sqlite3.IntegrityError) if is_quiet else nullcontext():
                    end(tx)

        shop.deed = deed
        shop.say(*range(6, 15))
        shop.check(10)
        assert [one.state for one in shop.harness.letters()] == ["dead"]
        assert shop.harness.halted == {}


# ---------------------------------------------------------------- handlers


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("order", ["key", "none", "total"])
def test_a_handlers_statement_fails_its_own_event(app: App, harness: Harness, order: str, keyed: bool) -> None:
    orders, out = app.log("orders"), app.log("out")
    fails = [True]

    @app.on(orders, start="first", order=order, retry=retry(attempts=2, wait="1s"))
    def handle(event: Any, ctx: Any) -> None:
        ctx.execute("INSERT INTO seen VALUES (?)", (event.id,))
        ctx.emit(out, "seen", event.id)
        if keyed:
            ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event.id.startswith("bad") and fails[0]:
            ctx.execute(ENDINGS["or"][0])

    prepare(harness)
    with app.transaction() as tx:
        tx.execute("CREATE TABLE seen (id TEXT)")
    put(harness, "a", "bad1", "b", "bad2", "c")
    put(harness, "follower", key="bad1")
    for _ in range(4 if order == "total" else 1):
        harness.run_until_idle()
        harness.advance("1m")
        if order == "total":
            harness.replay() if not fails[0] else None
        fails[0] = False if order == "total" else fails[0]
    if order != "total":
        dead = [("bad1", "dead", 2, MESSAGE), ("bad2", "dead", 2, MESSAGE)]
        assert letters(harness)[:2] == dead
        fails[0] = False
        harness.replay()
    wanted = {"a", "bad1", "b", "bad2", "c", "follower"}
    assert sorted(one for (one,) in harness.query("SELECT id FROM seen")) == sorted(wanted)
    assert sorted(event.data for event in out.read()) == sorted(wanted)
    if keyed:
        assert {json.loads(data)["n"] for (data,) in harness.query("SELECT data FROM redrive_state")} <= {1, 2}


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "END", "BEGIN"])
def test_a_handler_cannot_end_the_transaction_that_settles_it(app: App, harness: Harness, statement: str) -> None:
    @app.on(app.log("orders"), start="first", retry=no_retry)
    def handle(event: Any, ctx: Any) -> None:
        ctx.execute("INSERT INTO seen VALUES (:id)", {"id": event.id})
        if event.id == "bad":
            ctx.execute(statement)

    with app.transaction() as tx:
        tx.execute("CREATE TABLE seen (id TEXT)")
    put(harness, "a", "bad", "c")
    harness.run_until_idle()
    assert sorted(harness.query("SELECT id FROM seen")) == [("a",), ("c",)]
    assert [(one.event_id, one.state) for one in harness.letters()] == [("bad", "dead")]
    assert harness.halted == {}


# ---------------------------------------------------------------- a program's own transactions


def test_a_program_hears_of_it_in_the_words_of_the_driver_and_nothing_is_written(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    with app.transaction() as tx:
        tx.execute("CREATE TABLE q (a UNIQUE)")
        tx.execute("INSERT INTO q VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError, match=MESSAGE), app.transaction() as tx:  # noqa: PT012
        tx.execute("INSERT INTO q VALUES (2)")
        orders.append("order.placed", tx=tx)
        end(tx)
    with app.transaction() as tx:
        tx.execute("INSERT INTO q VALUES (3)")
        orders.append("order.placed", 3, tx=tx)
    with app.reader() as reader:
        assert reader.execute("SELECT a FROM q").fetchall() == [(1,), (3,)]
    assert [event.data for event in orders.read()] == [3]
    app.close()


@pytest.mark.parametrize("what", AFTERWARDS)
@pytest.mark.parametrize("appends", [False, True])
def test_a_program_that_goes_on_after_it_writes_nothing(tmp_path: Path, what: str, appends: bool) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    with app.transaction() as tx:
        tx.execute("CREATE TABLE applied (id TEXT)")
        tx.execute("CREATE TABLE q (a UNIQUE)")
        tx.execute("INSERT INTO q VALUES (1)")
    with pytest.raises(StoreError, match="ended the transaction"), app.transaction() as tx:  # noqa: PT012
        if what not in ("script", "table"):
            AFTERWARDS[what](tx)
        with pytest.raises(sqlite3.IntegrityError):
            end(tx)
        if appends:
            orders.append("order.placed", tx=tx)
        AFTERWARDS[what](tx)
    with app.reader() as reader:
        assert reader.execute("SELECT count(*) FROM applied").fetchone() == (0,)
        assert reader.execute("SELECT count(*) FROM sqlite_master WHERE name = 'late'").fetchone() == (0,)
    orders.append("order.placed", 1)
    assert [event.data for event in orders.read()] == [1]
    app.close()


def test_a_program_that_does_not_meet_it_makes_nobody_careful(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    with app.transaction() as tx:
        assert type(tx.connection) is Careful
        tx.execute("CREATE TABLE plain (n)")
    store = app.runtime.store
    assert isinstance(store, SqliteStore)
    assert not store.is_careful
    assert type(store._full.connection) is Lent
    assert store._full.execute.__self__ is store._full.connection  # type: ignore[attr-defined]
    app.close()


def test_what_a_void_transaction_has_found_is_found_again() -> None:
    """Two letters: of the first nothing is to be done yet, the second makes all begin again, and then it is well."""
    turn, runs = Turn(), list[bool]()

    def run() -> None:
        runs.append(True)
        if len(runs) == 1:
            turn.rerun_after, turn.halt, turn.lane_full = 0.05, "no event", "a"
            raise Escalate

    caller: Any = SimpleNamespace(duty=SimpleNamespace(durable=False), is_escalating=True, forget_ended=lambda: None)
    run_with_care(caller, Pace(), run, turn)
    assert (len(runs), turn, caller.duty.durable) == (2, Turn(), True)
