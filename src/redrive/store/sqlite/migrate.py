"""The storage format of the file: created or checked when the store is opened, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from redrive.errors import UsageError
from redrive.failpoints import hit

if TYPE_CHECKING:
    from redrive.store.sqlite.store import SqliteStore

STEPS = ("schema.sql", "format_2.sql", "format_3.sql", "format_4.sql")  # what makes each format of the one before it
FORMAT = len(STEPS)  # what this version writes
COMPATIBLE_FROM = 4  # the oldest version that can work on files this version has written


def migrate(store: SqliteStore) -> None:
    """Bring the file to our format, or say why it cannot be used."""
    if _format(store) == FORMAT:
        return
    with store.transaction() as tx:
        found = _format(store)
        if found < FORMAT:  # another process may have been faster: asked again under the lock
            for file in STEPS[found:]:
                for statement in _statements(Path(__file__).with_name(file).read_text("utf-8")):
                    tx.connection.execute(statement)
            hit("migrate.before_commit")
            tx.books.set("format", FORMAT)
            tx.books.set("compatible_from", COMPATIBLE_FROM)
            if found == 0:
                tx.books.set("syncs", 0)
        elif int(tx.books.get("compatible_from")) > FORMAT:
            raise UsageError(
                f"{store.path} has storage format {found}, this redrive knows up to {FORMAT}; upgrade redrive"
            )


class FileMigration:
    """A file is brought to our format whenever it is opened, so there is nothing left to do by hand."""

    newest = FORMAT

    def __init__(self, store: SqliteStore) -> None:
        self.present = _format(store)

    def check(self) -> None:
        """It was checked when it was opened."""

    def sql(self) -> str:
        """Nothing."""
        return ""

    def run(self) -> Iterator[int]:
        """Nothing."""
        return iter(())


def _format(store: SqliteStore) -> int:
    connection = store._full.connection
    present = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'redrive_meta'").fetchone()
    if present is None:
        return 0
    row = connection.execute("SELECT value FROM redrive_meta WHERE name = 'format'").fetchone()
    return int(row[0]) if row else 0


def _statements(script: str) -> list[str]:
    """Split a script; executescript would commit in between. Triggers contain semicolons, so ask SQLite."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements
