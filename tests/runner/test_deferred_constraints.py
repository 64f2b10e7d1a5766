"""A constraint that the database checks at COMMIT is broken by one event of many: that one is found, and only that one.

On SQLite foreign keys hold where the library was built with them on; no function can turn them on in a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from redrive import App, no_retry, retry
from redrive.replay.rehearse import rehearse
from redrive.testing import Harness

CHILDREN = {"children": "n INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents (n) DEFERRABLE INITIALLY DEFERRED"}
INSERT = "INSERT INTO children VALUES (:n, :parent)"
REFUSED = ("psycopg.errors.ForeignKeyViolation", "sqlite3.IntegrityError")
ORPHAN = 99  # a parent that does not exist

Start = Callable[..., Harness]


@pytest.fixture(autouse=True)
def _foreign_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection as of a library that was built with SQLITE_DEFAULT_FOREIGN_KEYS=1."""
    connect = sqlite3.connect

    def connect_and_enforce(*args: Any, **options: Any) -> Any:
        connection = connect(*args, **options)
        connection.execute("PRAGMA foreign_keys = on")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_and_enforce)


@pytest.fixture
def family(app: App, start: Start) -> Harness:
    """Parents 1 to 20, and no child yet."""
    harness = start(app)
    with app.transaction() as tx:
        tx.execute("CREATE TABLE parents (n INTEGER PRIMARY KEY)")
        tx.executemany("INSERT INTO parents VALUES (:n)", [{"n": n} for n in range(1, 21)])
        for name, columns in CHILDREN.items():
            tx.execute(f"CREATE TABLE {name} ({columns})")
    return harness


def declare(app: App, kind: str, **options: Any) -> list[int]:
    """A function that stores a child per event, and the numbers it was called with."""
    calls: list[int] = []

    def one(event: Any, out: Any) -> None:
        calls.append(event.data[0])
        out.execute(INSERT, {"n": event.data[0], "parent": event.data[1]})

    def many(events: Any, out: Any) -> None:
        for event in events:
            one(event, out)

    if kind == "handler":
        app.on(app.log("births"), name="f", start="first", **options)(one)
    else:
        batch = kind == "list"
        app.projection(app.log("births"), name="f", tables=["children"], batch=batch, **options)(many if batch else one)
    return calls


def born(harness: Harness, parents: list[int], key: str | None = None) -> None:
    for n, parent in enumerate(parents, 1):
        harness.append("births", "born", [n, parent], key=key or f"k{n}")


def children(harness: Harness) -> list[int]:
    return [n for (n,) in harness.query("SELECT n FROM children ORDER BY n")]


KINDS = pytest.mark.parametrize("kind", ["projection", "list", "handler"])


@KINDS
def test_the_event_that_breaks_it_becomes_a_letter_and_the_others_are_applied(
    app: App, family: Harness, kind: str
) -> None:
    declare(app, kind, retry=no_retry)
    born(family, [1, 2, ORPHAN, 4, 5, ORPHAN, ORPHAN, 8, *range(9, 20)])
    family.run_until_idle()
    assert children(family) == [1, 2, 4, 5, *range(8, 20)]
    assert family.halted == {}
    letters = family.letters()
    assert [(letter.position, letter.state, letter.attempts) for letter in letters] == [
        (3, "dead", 1), (6, "dead", 1), (7, "dead", 1),
    ]  # fmt: skip
    assert {letter.error_type for letter in letters} <= set(REFUSED)
    assert all("foreign key" in letter.error_message.lower() for letter in letters)


@KINDS
@pytest.mark.parametrize("wait", ["0s", "10s"])
def test_its_retries_are_counted_and_it_is_applied_when_the_constraint_holds(
    app: App, family: Harness, kind: str, wait: str
) -> None:
    declare(app, kind, retry=retry(attempts=3, wait=wait, jitter=0))
    born(family, [1, ORPHAN, 3])
    family.advance("10m")
    [letter] = family.letters()
    assert (letter.state, letter.attempts, children(family)) == ("dead", 3, [1, 3])
    with app.transaction() as tx:
        tx.execute("INSERT INTO parents VALUES (:n)", {"n": ORPHAN})
    family.replay()
    assert (children(family), [letter.state for letter in family.letters()]) == ([1, 2, 3], ["applied"])


@KINDS
def test_letters_that_are_due_together_do_not_fail_together(app: App, family: Harness, kind: str) -> None:
    failing = True

    def one(event: Any, out: Any) -> None:
        if failing:
            raise ValueError("not yet")
        out.execute(INSERT, {"n": event.data[0], "parent": event.data[1]})

    if kind == "handler":
        app.on(app.log("births"), start="first", retry=no_retry)(one)
    else:
        app.projection(app.log("births"), tables=["children"], retry=no_retry)(one)
    born(family, [1, ORPHAN, 3, 4])
    family.run_until_idle()
    failing = False
    family.replay()
    assert children(family) == [1, 3, 4]
    assert [letter.state for letter in family.letters()] == ["applied", "dead", "applied", "applied"]


@KINDS
def test_what_follows_in_its_key_waits_for_it(app: App, family: Harness, kind: str) -> None:
    declare(app, kind, retry=no_retry)
    born(family, [1, ORPHAN, 3, 4], key="one")
    family.run_until_idle()
    assert children(family) == [1]
    assert [letter.state for letter in family.letters()] == ["dead", "retrying", "retrying"]


def test_a_function_may_still_write_the_child_before_the_parent(app: App, family: Harness) -> None:
    @app.projection(app.log("births"), tables=["children"], retry=no_retry)
    def adopt(event: Any, tx: Any) -> None:
        n, parent = event.data
        tx.execute(INSERT, {"n": n, "parent": parent})
        if parent != ORPHAN:
            tx.execute("INSERT INTO parents VALUES (:n)", {"n": parent})

    born(family, [31, 32, ORPHAN, 34])
    family.run_until_idle()
    assert children(family) == [1, 2, 4]
    assert [letter.position for letter in family.letters()] == [3]


def test_what_was_wrong_before_is_nobodys_fault(app: App, family: Harness, backend: str | None) -> None:
    """A program without foreign keys, or an administrator with the triggers off, has left an orphan."""
    off = "PRAGMA foreign_keys = off" if backend is None else "SET session_replication_role = replica"
    stranger: Any = sqlite3.connect(family.path) if backend is None else psycopg.connect(backend, autocommit=True)
    stranger.execute(off)
    stranger.execute("INSERT INTO children VALUES (70, 71)")
    stranger.commit()
    stranger.close()
    declare(app, "projection", retry=no_retry)
    born(family, [1, ORPHAN, 3])
    family.run_until_idle()
    assert children(family) == [1, 3, 70]
    assert [letter.position for letter in family.letters()] == [2]


@KINDS
def test_a_rehearsal_looks_at_it_too(app: App, family: Harness, kind: str) -> None:
    declare(app, kind, retry=no_retry, **({"rehearsable": True} if kind == "handler" else {}))
    born(family, [ORPHAN, ORPHAN + 1])
    family.run_until_idle()
    with app.transaction() as tx:
        tx.execute("INSERT INTO parents VALUES (:n)", {"n": ORPHAN})
    told = rehearse(app, family.letters("dead"))
    assert [one.result for one in told.letters] == ["would succeed", "would fail the same way"]
    assert children(family) == []


def test_a_business_transaction_hears_of_it_in_the_words_of_the_driver(
    app: App, family: Harness, backend: str | None
) -> None:
    kind: Any = sqlite3.IntegrityError if backend is None else psycopg.errors.ForeignKeyViolation
    with pytest.raises(kind), app.transaction() as tx:  # noqa: PT012
        app.log("births").append("born", [1, ORPHAN], tx=tx)
        tx.execute(INSERT, {"n": 1, "parent": ORPHAN})
    assert (children(family), list(app.log("births").read())) == ([], [])


def test_a_trigger_of_the_users_that_speaks_at_the_end_is_heard_the_same_way(
    app: App, family: Harness, backend: str | None
) -> None:
    if backend is None:
        return  # SQLite has no deferred triggers
    with app.transaction() as tx:
        tx.execute(
            "CREATE FUNCTION no_seven() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.n = 7 THEN RAISE EXCEPTION 'not the seventh'; END IF; RETURN NULL; END $$"
        )
        tx.execute(
            "CREATE CONSTRAINT TRIGGER picky AFTER INSERT ON children DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION no_seven()"
        )
    declare(app, "projection", retry=no_retry)
    born(family, list(range(1, 11)))
    family.run_until_idle()
    assert children(family) == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    [letter] = family.letters()
    assert (letter.position, letter.error_type) == (7, "psycopg.errors.RaiseException")
    assert letter.error_message.startswith("not the seventh")


@pytest.mark.parametrize("order", ["none", "key", "total"])
@pytest.mark.parametrize("batch", [False, True], ids=["each", "list"])
def test_what_runs_again_does_not_see_what_it_has_changed(app: App, family: Harness, order: Any, batch: bool) -> None:
    seen, ids = list[Any](), list[str]()

    def one(event: Any, tx: Any) -> None:
        seen.append(list(event.data))
        event.data.append("changed")
        n, parent = event.data[:2]
        if n == 3 and seen.count([n, parent]) == 1:  # applied by an attempt of the same transaction
            raise OSError("not now")
        tx.execute(INSERT, {"n": n, "parent": parent})

    def many(events: Any, tx: Any) -> None:
        for event in events:
            one(event, tx)

    function: Any = many if batch else one
    rule = retry(attempts=3, wait="0s", wait_max="0s")
    app.projection(app.log("born"), name="family", start="first", order=order, batch=batch, retry=rule)(function)
    for n in range(1, 8):
        ids.append(family.append("born", "child", [n, ORPHAN if n == 5 else n], key=f"k{n}").id)
    family.run_until_idle()
    assert all(len(data) == 2 for data in seen), seen
    expected = [n for n in range(1, 8) if n != 5 and not (order == "total" and n > 5)]
    assert family.query("SELECT n FROM children ORDER BY n") == [(n,) for n in expected]
    assert [letter.event_id for letter in family.letters("dead")] == [ids[4]]
    assert len(seen) > 8
