"""What a store consists of, table by table, so that another can be filled with it; a page of rows is one transaction.

The order matters: a trigger must find what it counts, or must not find it. What is derived (counts, lanes, spans, the
sieve) is made anew from the rows. Until all of it is there, the store is marked, and nobody but a copy may use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from redrive.errors import EventError, UsageError
from redrive.policy.letters import State
from redrive.store.port import StoreTx
from redrive.store.progress import not_copied
from redrive.store.sql import BOOKS, Row

PAGE = 500  # rows in one transaction; as many as an export reads at a time
COPYING, COPIED = "copying", "copied"  # names of values: how far an unfinished copy is, what a finished one was made of

_NUMBER: tuple[Any, ...] = (-1,)
_TWO_NUMBERS: tuple[Any, ...] = (-1, -1)
_TEXT: tuple[Any, ...] = ("",)


class Table(Struct, frozen=True):
    """A table: the statements that read and write a page of it, and a key that lies below all of its rows."""

    name: str
    copy: str
    paste: str
    below: tuple[Any, ...] = _NUMBER  # the key's columns come first in a row


TABLES = (
    Table("logs", "copy_logs", "paste_logs"),
    Table("events", "copy_events", "paste_events"),
    Table("subscriptions", "copy_subscriptions", "paste_subscriptions"),
    Table("progress", "copy_progress", "paste_progress"),
    Table("done_chunks", "copy_done_chunks", "paste_done_chunks", _TWO_NUMBERS),
    Table("filters", "copy_filters", "paste_filters", _TWO_NUMBERS),
    Table("ranges", "copy_ranges", "paste_ranges", _TWO_NUMBERS),
    Table("tables", "copy_tables", "paste_tables", _TEXT),
    Table("letters", "copy_letters", "paste_letters"),
    Table("attempts", "copy_attempts", "paste_attempts"),
    Table("edits", "copy_edits", "paste_edits", (-1, -1, -1)),
    Table("journal", "copy_journal", "paste_journal"),
    Table("inflight", "copy_inflight", "paste_inflight", _TWO_NUMBERS),
    Table("state", "copy_state", "paste_state", (-1, "")),
    Table("operation_letters", "copy_operation_letters", "paste_operation_letters", _TWO_NUMBERS),
    Table("operations", "copy_operations", "paste_operations"),
    Table("notes", "copy_notes", "paste_notes"),
    Table("holds", "copy_holds", "paste_holds"),
    Table("controls", "copy_controls", "paste_controls"),
    Table("scheduled", "copy_scheduled", "paste_scheduled"),
    Table("landed", "copy_landed", "paste_landed", _TWO_NUMBERS),
    Table("audit", "copy_audit", "paste_audit"),
    Table("meta", "copy_meta", "meta_set", _TEXT),
)
_PLACES = {table.name: place for place, table in enumerate(TABLES)}
_LETTER_STATE, _LETTER_ERROR = 7, slice(18, 20)  # columns of copy_letters


class Cursor(Struct, frozen=True):
    """How far a copy is: which table, above which key; no table when all are there. It lies in the target."""

    mark: list[Any]  # of the source, when the copy began
    table: str | None
    after: list[Any]
    tables_moved: bool  # somebody else moves the tables that projections have filled


def mark_of(tx: StoreTx) -> list[Any]:
    """What a store is recognised by: it is another as soon as anybody has done anything there."""
    return list(tx.sql.one("copy_mark") or ())


def counts_of(tx: StoreTx) -> dict[str, int]:
    """Rows by table."""
    return dict(tx.sql.all("copy_counts"))


def cursor_of(tx: StoreTx) -> Cursor | None:
    """How far the copy into this store is; None: nobody copies into it."""
    text = tx.books.get(COPYING)
    return None if text is None else Cursor(**json.loads(text))


def check_whole(tx: StoreTx, where: str) -> None:
    """Refuse a store that is filled by a copy which has not come to its end."""
    if tx.books.get(COPYING) is not None:
        raise UsageError(f"a copy into {where} is not finished: run the same `redrive copy` again, it goes on")


def begin(tx: StoreTx, source: StoreTx, *, tables_moved: bool) -> None:
    """Mark an empty store as one that is being filled. Numbers go on above those that the source has given."""
    for name, highest in source.sql.all("copy_numbers"):
        tx.sql.run("paste_number", {"name": name, "highest": highest})
    cursor = Cursor(mark_of(source), TABLES[0].name, list(TABLES[0].below), tables_moved)
    _save(tx, cursor)


def copy_page(tx: StoreTx, source: StoreTx) -> tuple[Cursor, int]:
    """Copy the next rows; how far it is now, and how many rows they were. Two who do this at a time take turns."""
    tx.sql.claim((BOOKS,))
    cursor = cursor_of(tx)
    if cursor is None:
        raise UsageError("somebody else has finished this copy meanwhile")
    if cursor.table is None:
        return cursor, 0
    place = _PLACES[cursor.table]
    table = TABLES[place]
    rows = source.sql.all(table.copy, (*cursor.after, PAGE))
    if rows:
        try:
            _paste(tx, table, rows, cursor)
        except EventError as error:
            raise UsageError(f"table {table.name}, above {cursor.after}: {error}") from error
    if len(rows) == PAGE:
        following = Cursor(cursor.mark, table.name, list(rows[-1][: len(table.below)]), cursor.tables_moved)
    elif place + 1 < len(TABLES):
        next_table = TABLES[place + 1]
        following = Cursor(cursor.mark, next_table.name, list(next_table.below), cursor.tables_moved)
    else:
        following = Cursor(cursor.mark, None, [], cursor.tables_moved)
    _save(tx, following)
    return following, len(rows)


def end(tx: StoreTx, cursor: Cursor) -> None:
    """It is whole, and may be used."""
    tx.books.set(COPIED, json.dumps(cursor.mark))
    tx.books.drop(COPYING)


def is_copy_of(tx: StoreTx, mark: Sequence[Any]) -> bool:
    """Was this store made as a copy of the one with this mark?"""
    text = tx.books.get(COPIED)
    return text is not None and json.loads(text) == list(mark)


def _save(tx: StoreTx, cursor: Cursor) -> None:
    fields = {"mark": cursor.mark, "table": cursor.table, "after": cursor.after, "tables_moved": cursor.tables_moved}
    tx.books.set(COPYING, json.dumps(fields))


def _paste(tx: StoreTx, table: Table, rows: Sequence[Row], cursor: Cursor) -> None:
    values: Sequence[Row | Mapping[str, Any]] = rows
    if table.name == "tables" and not cursor.tables_moved:
        values = [(name, owner, columns and not_copied(columns)) for name, owner, columns in rows]
    elif table.name == "meta":
        values = [{"name": name, "value": value} for name, value in rows]
    tx.sql.many(table.paste, values)
    if table.name == "events":
        tx.logs.spans.passed(rows[-1][0])
    elif table.name == "letters":
        tx.sql.run("paste_no_journal")  # the letters' own comes later
        tx.letters.sieve.add((row[0], *row[_LETTER_ERROR]) for row in rows if row[_LETTER_STATE] == State.DEAD)
