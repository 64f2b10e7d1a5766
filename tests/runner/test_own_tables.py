"""A function reads redrive's own tables and writes to none of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from redrive import App, no_retry
from redrive.replay.rehearse import rehearse
from redrive.testing import Harness

BOTH = [
    "DELETE FROM redrive_letters",
    "delete from Redrive_letters where id = 1",
    "UPDATE redrive_progress SET position = 0",
    "UPDATE redrive_progress SET applied = applied + 1",
    "INSERT INTO redrive_filters VALUES (1, 0, '[]')",
    "/* a */ INSERT INTO redrive_state SELECT * FROM redrive_state -- b",
    "WITH old AS (SELECT 1) DELETE FROM redrive_events WHERE position IN (SELECT * FROM old)",
    "DROP TABLE redrive_letters",
    "ALTER TABLE redrive_letters ADD COLUMN mine TEXT",
    "CREATE INDEX mine ON redrive_events (type)",
    "DROP INDEX IF EXISTS redrive_letters_open",
    "CREATE TABLE redrive_mine (n INTEGER)",
]
SQLITE = [
    'DELETE FROM "redrive_letters"',
    "DELETE FROM [redrive_letters]",
    "REPLACE INTO main.redrive_state VALUES (1, 'a', 1, 'x')",
    "CREATE TRIGGER another AFTER INSERT ON redrive_events BEGIN SELECT 1; END",
    "CREATE TEMP TABLE redrive_letters (id INTEGER)",
    "CREATE TEMP VIEW redrive_letters AS SELECT 1",
    "INSERT INTO indirect VALUES (1)",  # its trigger writes
    "INSERT INTO view VALUES (1)",
]
POSTGRES = [
    'DELETE FROM "redrive"."letters"',
    "DELETE FROM ONLY redrive . letters",
    "WITH gone AS (DELETE FROM redrive.letters RETURNING id) SELECT * FROM gone",
    "EXPLAIN ANALYZE UPDATE redrive.progress SET applied = 0",
    "MERGE INTO redrive.state s USING redrive.logs l ON false WHEN MATCHED THEN DELETE",
    "TRUNCATE redrive.letters",
    "TRUNCATE TABLE seen, redrive.letters",
    "CREATE TRIGGER mine BEFORE INSERT ON redrive.events FOR EACH ROW EXECUTE FUNCTION mine()",
    "DROP SCHEMA IF EXISTS redrive CASCADE",
    "GRANT ALL ON ALL TABLES IN SCHEMA redrive TO PUBLIC",
    "LOCK TABLE redrive.progress",
    "SET LOCAL search_path TO redrive",
    "DO $$ BEGIN DELETE FROM redrive.letters; END $$",
    "DO 'BEGIN UPDATE redrive.progress SET applied = 0; END'",
    "COPY redrive.logs FROM STDIN",
]
ALLOWED = [
    "INSERT INTO seen SELECT name FROM redrive_logs WHERE name = 'nothing'",
    "UPDATE seen SET id = id WHERE id IN (SELECT name FROM redrive_logs)",
    "DELETE FROM seen WHERE id IN (SELECT name FROM redrive_logs)",
    "SELECT count(*) FROM redrive_events",
    "INSERT INTO seen SELECT 'DELETE FROM redrive_letters' WHERE 1 = 0",
]
ALLOWED_ON_POSTGRES = [
    "DELETE FROM seen USING redrive.logs l WHERE l.name = seen.id",
    "CREATE TEMP TABLE mine ON COMMIT DROP AS SELECT l.name FROM redrive.logs l, redrive.events e",
    "SELECT 1 FROM redrive.logs FOR SHARE",
]


def project(app: App, bad: Callable[[Any], Any], **options: Any) -> None:
    @app.projection(app.log("orders"), name="project", tables={"seen": "id TEXT"}, retry=no_retry, **options)
    def function(event: Any, tx: Any) -> None:
        for one in event if isinstance(event, list) else [event]:
            tx.execute("INSERT INTO seen VALUES (:id)", {"id": one.id})
            if one.id.startswith("bad"):
                bad(tx)


def put(harness: Harness, *ids: str) -> None:
    for one in ids:
        harness.append("orders", "order.placed", id=one, key=one)


def outcome(harness: Harness) -> tuple[list[str], list[tuple[str, str]]]:
    seen = sorted(one for (one,) in harness.query("SELECT id FROM seen"))
    return seen, [(one.event_id, one.state) for one in harness.letters()]


REFUSED = (["a", "b"], [("bad", "dead")])


def prepare(harness: Harness) -> None:
    """A trigger and a view that lead to redrive's tables, made by a program that may."""
    if harness.on_postgres:  # type: ignore[attr-defined]
        return
    with harness.app.transaction() as tx:
        tx.execute("CREATE TABLE indirect (n INTEGER)")
        tx.execute("CREATE TRIGGER mine AFTER INSERT ON indirect BEGIN DELETE FROM redrive_letters; END")
        tx.execute("CREATE VIEW view AS SELECT n FROM indirect")
        tx.execute("CREATE TRIGGER other INSTEAD OF INSERT ON view BEGIN UPDATE redrive_progress SET position = 0; END")


def check_refused(harness: Harness) -> None:
    put(harness, "a", "bad", "b")
    harness.run_until_idle()
    assert outcome(harness) == REFUSED
    assert "belongs to redrive" in (harness.letters()[0].error_message or "")
    assert harness.halted == {}


@pytest.mark.parametrize("way", ["execute", "connection", "cursor"])
@pytest.mark.parametrize("statement", BOTH)
def test_projection_that_writes_to_own_tables_fails(app: App, harness: Any, statement: str, way: str) -> None:
    def bad(tx: Any) -> None:
        {"execute": tx, "connection": tx.connection, "cursor": tx.connection.cursor()}[way].execute(
            harness.own(re.sub("(?i)redrive_", "redrive_", statement))
        )

    project(app, bad)
    check_refused(harness)


@pytest.mark.sqlite("the words of SQLite")
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("statement", [*BOTH, *SQLITE])
def test_sqlite_refuses_every_way_to_write(app: App, harness: Any, statement: str, batch: bool) -> None:
    project(app, lambda tx: tx.execute(statement), batch=batch)
    prepare(harness)
    check_refused(harness)


@pytest.mark.parametrize("statement", [*BOTH, *POSTGRES])
def test_handler_that_writes_to_own_tables_fails(app: App, harness: Any, statement: str) -> None:
    if not harness.on_postgres:
        statement = next(iter(BOTH)) if statement in POSTGRES else statement

    @app.on(app.log("orders"), name="handle", start="first", retry=no_retry)
    def function(event: Any, ctx: Any) -> None:
        ctx.execute("INSERT INTO seen VALUES (:id)", {"id": event.id})
        if event.id == "bad":
            ctx.execute(harness.own(re.sub("(?i)redrive_", "redrive_", statement)))

    with app.transaction() as tx:
        tx.execute("CREATE TABLE seen (id TEXT)")
    check_refused(harness)


def test_function_may_read_own_tables(app: App, harness: Any) -> None:
    def bad(tx: Any) -> None:
        for statement in [*ALLOWED, *(ALLOWED_ON_POSTGRES if harness.on_postgres else [])]:
            tx.execute(harness.own(statement))
            tx.connection.execute(harness.own(statement.replace("TABLE mine", "TABLE other")))

    project(app, bad)
    put(harness, "a", "bad", "b")
    harness.run_until_idle()
    assert outcome(harness) == (["a", "b", "bad"], [])


def test_emission_beside_a_refused_write_is_the_engines(app: App, harness: Any) -> None:
    other = app.log("other")

    @app.projection(app.log("orders"), name="project", tables={"seen": "id TEXT"}, retry=no_retry)
    def function(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (:id)", {"id": event.id})
        tx.emit(other, "seen", event.id)
        if event.id == "bad":
            tx.execute(harness.own("DELETE FROM redrive_events"))

    put(harness, "a", "bad", "b")
    harness.run_until_idle()
    assert outcome(harness) == REFUSED
    assert [event.data for event in other.read()] == ["a", "b"]


def test_rehearsal_refuses_writes_to_own_tables(app: App, harness: Any) -> None:
    is_fixed = False

    def bad(tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES ('more')")
        if not is_fixed:
            tx.execute(harness.own("DELETE FROM redrive_events"))

    project(app, bad)
    put(harness, "bad")
    harness.run_until_idle()
    found = []
    for is_fixed in (False, True):  # noqa: B007
        [letter] = rehearse(app, harness.letters()).letters
        found.append(letter.result)
    assert found == ["would fail the same way", "would succeed"]


def test_transaction_of_the_program_may_repair(app: App, harness: Any) -> None:
    """It is not called by redrive: what it does to the tables is the operator's own affair, and `verify` tells."""
    project(app, lambda tx: None)
    put(harness, "a")
    harness.run_until_idle()
    with app.transaction() as tx:
        tx.execute(harness.own("UPDATE redrive_progress SET applied = 7"))
    [found] = app.operate("ada").verify()
    assert not found.sound
    harness.tampered = True
