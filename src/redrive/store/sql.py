"""Named SQL: statements live in `queries.sql`, code refers to them by name.

The facets beside this file are written once against `Sql`; a backend supplies the
connection, and a `queries.sql` of its own for what it must be told in other words. Nothing here builds SQL from
strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

Params = Mapping[str, Any] | Sequence[Any]
Row = tuple[Any, ...]

INSERT_MAX = 64  # rows per statement: each is cheaper than the one before, here no longer by much
_NUMBERED, _UNNUMBERED = re.compile(r"\?(\d+)"), re.compile(r"\?(?!\d)")
BOOKS = 0  # claimed like a log by who writes what depends on the last row: the audit's chain, the list of subscriptions


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
    for block in f"\n{path.read_text('utf-8')}".split("\n-- name: ")[1:]:  # no expression: every start waits for it
        name, _, body = block.partition("\n")
        if "--" in body:
            body = "\n".join([line for line in body.splitlines() if not line.startswith("--")])
        queries[name.strip()] = body.strip()
    return queries


@cache
def _widened(insert: str, rows: int) -> str:
    """The statement for one row, for several: `VALUES (…), (…), (…)`.

    Numbered parameters are counted on; beside others, which SQLite numbers itself, they are the same in all rows.
    """
    row = insert[insert.rindex("VALUES (") + len("VALUES ") :]
    if _UNNUMBERED.search(row):
        return ", ".join((insert, *([row] * (rows - 1))))
    width = max((int(number) for number in _NUMBERED.findall(row)), default=0)

    def numbered_from(first: int) -> str:
        return _NUMBERED.sub(lambda found: f"?{int(found[1]) + first}", row)

    return ", ".join((insert, *(numbered_from(n * width) for n in range(1, rows))))


def queries_of(store: Path) -> dict[str, str]:
    """The statements of the store in this folder: those that are common to all, and its own."""
    return load_queries(Path(__file__).with_name("queries.sql")) | load_queries(store / "queries.sql")


def _in_a_row(rows: Sequence[Row]) -> list[Any]:
    """All values of these rows, to be bound. Data comes last, as bytes: sqlite3 looks for somebody who adapts them, and
    that takes four times as long as a copy of a kind that it knows.
    """
    values, width = [*chain.from_iterable(rows)], len(rows[0])
    values[width - 1 :: width] = [bytearray(one) if type(one) is bytes else one for one in values[width - 1 :: width]]
    return values


class Put(NamedTuple):
    """How many rows were inserted, and the key of the last one, if all were and the store tells."""

    size: int
    last: int | None


class Sql:
    """Run named statements on one connection."""

    __slots__ = ("connection", "queries")

    is_far = False  # a statement costs a round trip, whatever it does

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

    def each(self, name: str, params: Params = ()) -> Iterable[Row]:
        """All rows, one after the other: whoever makes something else of each need not keep them all.

        Who asks for something else before it looks at them does not wait twice. Inside of the transaction only.
        """
        rows: Iterable[Row] = self.connection.execute(self.queries[name], params)
        return rows

    def run(self, name: str, params: Params = (), otherwise: BaseException | None = None) -> int:
        """Execute and say how many rows changed; the caller checks the number.

        `otherwise`: one row must. If it is not so this is raised, here or by what waits next, the commit at last.
        """
        count: int = self.connection.execute(self.queries[name], params).rowcount
        if otherwise is not None and count != 1:
            raise otherwise
        return count

    def add(self, name: str, params: Params) -> int:
        """Insert one row and return its key."""
        key: int = self.connection.execute(self.queries[name], params).lastrowid
        return key

    def add_all(self, name: str, rows: Sequence[Row]) -> list[int]:
        """Insert rows in order, by a statement that ends with the VALUES of one, and return their keys."""
        insert, keys, done = self.queries[name], list[int](), 0
        while done < len(rows):
            # The largest power of two that fits: seven statements in all, which the connection keeps prepared.
            count = min(1 << (len(rows) - done).bit_length() - 1, INSERT_MAX)
            values = _in_a_row(rows[done : done + count])
            last = self.connection.execute(_widened(insert, count), values).lastrowid
            # One statement numbers its rows one after the other, and nobody else writes meanwhile.
            keys += range(last - count + 1, last + 1)
            done += count
        return keys

    def put_all(self, name: str, rows: Sequence[Row], shared: Row = ()) -> Put:
        """Insert rows in order, by such a statement that leaves out what is there already.

        `shared`: values of numbered parameters that are the same for all rows; each is bound once.
        """
        insert, count, done, last = self.queries[name], 0, 0, None
        while done < len(rows):
            width = min(1 << (len(rows) - done).bit_length() - 1, INSERT_MAX)
            values = [*shared, *_in_a_row(rows[done : done + width])]
            cursor = self.connection.execute(_widened(insert, width), values)
            count, last = count + cursor.rowcount, cursor.lastrowid
            done += width
        return Put(count, last if count == done else None)

    def insert(self, name: str, rows: Sequence[Row]) -> None:
        """Insert rows in order, of which nobody wants to know the keys."""
        self.many(name, rows)

    def claim(self, logs: Iterable[int]) -> None:
        """Nobody else appends to these logs until the transaction ends; see BOOKS for what is no log.

        Before anything is read that the append depends on. One writer at a time needs no claim.
        """

    def many(self, name: str, rows: Iterable[Params]) -> int:
        """Execute once per row; how many rows changed in all."""
        count: int = self.connection.executemany(self.queries[name], rows).rowcount
        return count
