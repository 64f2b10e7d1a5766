"""A function may use savepoints of its own, and cannot reach those of the engine or of another event's call."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from redrive import App, UsageError, no_retry
from redrive.replay.rehearse import rehearse
from redrive.testing import Harness

SEEN = {"seen": "id TEXT"}
OURS = ("redrive_point", "redrive_call", "redrive_check")

# How a statement can name the savepoint x.
SPELLINGS = {
    "plain": "{verb} {name}",
    "lower": "{lower} {name}",
    "quoted": '{verb} "{name}"',
    "comments": "/* a */ -- b\n {verb} /* ; */ {name} -- c",
    "first": "; {verb} {name}",
    "end": "{verb} {name};",
}
VERBS = {
    "RELEASE": ["RELEASE", "RELEASE SAVEPOINT"],
    "ROLLBACK TO": [
        "ROLLBACK TO",
        "ROLLBACK TO SAVEPOINT",
        "ROLLBACK TRANSACTION TO",
        "ROLLBACK TRANSACTION TO SAVEPOINT",
    ],
}
ON_POSTGRES = ["ROLLBACK WORK TO", "ROLLBACK WORK TO SAVEPOINT"]


def spelled(verb: str, name: str, spelling: str) -> str:
    return SPELLINGS[spelling].format(verb=verb, lower=verb.lower(), name=name)


def put(harness: Harness, *ids: str) -> None:
    for one in ids:
        harness.append("orders", "order.placed", id=one, key=one)


def seen(harness: Harness) -> list[str]:
    return sorted(one for (one,) in harness.query("SELECT id FROM seen"))


def project(app: App, bad: Callable[[Any], None], **options: Any) -> None:
    @app.projection(app.log("orders"), name="project", tables=SEEN, **{"retry": no_retry, **options})
    def function(event: Any, tx: Any) -> None:
        for one in event if isinstance(event, list) else [event]:
            tx.execute("INSERT INTO seen VALUES (:id)", {"id": one.id})
            if one.id.startswith("bad"):
                bad(tx)


def handle(app: App, *statements: str) -> None:
    @app.on(app.log("orders"), name="handle", start="first", retry=no_retry)
    def function(event: Any, ctx: Any) -> None:
        ctx.execute("INSERT INTO seen VALUES (:id)", {"id": event.id})
        for statement in statements if event.id.startswith("bad") else ():
            ctx.execute(statement)


def table(app: App) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE seen (id TEXT)")


@pytest.mark.parametrize("way", ["execute", "connection", "cursor"])
@pytest.mark.parametrize("verb", ["RELEASE", "ROLLBACK TO"])
@pytest.mark.parametrize("name", OURS)
def test_projection_cannot_name_a_savepoint_of_the_engine(
    app: App, harness: Harness, verb: str, name: str, way: str
) -> None:
    def bad(tx: Any) -> None:
        {"execute": tx, "connection": tx.connection, "cursor": tx.connection.cursor()}[way].execute(f"{verb} {name}")

    project(app, bad)
    put(harness, "a", "bad1", "b", "bad2", "c")
    harness.run_until_idle()
    assert seen(harness) == ["a", "b", "c"]
    assert [(one.event_id, one.state) for one in harness.letters()] == [("bad1", "dead"), ("bad2", "dead")]
    assert "no savepoint of that name" in (harness.letters()[0].error_message or "")
    assert harness.halted == {}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("verb", ["RELEASE", "ROLLBACK TO"])
@pytest.mark.parametrize("batch", [False, True])
def test_projection_cannot_name_a_savepoint_of_another_call(
    app: App, harness: Harness, verb: str, spelling: str, batch: bool
) -> None:
    """The neighbour leaves its savepoint open, under the same name."""
    dice = random.Random(f"{verb}{spelling}")

    @app.projection(app.log("orders"), name="project", tables=SEEN, retry=no_retry, batch=batch)
    def function(event: Any, tx: Any) -> None:
        events = event if isinstance(event, list) else [event]
        for one in events:
            if not one.id.startswith("bad"):
                tx.execute(spelled("SAVEPOINT", "mine", spelling))
            tx.execute("INSERT INTO seen VALUES (:id)", {"id": one.id})
            if one.id.startswith("bad") and len(events) == 1:
                wordings = VERBS[verb] + (ON_POSTGRES if verb == "ROLLBACK TO" and harness.on_postgres else [])
                tx.execute(spelled(dice.choice(wordings), "mine", spelling))

    put(harness, "a", "b", "bad1", "c")
    harness.run_until_idle()
    if batch:  # one call for all of them: its savepoints are its own
        assert (seen(harness), harness.letters()) == (["a", "b", "bad1", "c"], [])
        return
    assert seen(harness) == ["a", "b", "c"]
    [letter] = harness.letters()
    assert (letter.event_id, letter.state, letter.error_type) == ("bad1", "dead", "redrive.errors.UsageError")
    assert "no savepoint of that name" in (letter.error_message or "")


@pytest.mark.parametrize("verb", ["RELEASE", "ROLLBACK TO"])
@pytest.mark.parametrize("name", ["redrive_point", "mine"])
def test_handler_cannot_name_a_savepoint_of_its_neighbour(app: App, harness: Harness, verb: str, name: str) -> None:
    @app.on(app.log("orders"), name="handle", start="first", retry=no_retry, concurrency=1)
    def function(event: Any, ctx: Any) -> None:
        if not event.id.startswith("bad"):
            ctx.execute("SAVEPOINT mine")
        ctx.execute("INSERT INTO seen VALUES (:id)", {"id": event.id})
        if event.id.startswith("bad"):
            ctx.execute(f"{verb} {name}")

    table(app)
    put(harness, "a", "b", "bad1", "c")
    harness.run_until_idle()
    assert seen(harness) == ["a", "b", "c"]
    assert [(one.event_id, one.state) for one in harness.letters()] == [("bad1", "dead")]
    assert harness.halted == {}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_function_goes_back_to_a_savepoint_of_its_own(app: App, harness: Harness, spelling: str) -> None:
    def bad(tx: Any) -> None:
        tx.execute(spelled("SAVEPOINT", "mine", spelling))
        tx.execute("INSERT INTO seen VALUES ('undone')")
        tx.connection.execute(spelled("ROLLBACK TO SAVEPOINT", "mine", spelling))
        tx.execute("INSERT INTO seen VALUES ('kept')")
        tx.connection.cursor().execute(spelled("RELEASE SAVEPOINT", "mine", spelling))

    project(app, bad)
    handle(app, "SAVEPOINT mine", "INSERT INTO seen VALUES ('undone')", "ROLLBACK TO mine", "RELEASE mine")
    put(harness, "a", "bad1", "b", "bad2", "c")
    harness.run_until_idle()
    assert seen(harness) == ["a", "a", "b", "b", "bad1", "bad1", "bad2", "bad2", "c", "c", "kept", "kept"]
    assert harness.letters() == []


def test_names_are_compared_as_the_store_does(app: App, harness: Harness) -> None:
    table(app)
    with app.transaction() as tx:
        tx.execute("SAVEPOINT Mine")
        tx.execute('RELEASE "mine"')  # SQLite ignores case, Postgres folds it
        tx.execute('SAVEPOINT "a ""b"""')
        tx.execute("INSERT INTO seen VALUES ('undone')")
        tx.execute('ROLLBACK TO "a ""b"""')
        tx.execute("INSERT INTO seen VALUES ('kept')")
        tx.execute("SAVEPOINT savepoint")
        tx.execute("RELEASE savepoint")
    assert seen(harness) == ["kept"]


def test_transaction_of_the_program_keeps_its_names_to_the_end(app: App, harness: Harness) -> None:
    table(app)
    with app.transaction() as tx:
        tx.execute("SAVEPOINT mine")
        tx.execute("INSERT INTO seen VALUES ('undone')")
        app.log("orders").append("order.placed", id="a", tx=tx)
        tx.execute("ROLLBACK TO mine")
        tx.execute("INSERT INTO seen VALUES ('kept')")
    with app.transaction() as tx, pytest.raises(UsageError, match="no savepoint of that name"):
        tx.execute("ROLLBACK TO mine")
    assert seen(harness) == ["kept"]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("verb", [*VERBS["RELEASE"], *VERBS["ROLLBACK TO"]])
def test_every_spelling_of_a_foreign_name_is_refused(app: App, harness: Harness, verb: str, spelling: str) -> None:
    table(app)
    for name in ("redrive_point", "REDRIVE_POINT", '"redrive_point"'):
        if '"' in name and spelling == "quoted":
            continue
        with app.transaction() as tx:
            tx.execute("INSERT INTO seen VALUES ('kept')")
            with pytest.raises(UsageError, match="no savepoint of that name"):
                tx.connection.execute(spelled(verb, name, spelling))
    assert set(seen(harness)) == {"kept"}


@pytest.mark.sqlite("the words of SQLite's own grammar")
@pytest.mark.parametrize(
    "statement",
    [
        "EXPLAIN SAVEPOINT mine",
        "ROLLBACK TRANSACTION x TO redrive_point",
        "RELEASE 'redrive_point'",
        "RELEASE [redrive_point]",
        "ROLLBACK TO `redrive_point`",
    ],
)
def test_other_spellings_are_refused_on_sqlite(app: App, harness: Harness, statement: str) -> None:
    project(app, lambda tx: tx.execute(statement))
    put(harness, "a", "bad1", "b")
    harness.run_until_idle()
    assert seen(harness) == ["a", "b"]
    assert [(one.event_id, one.state) for one in harness.letters()] == [("bad1", "dead")]
    assert harness.halted == {}


def test_rehearsal_treats_savepoints_as_a_worker_does(app: App, harness: Harness) -> None:
    is_fixed = False

    def bad(tx: Any) -> None:
        if is_fixed:
            tx.execute("SAVEPOINT mine")
            tx.execute("INSERT INTO seen VALUES ('undone')")
            tx.execute("ROLLBACK TO mine")
        else:
            tx.execute("ROLLBACK TO redrive_point")

    project(app, bad)
    put(harness, "bad1")
    harness.run_until_idle()
    found = []
    for is_fixed in (False, True):  # noqa: B007
        [letter] = rehearse(app, harness.letters()).letters
        found.append(letter.result)
    assert found == ["would fail the same way", "would succeed"]
