"""Where calls failed, statements are held until their call has ended. Whoever looks must not be able to tell."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from redrive import App, retry
from redrive.store.sqlite import hold
from redrive.testing import Harness

TABLES = {"seen": "n INTEGER PRIMARY KEY, note TEXT"}
FIRST = -1  # the event after whose failure statements are held
SEEN = "SELECT n, note FROM seen ORDER BY n"

pytestmark = pytest.mark.sqlite("Postgres always holds what a call asks for, see tests/postgres")


class Poison(Exception):
    pass


@pytest.fixture(autouse=True)
def no_bug(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A projection that ends with an error of ours begins anew without holding anything, and would be right."""
    yield
    assert not [record for record in caplog.get_records("call") if "by a bug" in record.getMessage()]


def project(
    app: App, harness: Harness, function: Any, numbers: list[int], attempts: int = 2, wait: str = "1s"
) -> list[tuple[int, bool]]:
    """Run it for all of these after a first one that fails; which calls were made, and whether statements were held."""
    calls: list[tuple[int, bool]] = []

    @app.projection(app.log("orders"), tables=TABLES, order="none", retry=retry(attempts=attempts, wait=wait, jitter=0))
    def projection(event, tx):
        calls.append((event.data, isinstance(tx._opened, hold.Hold)))
        if event.data == FIRST:
            raise Poison("the first")
        function(event.data, tx)

    for number in (FIRST, *numbers):
        harness.append("orders", "order.placed", number)
    harness.advance("1m")
    assert not harness.letters("retrying")
    return calls


def errors(harness: Harness) -> list[str]:
    """What the dead letters say, but for the first."""
    return [letter.error_message for letter in harness.letters("dead")][1:]


def note(tx: Any, number: int, text: str) -> Any:
    return tx.execute("INSERT INTO seen VALUES (?, ?)", (number, text))


def test_what_fails_takes_nobody_with_it(app: App, harness: Harness) -> None:
    def function(number: int, tx: Any) -> None:
        note(tx, number, "once")
        if number % 10 == 5:
            raise Poison("it fails after it wrote")

    calls = project(app, harness, function, list(range(300)))
    good = [number for number in range(300) if number % 10 != 5]
    assert harness.query(SEEN) == [(number, "once") for number in good]
    assert [number for number, _ in calls if number in good] == good, "somebody was called again"
    assert all(is_held for _, is_held in calls[1:301]), "each at its first attempt"
    assert errors(harness) == ["it fails after it wrote"] * 30


def test_it_hears_of_its_own_errors_where_they_happen(app: App, harness: Harness) -> None:
    def function(number: int, tx: Any) -> None:
        try:
            note(tx, number // 2, "first")
        except sqlite3.IntegrityError:
            note(tx, 100 + number, "second")

    calls = project(app, harness, function, [0, 1, 2, 3])
    assert harness.query(SEEN) == [(0, "first"), (1, "first"), (101, "second"), (103, "second")]
    assert {is_held for _, is_held in calls} == {True, False}, "held at first, then not"
    assert errors(harness) == []


def test_a_letter_says_what_would_have_been_raised(app: App, harness: Harness) -> None:
    def function(number: int, tx: Any) -> None:
        note(tx, 7, "all the same")
        if number == 2:
            raise Poison("it did not come to that")

    project(app, harness, function, [1, 2])
    said = harness.query("SELECT error_message FROM redrive_attempts WHERE letter = ?", (harness.letters()[-1].id,))
    assert said == [("UNIQUE constraint failed: seen.n",)] * 2
    assert harness.query(SEEN) == [(7, "all the same")]


@pytest.mark.parametrize("way", ["rows", "rowcount", "lastrowid", "setting", "connection", "many", "returning"])
def test_who_looks_sees_everything_so_far(app: App, harness: Harness, way: str) -> None:
    looked = []

    def function(number: int, tx: Any) -> None:
        cursor = note(tx, number, way)
        match way:
            case "rows":
                looked.append(next(n for (n,) in tx.execute("SELECT count(*) FROM seen")))
            case "rowcount":
                looked.append(cursor.rowcount)
            case "lastrowid":
                looked.append(cursor.lastrowid)
            case "setting":
                found = tx.execute("SELECT count(*) AS n FROM seen")
                found.row_factory = sqlite3.Row
                looked.append(next(found)["n"])
            case "connection":
                looked.append(tx.connection.execute("SELECT count(*) FROM seen").fetchone()[0])
            case "many":
                looked.append(tx.executemany("UPDATE seen SET note = ?", [("all",)]).rowcount)
            case "returning":
                looked.append(tx.execute("UPDATE seen SET note = 'all' RETURNING n").fetchall()[-1][0])
        if number == 3:
            raise Poison("after it looked")

    project(app, harness, function, [1, 2, 3, 4])
    assert looked[:3] == ([1, 1, 1] if way == "rowcount" else [1, 2, 3])
    assert looked[-1] == {"rowcount": 1, "lastrowid": 3}.get(way, 4), "its last attempt, when all others are there"
    assert [n for n, _ in harness.query(SEEN)] == [1, 2, 4]
    assert errors(harness) == ["after it looked"]


@pytest.mark.parametrize("name", [name for name in dir(sqlite3.Cursor) if not name.startswith("_")])
def test_what_is_held_has_every_name_of_a_cursor(name: str) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        holding: Any = hold.Hold(connection)  # type: ignore[arg-type]
        holding.begin(SimpleNamespace(event=1))
        held = holding.execute("SELECT 1", ())
        assert holding
        found = getattr(held, name)
        assert not holding, "whoever asks makes it run"
        assert type(found) is type(getattr(connection.execute("SELECT 1"), name))


def test_a_name_that_no_cursor_has_is_refused_in_the_words_of_a_cursor(app: App, harness: Harness) -> None:
    def function(number: int, tx: Any) -> None:
        _ = note(tx, number, "x").no_such_name

    calls = project(app, harness, function, [1])
    assert [held for number, held in calls if number == 1] == [True, False], "its first attempt was held"
    said = harness.query("SELECT error_message FROM redrive_attempts WHERE letter = ?", (harness.letters()[-1].id,))
    assert said == [("'sqlite3.Cursor' object has no attribute 'no_such_name'",)] * 2


def test_reading_first_does_not_spoil_it(app: App, harness: Harness) -> None:
    def function(number: int, tx: Any) -> None:
        (count,) = tx.execute("SELECT count(*) FROM seen").fetchone()
        note(tx, number, f"after {count}")
        if number == 2:
            raise Poison("after it read and wrote")

    calls = project(app, harness, function, [1, 2, 3])
    assert harness.query(SEEN) == [(1, "after 0"), (3, "after 1")]
    assert [number for number, _ in calls][:4] == [FIRST, 1, 2, 3], "nobody was called again"


def test_values_are_those_of_the_moment(app: App, harness: Harness) -> None:
    def function(number: int, tx: Any) -> None:
        named: dict[str, Any] = {"n": number, "note": "named"}
        listed: list[Any] = [number + 10, "listed"]
        tx.execute("INSERT INTO seen VALUES (:n, :note)", named)
        tx.execute("INSERT INTO seen VALUES (?, ?)", listed)
        named["n"] = listed[0] = 99
        changing = bytearray(b"bytes")
        tx.execute("INSERT INTO seen VALUES (?, CAST(? AS TEXT))", (number + 20, changing))
        changing[:] = b"other"

    assert project(app, harness, function, [1])[1:] == [(1, True), (FIRST, False)]
    assert harness.query(SEEN) == [(1, "named"), (11, "listed"), (21, "bytes")]


@pytest.mark.parametrize(
    "insert",
    [
        "INSERT INTO seen VALUES (?, '') RETURNING n",
        "WITH new AS (SELECT ?) INSERT INTO seen SELECT *, '' FROM new",
        "-- a comment\nINSERT INTO seen VALUES (?, '')",
        " replace into seen values (?, '')",
    ],
)
def test_any_statement_can_be_held(app: App, harness: Harness, insert: str) -> None:
    calls = project(app, harness, lambda number, tx: tx.execute(insert, (number,)), [1, 2, 3])
    assert calls[1:] == [(1, True), (2, True), (3, True), (FIRST, False)]
    assert [n for n, _ in harness.query(SEEN)] == [1, 2, 3]


def test_what_is_in_vain_ends_soon(app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "HELD_MAX", 4)
    calls = project(app, harness, lambda number, tx: note(tx, number if number != 5 else 1, ""), list(range(40)))
    assert len([number for number, is_held in calls if is_held]) <= 5 + 4
    assert [n for n, _ in harness.query(SEEN)] == [number for number in range(40) if number != 5]


def test_the_order_is_that_of_the_calls(app: App, harness: Harness) -> None:
    def function(number: int, tx: Any) -> None:
        tx.execute("UPDATE seen SET note = note || ?", (str(number),))
        note(tx, number, "")
        tx.execute("UPDATE seen SET note = note || 'x'")

    project(app, harness, function, [1, 2, 3])
    assert harness.query(SEEN) == [(1, "x2x3x"), (2, "x3x"), (3, "x")]


def test_a_cursor_of_an_earlier_call_is_of_use(app: App, harness: Harness) -> None:
    kept: list[Any] = []

    def function(number: int, tx: Any) -> None:
        if kept and number > 1:
            note(tx, 100 + number, str(kept[-1].lastrowid))
        kept.append(note(tx, number, ""))

    project(app, harness, function, [1, 2, 3])
    assert harness.query(SEEN) == [(1, ""), (2, ""), (3, ""), (102, "1"), (103, "2")]


def test_a_transaction_of_an_earlier_call_is_of_use(app: App, harness: Harness) -> None:
    kept: list[Any] = []

    def function(number: int, tx: Any) -> None:
        kept.append(tx)
        if number == 2 and isinstance(tx._opened, hold.Hold):
            raise Poison("it comes back when nothing is held")
        note(kept[0], number, "")

    project(app, harness, function, [1, 2, 3])
    assert isinstance(kept[0]._opened, hold.Hold)
    assert [n for n, _ in harness.query(SEEN)] == [1, 2, 3]
    assert len(harness.letters("dead")) == 1, "but for the first, all were applied"


@pytest.mark.parametrize("attempts", [1, 3])
def test_an_error_that_would_not_have_been_raised_is_nobodys(app: App, harness: Harness, attempts: int) -> None:
    """What is held behind a statement that ran at once has failed where the function would have heard of it."""

    def function(number: int, tx: Any) -> None:
        tx.executemany("UPDATE seen SET note = note WHERE n = ?", [(0,)])
        try:
            note(tx, 7, "")
        except sqlite3.IntegrityError:
            note(tx, 100 + number, "heard")
            return
        if number != 1:
            raise Poison("it does not come to this")

    project(app, harness, function, [1, 2, 3], attempts=attempts, wait="0s")
    assert [n for n, _ in harness.query(SEEN)] == [7, 102, 103]
    assert harness.query("SELECT count(*) FROM redrive_letters") == [(1,)], "only the first has failed"


@pytest.mark.parametrize("attempts", [2, 3])
def test_a_cursor_that_was_kept_for_too_long_is_the_failure_of_who_asks_it(
    app: App, harness: Harness, attempts: int
) -> None:
    kept, tries = [], list[int]()

    def function(number: int, tx: Any) -> None:
        tries.append(number)
        cursor = note(tx, number, "")
        if number == 1:
            kept.append(cursor)
        if number == 2:
            if tries.count(2) > 1:
                kept[0].fetchone()
            raise Poison("the first time it does not ask")

    project(app, harness, function, [1, 2, 3], attempts=attempts, wait="0s")
    assert [n for n, _ in harness.query(SEEN)] == [1, 3]
    assert errors(harness) == ["this cursor belongs to a call that has ended"]


def test_a_further_attempt_sees_its_event_as_it_was(app: App, harness: Harness) -> None:
    seen: list[tuple[int, int]] = []

    @app.projection(app.log("orders"), tables=TABLES, order="none", retry=retry(attempts=3, wait="0s"))
    def projection(event: Any, tx: Any) -> None:
        event.data["count"] += 1
        seen.append((event.data["n"], event.data["count"]))
        note(tx, 10 * event.data["n"] + len(seen), "another one each time")
        if event.data["n"] < 3:
            raise Poison("always")

    for number in (1, 2, 3):
        harness.append("orders", "order.placed", {"n": number, "count": 0})
    harness.advance("1m")
    assert {count for _, count in seen} == {1}, "nobody sees what an earlier attempt has changed"
    assert len(harness.letters("dead")) == 2


def test_one_call_may_ask_for_any_number(app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "CALL_MAX", 5)

    def function(number: int, tx: Any) -> None:
        for n in range(12):
            note(tx, number * 100 + n, "")
            assert len(getattr(tx._opened, "_held", ())) <= 5
        if number == 2:
            raise Poison("after many")

    project(app, harness, function, [1, 2, 3])
    assert [n for n, _ in harness.query(SEEN)] == [*range(100, 112), *range(300, 312)]
    assert harness.query("SELECT count(*) FROM redrive_letters") == [(2,)]


def test_an_emission_is_made_once(app: App, harness: Harness) -> None:
    def function(number: int, tx: Any) -> None:
        note(tx, number, "")
        if number == 2:
            raise Poison("before it emits")
        tx.emit(app.log("receipts"), "receipt.sent", number, key=None)

    project(app, harness, function, [1, 2, 3])
    assert harness.emitted("receipts") == [("receipt.sent", 1), ("receipt.sent", 3)]
    assert [n for n, _ in harness.query(SEEN)] == [1, 3]


@pytest.mark.parametrize("order", ["key", "total"])
def test_in_order_a_failure_is_not_passed(app: App, harness: Harness, order: Any) -> None:
    fails = {3}

    @app.projection(app.log("orders"), tables=TABLES, order=order, retry=retry(attempts=3, wait="1s", jitter=0))
    def projection(event, tx):
        note(tx, event.data, "once")
        if event.data in fails:
            raise Poison("not yet")

    for number in range(8):
        harness.append("orders", "order.placed", number, key="a" if number < 6 else "b")
    harness.run_until_idle()
    expected = [0, 1, 2, 6, 7] if order == "key" else [0, 1, 2]
    assert [n for n, _ in harness.query(SEEN)] == expected
    fails.clear()
    harness.advance("1m")
    assert [n for n, _ in harness.query(SEEN)] == list(range(8))


# ---------------------------------------------------------------- attempts that do not wait


def at_once(app: App, harness: Harness, function: Any, numbers: list[int]) -> list[int]:
    """As `project`, with three attempts one after the other: for which events the function was called."""
    calls = project(app, harness, function, numbers, attempts=3, wait="0s")
    return [number for number, _ in calls if number != FIRST]


def attempts_of(harness: Harness) -> list[tuple[int, str]]:
    """The history of all letters but the first."""
    return harness.query(
        "SELECT attempt, error_message FROM redrive_attempts WHERE letter > 1 ORDER BY letter, attempt"
    )


def test_what_fails_the_same_way_again_is_called_as_often_as_it_is_tried(app: App, harness: Harness) -> None:
    def function(number: int, tx: Any) -> None:
        note(tx, number, "once")
        if number % 10 == 5:
            raise Poison(f"{number} fails after it wrote")

    calls = at_once(app, harness, function, list(range(100)))
    good = [number for number in range(100) if number % 10 != 5]
    assert harness.query(SEEN) == [(number, "once") for number in good]
    assert sorted(calls) == sorted([*good, *[*range(5, 100, 10)] * 3])
    bad = [(attempt, f"{number} fails after it wrote") for number in range(5, 100, 10) for attempt in (1, 2, 3)]
    assert attempts_of(harness) == bad
    assert [letter.attempts for letter in harness.letters("dead")] == [3] * 11


def test_who_would_have_heard_of_an_error_and_gone_on_is_applied(app: App, harness: Harness) -> None:
    def function(number: int, tx: Any) -> None:
        try:
            note(tx, 7, "mine")
        except sqlite3.IntegrityError:
            note(tx, 100 + number, "taken")
        else:
            if number != 1:
                raise Poison("it did not come to that")

    at_once(app, harness, function, [1, 2, 3])
    assert harness.query(SEEN) == [(7, "mine"), (102, "taken"), (103, "taken")]
    assert errors(harness) == []
    assert harness.query("SELECT applied FROM redrive_progress") == [(3,)]


def test_what_goes_well_the_second_time_is_applied_once(app: App, harness: Harness) -> None:
    tries: list[int] = []

    def function(number: int, tx: Any) -> None:
        tries.append(number)
        note(tx, number, f"try {tries.count(number)}")
        if number % 2 and tries.count(number) < 2:
            raise Poison("not yet")

    at_once(app, harness, function, [1, 2, 3])
    found = dict(harness.query(SEEN))
    assert found.keys() == {1, 2, 3} and found[2] == "try 1"
    assert errors(harness) == [] and attempts_of(harness) == [(1, "not yet"), (2, "")] * 2


WHOLE = "INSERT INTO seen SELECT ?, json(CASE typeof(?) WHEN 'integer' THEN '1' ELSE '{' END)"
NAMED = WHOLE.replace("?", ":n", 1).replace("?", ":whole")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("others", "UNIQUE"),
        ("more", "UNIQUE"),
        ("another type", "malformed"),
        ("another type by name", "malformed"),
        ("looking", "try"),
        ("at once", "try"),
    ],
)
def test_an_attempt_that_does_something_else_is_taken_at_its_word(
    app: App, harness: Harness, how: str, says: str
) -> None:
    tries: list[int] = []

    def function(number: int, tx: Any) -> None:
        tries.append(number)
        again = tries.count(number) > 1
        match how:
            case "others" | "more" if again:
                if how == "more":
                    tx.execute(WHOLE, (number, 1))
                note(tx, 7, "taken")
            case "another type":
                tx.execute(WHOLE, (number, 1.0 if again else 1))
            case "another type by name":
                tx.execute(NAMED, {"n": number, "whole": 1.0 if again else 1})
            case "looking" if again:
                assert tx.execute(WHOLE, (number, 1)).rowcount == 1
            case "at once":  # the first time it asks for nothing
                if again or number == 7:
                    tx.connection.execute(WHOLE, (number, 1))
            case _:
                tx.execute(WHOLE, (number, 1))
        if number != 7:
            raise Poison(f"try {tries.count(number)}")

    at_once(app, harness, function, [7, 1, 2])
    assert harness.query("SELECT n FROM seen") == [(7,)]
    said = [message.split()[0] for _, message in attempts_of(harness)]
    assert said == ["try", says, says] * 2


def test_what_one_asked_for_that_failed_is_not_there_for_the_next(app: App, harness: Harness) -> None:
    needs = "INSERT INTO seen SELECT ?, json(CASE WHEN EXISTS (SELECT 1 FROM seen WHERE n = 5) THEN '1' ELSE '{' END)"

    def function(number: int, tx: Any) -> None:
        if number == 5:
            note(tx, 5, "needed")
        else:
            tx.execute(needs, (number,))
        raise Poison("it did not come to that" if number == 6 else "after it wrote")

    at_once(app, harness, function, [5, 6])
    assert errors(harness) == ["after it wrote", "malformed JSON"]
    assert harness.query(SEEN) == []


class Recipe:
    """What a function does for one event: some writes, a few of them watched, and whether it raises in the end."""

    def __init__(self, number: int, dice: random.Random) -> None:
        self.is_bad = dice.random() < 0.4
        self.steps: list[tuple[int, int | None]] = [
            (1_000 + number, None)
        ]  # what to write, and what else if it is taken
        if self.is_bad:
            taken = [1_000 + dice.randrange(12), *range(3)]
            self.steps = [(dice.choice(taken), dice.choice([None, *range(3, 6)])) for _ in range(dice.randint(0, 3))]
        self.spares = self.is_bad and dice.random() < 0.5  # who found something taken is content

    def follow(self, write: Callable[[int], Any]) -> None:
        found_taken = False
        for step, other in self.steps:
            try:
                write(step)
            except sqlite3.IntegrityError:
                if other is None:
                    raise
                found_taken = True
                write(other)
        if self.is_bad and not (self.spares and found_taken):
            raise Poison("in the end")


def expected(recipes: list[Recipe]) -> tuple[list[int], list[str]]:
    """By hand: those that raise when nothing is taken come last, one after the other; rows, and what the dead say."""
    rows = {step for recipe in recipes if not recipe.is_bad for step, _ in recipe.steps}
    dead: list[str] = []

    def write(number: int) -> None:
        if number in rows:
            raise sqlite3.IntegrityError("UNIQUE constraint failed: seen.n")
        rows.add(number)

    for recipe in recipes:
        if recipe.is_bad:
            before = set(rows)
            try:
                recipe.follow(write)
            except (Poison, sqlite3.IntegrityError) as error:
                dead.append(str(error))
                rows = before
    return sorted(rows), dead


@pytest.mark.parametrize("seed", range(60))
def test_the_fate_of_poison_is_that_of_calls_behind_all_others(app: App, harness: Harness, seed: int) -> None:
    dice = random.Random(seed)
    recipes = [Recipe(number, dice) for number in range(12)]
    at_once(app, harness, lambda number, tx: recipes[number].follow(lambda n: note(tx, n, "x")), list(range(12)))
    rows, dead = expected(recipes)
    assert [n for n, _ in harness.query(SEEN)] == rows
    assert errors(harness) == dead
    assert [message for _, message in attempts_of(harness)] == [message for message in dead for _ in range(3)]
