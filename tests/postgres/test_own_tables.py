"""Which statements write to redrive's own tables, as their text tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import App, no_retry
from redrive.store.postgres.params import translate
from redrive.testing import Harness


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        ("DELETE FROM redrive.letters", "redrive.letters"),
        ('UPDATE "redrive"."Letters" SET a = 1', "redrive.letters"),
        ("INSERT INTO shop.redrive.letters VALUES (1)", "redrive.letters"),
        ("SELECT 1; DELETE FROM redrive.letters", "redrive.letters"),
        ("DROP SCHEMA redrive", "redrive"),
        ("ALTER SCHEMA redrive RENAME TO mine", "redrive"),
        ("COPY redrive.letters FROM STDIN", "redrive.letters"),
        ("COPY redrive.letters TO STDOUT", ""),
        ("DO $x$ BEGIN TRUNCATE redrive.letters; END $x$", "redrive.letters"),
        ("DO $x$ BEGIN PERFORM 1 FROM redrive.letters; END $x$", ""),
        ("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS $$DELETE FROM redrive.letters$$", "redrive.letters"),
        ("CREATE VIEW v AS SELECT * FROM redrive.letters", ""),
        ("CREATE TABLE redrive.mine (n int)", "redrive.mine"),
        ("CREATE TABLE mine (n int REFERENCES redrive.logs)", ""),
        ("SET search_path = public, redrive", "redrive"),
        ("INSERT INTO redrive_mine VALUES (1)", ""),
        ("INSERT INTO mine (redrive) VALUES (1)", ""),
        ("SELECT redrive.id FROM mine redrive", ""),
        ("UPDATE mine SET a = 'UPDATE redrive.letters'", ""),
        ("UPDATE mine SET a = 1 -- redrive.letters", ""),
        ("TABLE redrive.letters", ""),
    ],
)
def test_statement_that_writes_to_own_tables_is_noticed(sql: str, table: str) -> None:
    assert translate(sql, named=True).touched == table


@given(
    st.sampled_from(["", "DO ", "CREATE TABLE x AS SELECT $1 ", "DROP "]),
    st.text("redriv.\"'$;,()-/* 1\nDELTFOM", max_size=60),
)
def test_any_text_can_be_looked_at(verb: str, text: str) -> None:
    table = translate(f"{verb}{text} redrive {text}", named=True).touched
    assert table == "" or table.startswith("redrive")


@pytest.mark.parametrize("many", [False, True])
def test_copy_and_executemany_are_looked_at(app: App, harness: Harness, many: bool) -> None:
    @app.projection(app.log("orders"), tables={"seen": "id TEXT"}, retry=no_retry)
    def project(event, tx):
        if many:
            tx.connection.cursor().executemany("UPDATE redrive.progress SET applied = %s", [(1,)])
        with tx.connection.cursor().copy("COPY redrive.logs (name) FROM STDIN") as copy:
            copy.write_row(["mine"])

    harness.append("orders", "order.placed")
    harness.run_until_idle()
    [letter] = harness.letters()
    assert "belongs to redrive" in (letter.error_message or "")
