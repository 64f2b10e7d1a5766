"""Emissions: events whose ids are made of what caused them, so that one may be stored already, and is left as it is.

A statement for each row gives up Python's lock and has to win it back, so they are inserted many at a time. Such a
statement cannot see the versions that it gives out itself: they are counted here, and a row left out would leave a
gap. So if one was, all of them are taken back, and made one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.event import NewEvent
from redrive.store.sql import Row, Sql
from redrive.store.versions import Versions

EMIT_BLOCK = 16  # rows of the query pg_event_emit_block; more in one statement gain nothing


def emit_near(sql: Sql, log: int, events: Sequence[NewEvent], known: Versions) -> int:
    """Where a statement costs next to nothing; the last position of the log."""
    last: int = sql.value("log_last", (log,))
    keys = {event.key for event in events if event.key is not None}
    rows = _counted(events, known.of(sql, log, keys, last))
    if {row[6] for row in rows} == {None}:  # no headers, as nearly always, and each value less makes it faster
        rows = [(*row[:6], row[7]) for row in rows]
        count = sql.put_all("emission_insert_plain", rows, (log,)).size
    else:
        count = sql.put_all("emission_insert", rows, (log,)).size
    if count != len(rows):
        sql.run("emitted_above", (log, last))
        versions = known.of(sql, log, keys, last)
        for event in events:
            before = versions.get(event.key)  # type: ignore[arg-type]
            if not sql.put_all("emission_insert", _counted([event], versions), (log,)).size and before is not None:
                versions[event.key] = before  # type: ignore[index]
    upto: int = sql.value("log_last", (log,))
    known.counted(upto, ())
    return upto


def _counted(events: Sequence[NewEvent], versions: dict[str, int]) -> list[Row]:
    """What is inserted of each but for its log, with the next version of its key."""
    rows: list[Row] = []
    for id, kind, key, schema, time_us, headers, data, _, _, _, _ in events:
        version = None
        if key is not None:
            version = versions[key] = versions[key] + 1
        rows.append((id, kind, key, version, schema, time_us, headers, data))
    return rows


def emit_far(sql: Sql, log: int, events: Sequence[NewEvent], known: Versions) -> int:
    """The same where each statement is a round trip: a few rows count their versions themselves."""
    whole = len(events) - len(events) % EMIT_BLOCK
    if whole and not _emit_blocks(sql, log, events[:whole], known):
        whole = 0
    rows = [(log, e.id, e.type, e.key, e.schema, e.time_us, e.headers_raw, e.data_raw) for e in events[whole:]]
    sql.many("pg_event_emit", rows)
    last: int = sql.value("log_last", (log,))
    if whole:
        known.counted(last, [event.key for event in events[whole:]])
    return last


def _emit_blocks(sql: Sql, log: int, events: Sequence[NewEvent], known: Versions) -> bool:
    """Append many in few steps; False, and nothing of it stays, if one of them is stored already."""
    last: int = sql.value("log_last", (log,))
    rows = _counted(events, known.of(sql, log, {event.key for event in events if event.key is not None}, last))
    blocks: list[list[Any]] = []
    for begin in range(0, len(rows), EMIT_BLOCK):
        block: list[Any] = [log]
        for row in rows[begin : begin + EMIT_BLOCK]:
            block += row
        blocks.append(block)
    if sql.many("pg_event_emit_block", blocks) == len(events):
        return True
    sql.run("emitted_above", (log, last))
    return False
