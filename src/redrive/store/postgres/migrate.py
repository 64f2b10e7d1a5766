"""The storage format of a database: made when there is none, checked when the store is opened, changed when asked.

One transaction per step: whoever is killed in the middle leaves the former format. A step says from which version on
redrive can work with its result, so that during a deploy the former version may run beside the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from redrive.errors import UsageError
from redrive.failpoints import hit
from redrive.store.address import shown
from redrive.store.postgres.connection import open_connection

COMMAND = "redrive migrate"
_LOCK = "SELECT pg_advisory_xact_lock(1919247465, -1)"  # no two at a time; logs have the numbers above
_PRESENT = "SELECT to_regclass('redrive.meta') IS NOT NULL"
_FOUND = "SELECT name, value::bigint FROM redrive.meta WHERE name IN ('format', 'compatible_from')"
_WRITTEN = """INSERT INTO redrive.meta VALUES ('format', '{format}'), ('compatible_from', '{compatible_from}')
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
"""


@dataclass(frozen=True, slots=True)
class Step:
    """What makes a format of the one before it."""

    format: int
    compatible_from: int  # the oldest format whose redrive can work with this one
    file: str

    @property
    def sql(self) -> str:
        """The statements, and the note that they were run."""
        text = (Path(__file__).parent / self.file).read_text("utf-8")
        return text + "\n" + _WRITTEN.format(format=self.format, compatible_from=self.compatible_from)


STEPS: Sequence[Step] = (Step(1, 1, "schema.sql"), Step(2, 2, "format_2.sql"), Step(3, 3, "format_3.sql"))


@dataclass(frozen=True, slots=True)
class Format:
    """What a database holds; 0: no store."""

    number: int
    compatible_from: int


def found(connection: psycopg.Connection[Any]) -> Format:
    """The format of a database. Nothing is changed by asking."""
    with _allowed(connection):
        row = connection.execute(_PRESENT).fetchone()
        if row is None or not row[0]:
            return Format(0, 0)
        known = dict(connection.execute(_FOUND).fetchall())
        return Format(known.get("format", 0), known.get("compatible_from", 0))


def missing(present: Format, steps: Sequence[Step] | None = None) -> list[Step]:
    """The steps that a database lacks."""
    return [step for step in steps or STEPS if step.format > present.number]


def migrate(connection: psycopg.Connection[Any], steps: Sequence[Step] | None = None) -> Iterator[int]:
    """Take the steps that are missing, each in a transaction of its own, and say which.

    Where there was nothing, all in one: nobody else who begins may find a store of a former format.
    """
    while True:
        with _allowed(connection), connection.transaction():
            connection.execute(_LOCK)
            present = found(connection)  # another process may have been faster
            left = missing(present, steps)
            if present.number:
                left = left[:1]
            for step in left:
                connection.execute(step.sql.encode())
            hit("migrate.before_commit")
        yield from [step.format for step in left]
        if not left:
            return


def prepare(connection: psycopg.Connection[Any], where: str) -> None:
    """Make a store where there is none; refuse a format that this version cannot work with, and say what to do."""
    present, newest = found(connection), STEPS[-1].format
    if present.number == 0:
        for _ in migrate(connection):
            pass
        present = found(connection)
    _check(present, where)
    if present.number < newest:
        raise UsageError(f"{where} has storage format {present.number}, this redrive needs {newest}: run `{COMMAND}`")


class DatabaseMigration:
    """What `redrive migrate` does: whoever runs it may have more rights than those who use the store."""

    def __init__(self, connection: psycopg.Connection[Any], where: str) -> None:
        self._connection, self._where = connection, where
        self._found = found(connection)
        self.present, self.newest = self._found.number, STEPS[-1].format

    def check(self) -> None:
        """Refuse a format that this version cannot work with."""
        _check(self._found, self._where)

    def sql(self) -> str:
        """A script of the steps that are missing, each in a transaction."""
        steps = missing(self._found)
        return "\n".join(f"-- Storage format {step.format}\nBEGIN;\n{_LOCK};\n{step.sql}COMMIT;\n" for step in steps)

    def run(self) -> Iterator[int]:
        """Take them."""
        return migrate(self._connection)


@contextmanager
def migration(url: str) -> Iterator[DatabaseMigration]:
    """The format of the database at an address."""
    with closing(open_connection(url)) as connection:
        yield DatabaseMigration(connection, shown(url))


def _check(present: Format, where: str) -> None:
    newest = STEPS[-1].format
    if present.compatible_from > newest:
        raise UsageError(
            f"{where} has storage format {present.number}, this redrive knows up to {newest}; upgrade redrive"
        )


@contextmanager
def _allowed(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """What the role may not do is said with who has to do it."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise UsageError(
            f"{connection.info.user!r} may not make or read redrive's tables ({error.diag.message_primary}): run "
            f"`{COMMAND}` once with a role that may, and grant this one its rights"
        ) from error
