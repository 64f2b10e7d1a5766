"""What happened to letters, for those who follow it: the journal that triggers write, and what is known of each."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from redrive.store.sql import Sql


class JournalRow(NamedTuple):
    """One change of a letter: `state`, `rev` and `at` as they were, the rest as it is now."""

    seq: int
    letter: int
    rev: int
    state: str
    at: float
    born: bool
    subscription: str
    source: str
    position: int
    lane: str | None
    reason: str
    attempts: int
    first_failed_at: float | None
    last_failed_at: float | None
    error_type: str
    error_message: str
    fingerprint: str
    resolved_by: str | None
    worker: str | None
    id: str | None  # of the event; it and what follows are None when the event was pruned
    type: str
    key: str | None
    schema: int
    time_us: int
    headers_raw: bytes | None
    data_raw: bytes
    edited_raw: bytes | None


def following(sql: Sql, after: int, limit: int) -> list[JournalRow]:
    """Changes above one, in order. On a server, some below the last may still be under way: see `horizon`."""
    return [JournalRow(*row) for row in sql.all("journal_after", {"after": after, "limit": limit})]


def horizon(sql: Sql) -> tuple[int, int]:
    """(transactions below this number have ended, those from this number on have not begun), in this snapshot."""
    row = sql.one("journal_horizon")
    assert row is not None
    return int(row[0]), int(row[1])


def lag(sql: Sql, after: int, limit: int) -> tuple[int, float | None]:
    """How many changes lie above one, at most so many, and when the first of them was."""
    row = sql.one("journal_lag", {"after": after, "limit": limit})
    assert row is not None
    return int(row[0]), row[1]


def slowest(sql: Sql, but: Collection[str] = ()) -> tuple[str, int] | None:
    """The mirror that is furthest behind, of all but these, and up to which number it has everything."""
    found = [(name, int(position or 0)) for name, position in sql.all("mirrored") if name not in but]
    return min(found, key=lambda one: one[1]) if found else None


def behind(sql: Sql, letters: Sequence[int], but: Collection[str] = ()) -> set[int]:
    """Those of these letters of which a mirror, other than these, lacks something."""
    mirror = slowest(sql, but)
    if mirror is None or not letters:
        return set()
    return {letter for (letter,) in sql.all("journal_behind", {"after": mirror[1], "ids": json.dumps([*letters])})}


def lacking(sql: Sql, subscription: int) -> str | None:
    """A mirror that lacks an entry about a letter of this subscription."""
    mirror = slowest(sql)
    if mirror is None or sql.one("journal_first_of", {"after": mirror[1], "subscription": subscription}) is None:
        return None
    return mirror[0]
