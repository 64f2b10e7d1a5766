"""Events that are read in one step: SQLite makes one text of them, during which other threads have Python's lock.

Row after row, each step would give the lock up and has to win it back from whoever runs meanwhile.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from redrive.codec import NOT_JSON
from redrive.event import Event
from redrive.store.log import Logs, events_after
from redrive.store.sql import Sql
from redrive.types import EventTypes

# A row in JSON: with how many bytes of data it has, which stand beside, one after the other.
_Packed = tuple[int, str, str, str | None, int | None, int, int, str | None, int]
_unpacked = msgspec.json.Decoder(list[_Packed]).decode


def packed_after(logs: Logs, sql: Sql, log: int, position: int, limit: int, types: EventTypes) -> list[Event[Any]]:
    """The next events above a position, in order: what `events_after` finds, or the first of them, or none."""
    try:
        if log in logs.dense:
            row = sql.one("events_packed_near", (log, position, position + 2 * limit, limit))
        else:
            row = sql.one("events_packed", (log, position, limit))
    except sqlite3.DataError:  # too much for one text
        return []
    assert row is not None
    packed, data, at = row[0], row[1] or b"", 0
    try:
        events: list[Event[Any]] = [
            Event(a, b, c, d, e, f, g, None if h is None else h.encode(), data[at : (at := at + size)], types)
            for a, b, c, d, e, f, g, h, size in _unpacked(packed)
        ]
    except NOT_JSON:  # headers that are no text cannot be packed
        return events_after(logs, log, position, limit, types)
    return events if at == len(data) else events_after(logs, log, position, limit, types)
