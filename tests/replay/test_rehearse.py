"""A rehearsal tells what a replay would do, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event, Ignore, Reject, Tx, UsageError, no_retry
from redrive.replay.rehearsal import RESULTS, Rehearsal
from redrive.replay.rehearse import rehearse
from redrive.replay.rehearsing.scene import HOLD_MAX
from redrive.settings import Settings
from redrive.store.port import LetterRow
from redrive.testing import Harness

Play = Callable[[Event[Any], Any], Any]


def fail(event: Event[Any], _: Any) -> None:
    """What every function does at first."""
    raise Reject("it cannot be done yet")


class Theatre:
    """`book` is a projection, `tell` a handler; what they do is replaced after their events have died."""

    def __init__(self, **options: Any) -> None:
        self.app = App("unused.db", **options.pop("app", {}))
        self.seats, self.news = self.app.log("seats"), self.app.log("news")
        self.book: Play = fail
        self.tell: Play = fail
        self.odd: dict[int, Play] = {}  # what is done for the events at these positions instead
        self.errors: list[Any] = []
        theatre = self
        tables = {
            "booked": "seat TEXT PRIMARY KEY, n INTEGER NOT NULL",
            "tickets": "id INTEGER PRIMARY KEY AUTOINCREMENT",
        }

        @self.app.projection(self.seats, tables=tables, retry=no_retry, **options.get("projection", {}))
        def book(event: Event[Any], tx: Tx) -> None:
            at = 0 if isinstance(event, list) else event.position
            theatre.odd.get(at, theatre.book)(event, tx)

        @self.app.on(
            self.seats, start="first", retry=no_retry, rehearsable=True, **options.get("handler", {}),
            on_error=lambda event, error: theatre.errors.append(error),
        )  # fmt: skip
        def tell(event: Event[Any], ctx: Ctx) -> None:
            theatre.tell(event, ctx)

        self.harness = Harness(self.app, settings=options.get("settings"))

    def sell(self, *seats: str | None, **data: Any) -> None:
        """Append one event per seat and let both functions fail for it."""
        for seat in seats:
            self.harness.append(self.seats, "sold", {"seat": seat, **data}, key=seat)
        self.harness.run_until_idle()

    def letters(self, of: str, state: str = "dead") -> list[LetterRow]:
        """The open letters of a subscription."""
        return [letter for letter in self.harness.letters(state) if letter.subscription == of]

    def rehearse(self, of: str, *, lane: bool = True) -> Rehearsal:
        """All dead letters of a subscription; whatever comes of it, the store is as it was."""
        before, signals = dump(self.harness.path), list(self.harness.signals)
        rehearsal = rehearse(self.app, self.letters(of), lane=lane)
        check_same(before, dump(self.harness.path))
        assert self.harness.signals == signals
        return rehearsal


def dump(path: str) -> dict[str, Any]:
    """Everything: the schema, every row of every table with its rowid, and the bytes of the files."""
    found: dict[str, Any] = {}
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        found["schema"] = connection.execute("SELECT * FROM sqlite_master").fetchall()
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            found[name] = sorted(map(repr, connection.execute(f'SELECT * FROM "{name}"')))
    found |= {f"bytes of {end}": Path(path + end).read_bytes() for end in ("", "-wal")}
    return found


def check_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Name what differs; the bytes would fill the screen."""
    assert [name for name in before if before[name] != after.get(name)] == []
    assert before.keys() == after.keys()


def results(rehearsal: Rehearsal) -> list[str]:
    return [one.result for one in rehearsal.letters]


@pytest.fixture
def theatre() -> Iterator[Theatre]:
    theatre = Theatre()
    with theatre.harness:
        yield theatre


BOOK = "INSERT INTO booked VALUES (:seat, 1) ON CONFLICT DO UPDATE SET n = n + 1"


def book_well(event: Event[Any], tx: Tx) -> None:
    tx.execute(BOOK, event.data)
    tx.execute("INSERT INTO tickets DEFAULT VALUES")


# ---------------------------------------------------------------- nothing is left


def commits(event: Event[Any], tx: Tx) -> None:
    book_well(event, tx)
    tx.execute("COMMIT")


def commits_by_the_driver(event: Event[Any], tx: Tx) -> None:
    book_well(event, tx)
    tx.connection.commit()


def commits_and_swallows(event: Event[Any], tx: Tx) -> None:
    book_well(event, tx)
    for end in ("COMMIT", "END", "ROLLBACK"):
        with pytest.raises(sqlite3.DatabaseError):
            tx.execute(end)


def runs_a_script(event: Event[Any], tx: Tx) -> None:
    book_well(event, tx)
    tx.connection.executescript("INSERT INTO tickets DEFAULT VALUES; COMMIT;")


def ends_the_transaction(event: Event[Any], tx: Tx) -> None:
    book_well(event, tx)
    tx.execute("INSERT OR ROLLBACK INTO booked VALUES ('x', NULL)")


def ends_the_transaction_and_goes_on(event: Event[Any], tx: Tx) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        ends_the_transaction(event, tx)


def releases_our_savepoint(event: Event[Any], tx: Tx) -> None:
    book_well(event, tx)
    tx.execute("RELEASE redrive_point")


def releases_and_fails(event: Event[Any], tx: Tx) -> None:
    releases_our_savepoint(event, tx)
    raise ValueError("and now?")


def exits(event: Event[Any], tx: Tx) -> None:
    book_well(event, tx)
    sys.exit(3)


def interrupts(event: Event[Any], tx: Tx) -> None:
    book_well(event, tx)
    raise KeyboardInterrupt


def ends_as_a_generator(event: Event[Any], tx: Tx) -> None:
    book_well(event, tx)
    raise GeneratorExit


def fails_otherwise(event: Event[Any], tx: Tx) -> None:
    book_well(event, tx)
    raise ValueError("something new")


def changes_the_schema(event: Event[Any], tx: Tx) -> None:
    tx.execute("CREATE TABLE IF NOT EXISTS mine (a)")
    tx.execute("CREATE TEMP TABLE scratch (a)")
    tx.execute("ALTER TABLE booked ADD COLUMN more")
    tx.execute("PRAGMA user_version = 7")
    tx.execute("DROP TABLE tickets")


def writes_our_tables(event: Event[Any], tx: Tx) -> None:
    tx.execute("UPDATE redrive_letters SET state = 'applied', rev = rev + 1")
    tx.execute("DELETE FROM redrive_events")


MISBEHAVIOUR = {
    book_well: "would succeed",
    fail: "would fail the same way",
    fails_otherwise: "would fail differently",
    commits: "would fail differently",
    commits_by_the_driver: "would fail differently",
    commits_and_swallows: "would succeed",
    runs_a_script: "would fail differently",
    ends_the_transaction: "would fail differently",
    ends_the_transaction_and_goes_on: "would fail differently",
    releases_our_savepoint: "would fail differently",
    releases_and_fails: "would fail differently",
    exits: "would fail differently",
    interrupts: "would fail differently",
    ends_as_a_generator: "would fail differently",
    changes_the_schema: "would succeed",
}


@pytest.mark.parametrize("play", [*MISBEHAVIOUR], ids=lambda play: play.__name__)
def test_whatever_a_projection_does_nothing_of_it_is_left(theatre: Theatre, play: Play) -> None:
    theatre.sell("a", "b")
    theatre.book = play
    expected = MISBEHAVIOUR[play]
    found = results(theatre.rehearse("book"))
    # One that changes the schema succeeds once: the second meets what the first has done.
    assert found == ([expected] * 2 if play is not changes_the_schema else [expected, "would fail differently"])
    theatre.book = book_well
    theatre.harness.replay(theatre.letters("book"))
    assert theatre.harness.query("SELECT * FROM booked") == [("a", 1), ("b", 1)]
    assert theatre.harness.query("SELECT id FROM tickets") == [(1,), (2,)]  # no number was used up


def test_even_our_own_tables_are_as_they_were(theatre: Theatre) -> None:
    theatre.sell("a")
    theatre.book = writes_our_tables
    assert results(theatre.rehearse("book")) == ["would succeed"]


def test_neighbours_of_one_that_ends_the_transaction_are_rehearsed_all_the_same(theatre: Theatre) -> None:
    theatre.sell("a", "b", "c", "d")

    def play(event: Event[Any], tx: Tx) -> None:
        (ends_the_transaction if event.key in "bd" else book_well)(event, tx)

    theatre.book = play
    rehearsal = theatre.rehearse("book")
    assert results(rehearsal) == ["would succeed", "would fail differently"] * 2
    assert tuple(rehearsal.tables["booked"]) == (2, 0, 0)


def test_a_process_that_dies_in_a_rehearsal_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import os\n"
        "from redrive import App, Reject, no_retry\n"
        "app = App('shop.db')\n"
        "orders = app.log('orders')\n"
        "@app.projection(orders, tables={'seen': 'id TEXT'}, retry=no_retry)\n"
        "def seen(event, tx):\n"
        "    if 'DIE' not in os.environ:\n"
        "        raise Reject('no')\n"
        "    tx.execute('INSERT INTO seen VALUES (?)', (event.id,))\n"
        "    os._exit(9)\n"
    )
    script = (
        "from shop import app, orders\n"
        "import os\n"
        "from redrive.replay.rehearse import rehearse\n"
        "if 'DIE' not in os.environ:\n"
        "    orders.append('placed', {})\n"
        "    app.run(until_idle=True)\n"
        "else:\n"
        "    rehearse(app, app.operate().letters.list())\n"
    )

    def run(**more: str) -> int:
        command = [sys.executable, "-c", script]
        return subprocess.run(command, cwd=tmp_path, env={**os.environ, **more}, check=False).returncode

    assert run() == 0
    path = str(tmp_path / "shop.db")
    with closing(sqlite3.connect(path)) as keeper:  # keeps the WAL where it is
        assert keeper.execute("SELECT count(*) FROM redrive_letters").fetchone() == (1,)
        before = dump(path)
        assert run(DIE="1") == 9
        check_same(before, dump(path))


# ---------------------------------------------------------------- what it says


def test_the_same_way_is_the_same_fingerprint(theatre: Theatre) -> None:
    theatre.sell("a", "b", "c", "d")

    def fail_for_ever(event: Event[Any], tx: Tx) -> None:
        raise Reject("it cannot be done ever")

    def ignore(event: Event[Any], tx: Tx) -> None:
        raise Ignore("no need")

    theatre.book = book_well
    theatre.odd = {1: fail, 2: fail_for_ever, 3: ignore}
    rehearsal = theatre.rehearse("book")
    assert results(rehearsal) == [
        "would fail the same way", "would fail differently", "would succeed", "would succeed"
    ]  # fmt: skip
    same, other, ignored, _ = rehearsal.letters
    assert same.fingerprint == same.letter.fingerprint
    assert other.fingerprint not in ("", other.letter.fingerprint)
    assert (other.error_type, other.why) == ("redrive.errors.Reject", "it cannot be done ever")
    assert ignored.why == "the function ignores it: no need"
    assert rehearsal.totals == dict(zip(RESULTS, (2, 1, 1, 0), strict=True))
    assert not rehearsal.sound


def test_followers_see_what_those_before_them_did(theatre: Theatre) -> None:
    theatre.sell("a", "a", "a", "b")
    seen: list[tuple[str | None, list[Any]]] = []

    def play(event: Event[Any], tx: Tx) -> None:
        book_well(event, tx)
        seen.append((event.key, tx.execute("SELECT n FROM booked WHERE seat = ?", (event.key,)).fetchall()))

    theatre.book = play
    rehearsal = theatre.rehearse("book")
    assert seen == [("a", [(1,)]), ("a", [(2,)]), ("a", [(3,)]), ("b", [(1,)])]
    assert [(one.result, one.follower) for one in rehearsal.letters] == [
        ("would succeed", follower) for follower in (False, True, True, False)
    ]
    assert tuple(rehearsal.tables["booked"]) == (2, 2, 0)
    assert tuple(rehearsal.tables["tickets"]) == (4, 0, 0)
    assert rehearsal.sound


def test_without_lane_only_the_chosen_are_rehearsed(theatre: Theatre) -> None:
    theatre.sell("a", "a", "b")
    theatre.book = book_well
    assert [one.letter.key for one in theatre.rehearse("book", lane=False).letters] == ["a", "b"]


def test_what_is_behind_one_that_would_fail_is_not_reached(theatre: Theatre) -> None:
    theatre.sell("a", "a", "a", "b")
    second = theatre.letters("book", "retrying")[0]

    def play(event: Event[Any], tx: Tx) -> None:
        book_well(event, tx)
        if event.position == second.position:
            raise ValueError("the second")

    theatre.book = play
    rehearsal = theatre.rehearse("book")
    assert results(rehearsal) == ["would succeed", "would fail differently", "cannot rehearse", "would succeed"]
    assert rehearsal.letters[2].why == f"it waits behind letter {second.id}, which would fail"
    assert tuple(rehearsal.tables["booked"]) == (2, 0, 0)  # what failed is undone and not counted


def test_a_letter_behind_one_that_was_not_chosen_cannot_be_rehearsed(theatre: Theatre) -> None:
    theatre.sell("a", "a", "a")
    (head,), (second, third) = theatre.letters("book"), theatre.letters("book", "retrying")
    theatre.book = book_well
    (alone,) = rehearse(theatre.app, [third]).letters
    assert (alone.result, alone.why) == (
        "cannot rehearse",
        f"it waits behind letter {head.id}, which is not among those chosen",
    )
    without_second = rehearse(theatre.app, [third, head])
    assert results(without_second) == ["would succeed", "cannot rehearse"]
    assert f"behind letter {second.id}" in without_second.letters[1].why
    assert results(rehearse(theatre.app, [third, second, head])) == ["would succeed"] * 3


def test_letters_that_are_settled_or_gone_are_named(theatre: Theatre) -> None:
    theatre.sell("a", "b")
    first, second = theatre.letters("book")
    theatre.app.operate("ada").letters.discard(first, "stale")
    rehearsal = rehearse(theatre.app, [first, second, second._replace(id=999)])
    assert {one.why for one in rehearsal.letters if one.result == "cannot rehearse"} == {
        "it is discarded already",
        "there is no such letter",
    }


def test_the_latest_edit_is_what_is_rehearsed(theatre: Theatre) -> None:
    theatre.sell("a", "a")
    desk = theatre.app.operate("ada").letters
    desk.edit(theatre.letters("book")[0].id, {"seat": "x"}, "wrong")
    desk.edit(theatre.letters("book")[0].id, {"seat": "y"}, "right")
    seen: list[Any] = []
    theatre.book = lambda event, tx: seen.append(event.data)
    theatre.rehearse("book")
    assert seen == [{"seat": "y"}, {"seat": "a"}]


def test_letters_without_a_lane_do_not_hold_each_other_back() -> None:
    theatre = Theatre(projection={"order": "none"})
    with theatre.harness:
        theatre.sell("a", "a", None)
        theatre.book, theatre.odd = book_well, {1: fail}
        assert results(theatre.rehearse("book")) == ["would fail the same way", "would succeed", "would succeed"]


def test_a_batch_projection_gets_lists_of_one_as_in_a_retry() -> None:
    theatre = Theatre(projection={"batch": True})
    with theatre.harness:
        theatre.sell("a", "a", "b")
        seen: list[list[str]] = []

        def play(events: Any, tx: Tx) -> None:
            seen.append([event.key for event in events])
            tx.emit(theatre.news, "booked", {}, key=events[0].key)

        theatre.book = play
        rehearsal = theatre.rehearse("book")
        assert seen == [["a"], ["a"], ["b"]]
        assert rehearsal.emitted == {"news": {"booked": 3}}


def test_emissions_are_counted_by_log_and_type_and_only_those_of_letters_that_succeed(theatre: Theatre) -> None:
    theatre.sell("a", "b", "c")

    def play(event: Event[Any], tx: Tx) -> None:
        tx.emit(theatre.news, "first", {})
        tx.emit(theatre.news, f"of.{event.key}", {})
        tx.emit(theatre.seats, "sold", {})
        if event.key == "c":
            raise ValueError("too late")

    theatre.book = play
    assert theatre.rehearse("book").emitted == {"news": {"first": 2, "of.a": 1, "of.b": 1}, "seats": {"sold": 2}}


def test_an_expected_version_is_checked_against_the_log_and_earlier_emissions(theatre: Theatre) -> None:
    theatre.sell("a", "a", "b")
    theatre.book = lambda event, tx: tx.emit(theatre.news, "x", {}, key="one", expected_version=event.position - 1)
    rehearsal = theatre.rehearse("book")
    assert results(rehearsal) == ["would succeed"] * 3
    theatre.book = lambda event, tx: tx.emit(theatre.news, "x", {}, key="one", expected_version=0)
    rehearsal = theatre.rehearse("book")
    assert results(rehearsal) == ["would succeed", "would fail differently", "would fail differently"]
    assert rehearsal.emitted == {"news": {"x": 1}}


def test_what_was_emitted_before_a_rebuild_is_not_emitted_again(theatre: Theatre) -> None:
    def play(event: Event[Any], tx: Tx) -> None:
        tx.emit(theatre.news, "booked", {})

    theatre.odd = {1: play}
    theatre.sell("a", "b")
    theatre.odd = {}
    theatre.app.operate("ada").reset("book", "anew")
    theatre.harness.run_until_idle()  # now both fail
    theatre.book = play
    rehearsal = theatre.rehearse("book")
    assert results(rehearsal) == ["would succeed"] * 2
    assert rehearsal.emitted == {"news": {"booked": 1}}


# ---------------------------------------------------------------- rows


def many(event: Event[Any], tx: Tx) -> None:
    tx.execute("INSERT INTO booked SELECT 's' || value, 0 FROM json_each('[1,2,3,4,5]')")
    tx.execute("UPDATE booked SET n = 1 WHERE seat IN ('s1', 's2', 's3')")
    tx.execute("DELETE FROM booked")


def some_undone(event: Event[Any], tx: Tx) -> None:
    tx.execute("INSERT INTO booked VALUES ('kept', 1)")
    tx.execute("SAVEPOINT mine")
    tx.execute("INSERT INTO booked VALUES ('undone', 1)")
    tx.execute("ROLLBACK TO mine")
    with pytest.raises(sqlite3.IntegrityError):
        tx.execute("INSERT INTO booked VALUES ('new', 1), ('kept', 1)")
    with pytest.raises(sqlite3.IntegrityError):
        tx.execute("INSERT OR FAIL INTO booked VALUES ('stays', 1), ('kept', 1)")


def replaces(event: Event[Any], tx: Tx) -> None:
    tx.execute("REPLACE INTO booked VALUES ('a', 1)")
    tx.execute("REPLACE INTO booked VALUES ('a', 2)")
    tx.connection.executemany("INSERT INTO tickets VALUES (?)", [(7,), (8,)])


def by_trigger(event: Event[Any], tx: Tx) -> None:
    tx.execute("CREATE TRIGGER more AFTER INSERT ON booked BEGIN INSERT INTO tickets VALUES (NULL); END")
    tx.execute("INSERT INTO booked VALUES ('a', 1), ('b', 1)")


def in_a_table_of_its_own(event: Event[Any], tx: Tx) -> None:
    tx.execute('CREATE TABLE IF NOT EXISTS "it\'s ""mine""" (a)')
    tx.execute('INSERT INTO "it\'s ""mine""" VALUES (1), (2)')


ROWS: dict[Play, dict[str, tuple[int, int, int]]] = {
    many: {"booked": (5, 3, 5)},
    some_undone: {"booked": (2, 0, 0)},
    replaces: {"booked": (2, 0, 0), "tickets": (2, 0, 0)},
    by_trigger: {"booked": (2, 0, 0), "tickets": (2, 0, 0)},
    in_a_table_of_its_own: {'it\'s "mine"': (2, 0, 0)},
}


@pytest.mark.parametrize("play", [*ROWS], ids=lambda play: play.__name__)
def test_rows_are_counted_as_they_are_written(theatre: Theatre, play: Play) -> None:
    theatre.sell("a")
    theatre.book = play
    rehearsal = theatre.rehearse("book")
    assert results(rehearsal) == ["would succeed"], rehearsal.letters
    assert {name: tuple(counts) for name, counts in rehearsal.tables.items()} == ROWS[play]


def test_a_table_made_by_one_letter_is_watched_for_the_next(theatre: Theatre) -> None:
    theatre.sell("a", "a", "a")

    def play(event: Event[Any], tx: Tx) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS mine (a)")
        tx.execute("UPDATE mine SET a = 2")
        tx.execute("INSERT INTO mine VALUES (1)")

    theatre.book = play
    assert tuple(theatre.rehearse("book").tables["mine"]) == (3, 3, 0)


# ---------------------------------------------------------------- handlers


def test_a_handler_that_is_not_declared_rehearsable_is_never_called() -> None:
    app = App("unused.db")
    payments = app.log("payments")
    calls: list[int] = []

    @app.on(payments, start="first", retry=no_retry)
    def charge(event: Event[Any], ctx: Ctx) -> None:
        calls.append(event.position)
        raise Reject("no")

    with Harness(app) as harness:
        harness.append(payments, "due", {})
        harness.run_until_idle()
        (one,) = rehearse(app, harness.letters("dead"), lane=True).letters
    assert (one.result, calls) == ("cannot rehearse", [1])
    assert one.why == "handler 'charge' may talk to the world; declare rehearsable=True if it does not"


def test_a_handlers_state_statements_and_emissions_follow_each_other_in_its_lane(theatre: Theatre) -> None:
    theatre.sell("a", "a", "b", "a")
    seen: list[tuple[str | None, int, int, str]] = []

    def play(event: Event[Any], ctx: Ctx) -> None:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        seen.append((ctx.key, ctx.state["n"], ctx.attempt, ctx.idempotency_key))
        ctx.execute(
            "INSERT INTO booked VALUES (:seat, :n) ON CONFLICT DO UPDATE SET n = :n", {**event.data, **ctx.state}
        )
        ctx.emit(theatre.news, "told", {"n": ctx.state["n"]})

    theatre.tell = play
    rehearsal = theatre.rehearse("tell")
    ids = [event.id for event in theatre.seats.read()]
    assert seen == [
        ("a", 1, 2, f"tell:{ids[0]}"), ("a", 2, 1, f"tell:{ids[1]}"), ("a", 3, 1, f"tell:{ids[3]}"),
        ("b", 1, 2, f"tell:{ids[2]}"),
    ]  # fmt: skip
    assert results(rehearsal) == ["would succeed"] * 4
    assert tuple(rehearsal.tables["booked"]) == (2, 2, 0)
    assert rehearsal.emitted == {"news": {"told": 4}}


def test_a_statement_that_fails_fails_its_letter_and_holds_its_lane(theatre: Theatre) -> None:
    theatre.sell("a", "a", "b")

    def play(event: Event[Any], ctx: Ctx) -> None:
        ctx.execute("INSERT INTO tickets DEFAULT VALUES")
        ctx.execute("INSERT INTO booked VALUES (:seat, NULL)" if event.key == "a" else BOOK, event.data)
        ctx.emit(theatre.news, "told")

    theatre.tell = play
    rehearsal = theatre.rehearse("tell")
    assert results(rehearsal) == ["would fail differently", "cannot rehearse", "would succeed"]
    assert rehearsal.letters[0].error_type == "sqlite3.IntegrityError"
    assert {name: tuple(counts) for name, counts in rehearsal.tables.items()} == {
        "booked": (1, 0, 0), "tickets": (1, 0, 0)
    }  # fmt: skip
    assert rehearsal.emitted == {"news": {"told": 1}}


def test_a_statement_of_a_handler_cannot_end_the_transaction(theatre: Theatre) -> None:
    theatre.sell("a", "b", "c")
    ends = {"a": "COMMIT", "b": "INSERT OR ROLLBACK INTO booked VALUES ('x', NULL)", "c": BOOK}
    theatre.tell = lambda event, ctx: ctx.execute(ends[event.key], event.data if event.key == "c" else ())
    rehearsal = theatre.rehearse("tell")
    assert results(rehearsal) == ["would fail differently", "would fail differently", "would succeed"]
    assert tuple(rehearsal.tables["booked"]) == (1, 0, 0)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, ValueError])
def test_whatever_a_handler_raises_nothing_is_left(theatre: Theatre, error: type[BaseException]) -> None:
    theatre.sell("a")

    def play(event: Event[Any], ctx: Ctx) -> None:
        ctx.execute(BOOK, event.data)
        raise error("now")

    theatre.tell = play
    assert results(theatre.rehearse("tell")) == ["would fail differently"]
    assert theatre.errors == []  # the hook hears of attempts, and this was none


def test_state_of_unordered_letters_is_tried_again_where_one_of_them_fails() -> None:
    theatre = Theatre(handler={"order": "none"})
    with theatre.harness:
        theatre.sell("a", "a", "a")
        seen: list[int] = []

        def play(event: Event[Any], ctx: Ctx) -> None:
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            seen.append(ctx.state["n"])
            if event.version == 2:
                ctx.execute("INSERT INTO booked VALUES (NULL, NULL)")

        theatre.tell = play
        rehearsal = theatre.rehearse("tell")
        assert sorted(results(rehearsal)) == ["would fail differently", "would succeed", "would succeed"]
        assert seen[:3] == [1, 2, 3]
        assert seen[3:] == [1, 2]  # once more, without the second: what it saved was undone


def writes_at_once(theatre: Theatre) -> dict[str, Play]:
    def transact(event: Event[Any], ctx: Ctx) -> None:
        with theatre.app.transaction() as tx:
            tx.execute(BOOK, event.data)

    return {
        "append": lambda event, ctx: theatre.news.append("told", {}),
        "transaction": transact,
        "operate": lambda event, ctx: theatre.app.operate().subscriptions.pause("book"),
    }


@pytest.mark.parametrize("how", ["append", "transaction", "operate"])
def test_a_handler_that_writes_past_its_ctx_cannot_be_rehearsed(theatre: Theatre, how: str) -> None:
    theatre.sell("a")
    theatre.tell = writes_at_once(theatre)[how]
    (one,) = theatre.rehearse("tell").letters
    assert one.result == "cannot rehearse"
    assert one.why.startswith("handler 'tell': it writes to the store by itself")


def coroutine_app(**options: Any) -> tuple[App, list[str]]:
    """`speak` is a coroutine function that fails at first."""
    app, done = App("unused.db", **options.pop("app", {})), list[str]()
    lines = app.log("lines")

    @app.on(lines, start="first", retry=no_retry, rehearsable=True, **options)
    async def speak(event: Event[Any], ctx: Ctx) -> None:
        if not done:
            raise Reject("no voice yet")
        ctx.state["said"] = [*ctx.state.get("said", []), event.data["word"]]
        done.append(event.data["word"])
        match event.data["word"]:
            case "hang":
                await asyncio.Event().wait()
            case "leave":
                sys.exit(1)
            case "ask":
                done.append(ctx.deps)
            case "append":
                await lines.append_async("said", {"word": "x"})
        ctx.emit(lines, "said", {"words": ctx.state["said"]})

    return app, done


def speak(app: App, done: list[str], *words: str) -> tuple[Rehearsal, list[str]]:
    with Harness(app) as harness:
        for word in words:
            harness.append("lines", "line", {"word": word}, key=word[0])
        harness.run_until_idle()
        done.append("ready")
        before = dump(harness.path)
        rehearsal = rehearse(app, harness.letters("dead"), lane=True)
        check_same(before, dump(harness.path))
    return rehearsal, done[1:]


def test_coroutine_functions_run_on_a_loop_with_state_and_emissions() -> None:
    rehearsal, done = speak(*coroutine_app(), "to", "take", "bee")
    assert (results(rehearsal), done) == (["would succeed"] * 3, ["to", "take", "bee"])
    assert rehearsal.emitted == {"lines": {"said": 3}}


def test_a_coroutine_that_exits_or_appends_does_not_disturb_the_others() -> None:
    rehearsal, done = speak(*coroutine_app(), "leave", "append", "bee")
    assert results(rehearsal) == ["would fail differently", "cannot rehearse", "would succeed"]
    assert done == ["leave", "append", "bee"]


def test_a_timeout_ends_a_coroutine() -> None:
    rehearsal, done = speak(*coroutine_app(timeout=0.01), "hang", "bee", "hall")
    assert results(rehearsal) == ["would fail differently", "cannot rehearse", "would succeed"]
    assert (rehearsal.letters[0].error_type, done) == ("TimeoutError", ["hang", "bee"])


def test_a_timeout_leaves_a_thread_behind_and_its_ctx_is_dead() -> None:
    theatre, late = Theatre(handler={"timeout": 0.01}), list[BaseException]()
    with theatre.harness:
        theatre.sell("a", "b")
        go, gone = threading.Event(), threading.Event()

        def play(event: Event[Any], ctx: Ctx) -> None:
            if event.key == "a":
                go.wait()
                with pytest.raises(UsageError, match="dead"):
                    ctx.execute(BOOK, event.data)
                late.append(TimeoutError())
                gone.set()

        theatre.tell = play
        rehearsal = theatre.rehearse("tell")
        assert results(rehearsal) == ["would fail differently", "would succeed"]
        assert rehearsal.letters[0].error_type == "TimeoutError"
        go.set()
        assert gone.wait(10)
        assert len(late) == 1


def test_it_runs_inside_the_lifespan_of_the_app() -> None:
    life: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> Any:
        life.append("begins")
        yield "a bank"
        life.append("ends")

    rehearsal, done = speak(*coroutine_app(app={"lifespan": lifespan}), "ask")
    assert (results(rehearsal), done) == (["would succeed"], ["ask", "a bank"])
    assert life == ["begins", "begins", "ends", "ends"]  # the rehearsal's, while the worker's lasts


# ---------------------------------------------------------------- with others


def test_the_write_lock_is_given_back_between_slices_and_never_inside_a_lane() -> None:
    theatre = Theatre(settings=Settings(batch_time_max=0.05))
    with theatre.harness:
        theatre.sell("a", "a", "a", "b", "c")
        counts: list[int] = []

        def play(event: Event[Any], tx: Tx) -> None:
            book_well(event, tx)
            theatre.harness.clock.advance(0.03)
            counts.append(tx.execute("SELECT count(*) FROM tickets").fetchone()[0])

        theatre.book = play
        rehearsal = theatre.rehearse("book")
        assert results(rehearsal) == ["would succeed"] * 5
        assert counts == [1, 2, 3, 1, 2]  # a lane that took too long, then what fits into the next slice
        assert tuple(rehearsal.tables["tickets"]) == (5, 0, 0)


def test_a_lane_that_takes_too_long_is_cut_off(theatre: Theatre) -> None:
    theatre.sell("a", "a", "a", "b")
    theatre.book = lambda event, tx: theatre.harness.clock.advance(0.6 * HOLD_MAX)
    rehearsal = theatre.rehearse("book")
    assert results(rehearsal) == ["would succeed", "would succeed", "cannot rehearse", "would succeed"]
    assert "longer than 1 s" in rehearsal.letters[2].why


def test_a_live_worker_of_the_same_subscription_goes_on_and_is_not_fenced(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    worker, operator = Shop(path), Shop(path)
    orders = worker.app.log("orders")
    orders.append_many([{"type": "placed", "key": f"k{n}", "data": {"poison": n < 40}} for n in range(80)])
    worker.app.run(until_idle=True)
    letters = operator.app.operate().letters.list(limit=1000)
    assert len(letters) == 40
    operator.fixed = True

    async def work() -> list[Rehearsal]:
        async with worker.app.running():
            found = []
            for turn in range(5):
                rehearsing = asyncio.create_task(asyncio.to_thread(rehearse, operator.app, letters))
                for n in range(20):
                    await orders.append_async("placed", {"poison": False}, key=f"t{turn} {n}")
                found.append(await rehearsing)
        return found

    epoch = "SELECT epoch FROM redrive_progress"
    rehearsals = asyncio.run(work())
    assert [rehearsal.totals["would succeed"] for rehearsal in rehearsals] == [40] * 5
    with worker.app.reader() as tx:
        assert tx.execute(epoch).fetchall() == [(2,)]  # two runs of the worker, and nobody else
        assert tx.execute("SELECT count(*) FROM seen").fetchall() == [(40 + 100,)]
        assert tx.execute("SELECT count(*) FROM redrive_letters WHERE state = 'dead'").fetchall() == [(40,)]
        assert tx.execute("SELECT max(attempts) FROM redrive_letters").fetchall() == [(1,)]
    for one in (worker, operator):
        one.app.close()


class Shop:
    """A program on a file; its fix is a flag."""

    def __init__(self, path: str) -> None:
        self.app, self.fixed = App(path, settings=Settings(batch_time_max=0.001)), False
        shop = self

        @self.app.projection(self.app.log("orders"), tables={"seen": "id TEXT PRIMARY KEY"}, retry=no_retry)
        def seen(event: Event[Any], tx: Tx) -> None:
            if event.data["poison"] and not shop.fixed:
                raise Reject("poison")
            tx.execute("INSERT INTO seen VALUES (?)", (event.id,))


def test_in_a_coroutine_it_says_how_to_be_called(theatre: Theatre) -> None:
    async def call() -> None:
        rehearse(theatre.app, [])

    with pytest.raises(UsageError, match="to_thread"):
        asyncio.run(call())


def test_a_program_that_would_be_refused_cannot_be_rehearsed(theatre: Theatre) -> None:
    theatre.sell("a")
    letters = theatre.letters("book")
    other = App(theatre.harness.path)

    @other.projection(other.log("seats"), tables={"booked": "seat TEXT"})
    def book(event: Event[Any], tx: Tx) -> None: ...

    (one,) = rehearse(other, letters).letters
    (unknown,) = rehearse(App(theatre.harness.path), letters).letters
    other.close()
    assert (one.result, unknown.result) == ("cannot rehearse", "cannot rehearse")
    assert "the definition of table 'booked' changed" in one.why
    assert unknown.why == "this program has no subscription 'book'"


def test_a_changed_key_is_noticed(theatre: Theatre) -> None:
    theatre.sell("a")
    letters = theatre.letters("book")
    other = App(theatre.harness.path)

    @other.projection(other.log("seats"), key_by=lambda event: "z")
    def book(event: Event[Any], tx: Tx) -> None: ...

    (one,) = rehearse(other, letters).letters
    other.close()
    assert one.why == "it waits in lane 'a', but its key is 'z' now: `redrive rekey` moves it"


# ---------------------------------------------------------------- the truth of it


@pytest.mark.parametrize("seed", range(25))
def test_a_replay_does_what_the_rehearsal_said(seed: int) -> None:
    """Random lanes and random fates: letters, rows and events after the replay are those that were foretold."""
    dice = random.Random(seed)
    theatre = Theatre(handler={"order": dice.choice(["key", "none"])})
    fates = ["good"] * dice.randint(1, 6) + ["bad", "other", "ignore", "conflict"]

    def fate(event: Event[Any], then: Callable[[], None]) -> None:
        if event.data["now"] == "bad":
            raise Reject("it cannot be done yet")
        then()
        if event.data["now"] == "other":
            raise ValueError(f"another error of {event.position}")
        if event.data["now"] == "ignore":
            raise Ignore("no need")

    def book(event: Event[Any], tx: Tx) -> None:
        def then() -> None:
            book_well(event, tx)
            tx.emit(theatre.news, "booked", {})
            if event.data["now"] == "conflict":
                tx.execute("INSERT INTO booked VALUES (NULL, NULL)")

        fate(event, then)

    def tell(event: Event[Any], ctx: Ctx) -> None:
        def then() -> None:
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            ctx.execute("INSERT INTO tickets DEFAULT VALUES")
            ctx.emit(theatre.news, f"told.{ctx.state['n']}", {})
            if event.data["now"] == "conflict":
                ctx.execute("INSERT INTO booked VALUES (NULL, NULL)")

        fate(event, then)

    with theatre.harness as harness:
        for _ in range(dice.randint(1, 30)):
            key = dice.choice(["a", "b", "c", "d", None])
            harness.append(theatre.seats, "sold", {"seat": key or "-", "now": dice.choice(fates)}, key=key)
        harness.run_until_idle()
        theatre.book, theatre.tell = book, tell
        heads = [letter for letter, _ in theatre.app.operate().letters.heads(limit=1000)]
        for name in ("book", "tell"):
            check_foretold(theatre, name, [letter for letter in heads if letter.subscription == name])


def check_foretold(theatre: Theatre, name: str, heads: list[LetterRow]) -> None:
    harness = theatre.harness
    before = dump(harness.path)
    rehearsal = rehearse(theatre.app, heads, lane=True)
    check_same(before, dump(harness.path))
    rows = {table: len(harness.query(f"SELECT 1 FROM {table}")) for table in ("booked", "tickets")}
    emitted = len(harness.emitted(theatre.news))
    harness.replay(heads)
    now = {letter.id: letter for letter in harness.letters()}
    expected = {"applied": "would succeed", "discarded": "would succeed", "retrying": "cannot rehearse"}
    for one in rehearsal.letters:
        after = now[one.letter.id]
        if after.state == "dead":
            same = after.fingerprint == one.letter.fingerprint
            assert one.result == ("would fail the same way" if same else "would fail differently")
            assert (one.fingerprint, one.error_type, one.why) == (
                after.fingerprint, after.error_type, after.error_message
            )  # fmt: skip
        else:
            assert one.result == expected[after.state]
    touched = {one.letter.id for one in rehearsal.letters}
    assert touched == {number for number, letter in now.items() if letter.subscription == name}
    grown = {table: len(harness.query(f"SELECT 1 FROM {table}")) - rows[table] for table in rows}
    assert {table: counts.inserted for table, counts in rehearsal.tables.items()} == {
        table: more for table, more in grown.items() if more
    }
    told = [kind for kind, _ in harness.emitted(theatre.news)[emitted:]]
    assert rehearsal.emitted.get("news", {}) == {kind: told.count(kind) for kind in told}
