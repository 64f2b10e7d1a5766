"""Events that are read in one step: SQLite makes one text of them, during which other threads have Python's lock.

Row after row, each step would give the lock up and has to win it back from whoever runs meanwhile.
"""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple, cast

import msgspec

from redrive.codec import NOT_JSON
from redrive.event import Event
from redrive.store.log import some_after
from redrive.store.port import StoreTx
from redrive.store.sql import Sql
from redrive.types import EventTypes

BYTES_MAX = 16_000_000  # of data that is read at once, about: it is in memory twice
TEXT_MAX = 2 * BYTES_MAX  # of a text or piece: where events are suddenly larger, they are read one by one
UNKNOWN_MAX = 500  # events that are read at once, as long as nobody knows how large they are
SAMPLE = 64  # events whose sizes are looked at

# A row in JSON: with how many bytes of data it has, which stand beside, one after the other.
_Packed = tuple[int, str, str, str | None, int | None, int, int, str | None, int]
_unpacked = msgspec.json.Decoder(list[_Packed]).decode


class Packed(NamedTuple):
    """Events as they were read; taken apart by `unpacked`."""

    rows: Any  # one text
    data: Any  # one piece
    size: int  # how many events
    last: int | None  # the highest position


def packed_after(sql: Sql, log: int, position: int, limit: int, span: int | None = None) -> Packed | None:
    """The next events above a position, in order, or the first of them; None if it is too much for one text.

    `span`: what lies among so many positions, however many that are. Where a log fills most of the table that takes
    half as long as by the index, and to count them.
    """
    connection = cast("sqlite3.Connection", sql.connection)
    length_max = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, TEXT_MAX)
    try:
        if span is None:
            row = sql.one("events_packed", (log, position, limit))
        else:
            row = sql.one("events_packed_near", (log, position, position + span))
    except sqlite3.DataError:
        return None
    finally:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, length_max)
    assert row is not None
    rows, data, size, last = row
    return Packed(rows, data or b"", size, last)


def next_events(tx: StoreTx, log: int, position: int, limit: int, types: EventTypes) -> tuple[list[Event[Any]], bool]:
    """The next events above a position, in order, and whether there are probably more behind these.

    Fewer, if those before them were large.
    """
    logs = tx.logs
    limit = min(limit, logs.reach.get(log, UNKNOWN_MAX))
    goes_on, events = False, list[Event[Any]]()
    if log in logs.dense and not tx.sql.is_far:  # row after row takes a third longer
        events = unpacked(packed_after(tx.sql, log, position, limit, span=limit), types)
        goes_on = 2 * len(events) >= limit
    if not goes_on:
        events, goes_on = some_after(logs, log, position, limit, types, BYTES_MAX)
    if goes_on:
        logs.reach[log] = reach_of(events)
    return events, goes_on


def reach_of(events: list[Event[Any]]) -> int:
    """How many such events are not too much to have in memory at once."""
    sample = [len(event.data_raw) for event in events[:: 1 + len(events) // SAMPLE]]
    return max(1, BYTES_MAX * len(sample) // max(1, sum(sample)))


def unpacked(packed: Packed | None, types: EventTypes) -> list[Event[Any]]:
    """What was packed, or the first of it; nothing of what has to be read row by row."""
    if packed is None:
        return []
    data, at = packed.data, 0
    try:
        events: list[Event[Any]] = [
            Event(a, b, c, d, e, f, g, None if h is None else h.encode(), data[at : (at := at + size)], types)
            for a, b, c, d, e, f, g, h, size in _unpacked(packed.rows)
        ]
    except NOT_JSON:  # headers that are no text cannot be packed
        return []
    if events and events[0].position > events[-1].position:  # somebody asked SQLite for it the other way round
        return []
    return events if at == len(data) else []  # somebody else stored a text, whose size is not counted in bytes
