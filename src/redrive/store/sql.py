"""Named SQL: statements live in a backend's `queries.sql`, code refers to them by name.

The facets beside this file are written once against `Sql`; a backend supplies the
connection and a `queries.sql` with the same names. Nothing here builds SQL from strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

Params = Mapping[str, Any] | Sequence[Any]
Row = tuple[Any, ...]


class Cursor(Protocol):
    """The part of a DB-API cursor that the facets use."""

    @property
    def rowcount(self) -> int: ...
    @property
    def lastrowid(self) -> int | None: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """The part of a DB-API connection that the facets use."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any: ...
    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any: ...


def load_queries(path: Path) -> dict[str, str]:
    """Read `-- name: x` blocks; comments inside a block stay with the statement's text out."""
    queries: dict[str, str] = {}
    for block in re.split(r"^-- name: *", path.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        name, _, body = block.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        queries[name.strip()] = "\n".join(lines).strip()
    return queries


class Sql:
    """Run named statements on one connection."""

    __slots__ = ("connection", "queries")

    def __init__(self, connection: Connection, queries: Mapping[str, str]) -> None:
        self.connection = connection
        self.queries = queries

    def one(self, name: str, params: Params = ()) -> Row | None:
        """The only row, or None."""
        rows = self.connection.execute(self.queries[name], params).fetchall()
        return rows[0] if rows else None

    def value(self, name: str, params: Params = ()) -> Any:
        """The first column of the only row, or None."""
        row = self.one(name, params)
        return None if row is None else row[0]

    def all(self, name: str, params: Params = ()) -> list[Row]:
        """All rows."""
        rows: list[Row] = self.connection.execute(self.queries[name], params).fetchall()
        return rows

    def run(self, name: str, params: Params = ()) -> int:
        """Execute and say how many rows changed; the caller checks the number."""
        count: int = self.connection.execute(self.queries[name], params).rowcount
        return count

    def add(self, name: str, params: Params) -> int:
        """Insert one row and return its key."""
        key: int = self.connection.execute(self.queries[name], params).lastrowid
        return key

    def many(self, name: str, rows: Iterable[Params]) -> int:
        """Execute once per row; how many rows changed in all."""
        count: int = self.connection.executemany(self.queries[name], rows).rowcount
        return count
