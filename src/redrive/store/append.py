"""Appending: versions and ids are checked, rows are written and numbered, a whole group at a time.

Every statement is a chance to lose the interpreter's lock to a busy event loop, for up to five milliseconds; so a
group of any size takes one statement to learn the versions that are not remembered and one for up to 64 rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from redrive.codec import from_json, is_same_json, to_json
from redrive.errors import IdConflict, UsageError, VersionConflict
from redrive.event import WITHDRAWN, NewEvent
from redrive.store.scheduled import found, taken_back, waiting_row
from redrive.store.spans import Spans
from redrive.store.sql import Row, Sql
from redrive.store.versions import Versions

HEADERS = 7  # where a row that is to be inserted has them; after them comes the data
Batch = tuple[str, Sequence[NewEvent]]  # a log's name, and what is appended to it


class Names(Protocol):
    """Who knows the number of a log, and is told how far the logs have grown."""

    @property
    def spans(self) -> Spans: ...
    def id_of(self, name: str, *, create: bool = False) -> int: ...
    @property
    def versions(self) -> Mapping[int, Versions]: ...


def append_all(names: Names, sql: Sql, batches: Sequence[Batch]) -> tuple[list[Row], bool]:
    """Store events in order and return their rows, and whether one of them was there already.

    Checks each expected version and id. After an error some events may be written and others not,
    so a caller that goes on needs a savepoint around the call.
    """
    logs = {log_name: names.id_of(log_name, create=True) for log_name, _ in batches}
    sql.claim(logs.values())
    if sql.is_far and _is_one(batches):
        return [_append_one(sql, logs[batches[0][0]], batches[0][1][0])], False
    versions, remembered = _last_versions(names, sql, logs, batches)
    rows: list[Row] = []
    waiting: list[Row] = []  # the next to be inserted: rows whose position is not known yet
    later: list[Row] = []  # those to be scheduled
    given: set[tuple[int, str]] = set()  # ids among them that a caller chose, and may have chosen twice
    counted: set[int] = set()  # logs all of whose events have versions, if somebody expects one
    repeated = False
    for log_name, events in batches:
        log, last = logs[log_name], versions[log_name]
        for event in events:
            id, kind, key, schema, time_us, headers, data, expected, may_repeat, _, due = event
            if due is not None:
                _insert(sql, waiting, rows)
                if due is WITHDRAWN:
                    _schedule(sql, later)
                    rows.append(taken_back(sql, log, log_name, event))
                    continue
            if may_repeat:
                if (log, id) in given:  # the first must be there to be found
                    _insert(sql, waiting, rows)
                    _schedule(sql, later)
                stored = _repeated(sql, log, log_name, event)
                if stored is not None:
                    _insert(sql, waiting, rows)
                    rows.append(stored)
                    repeated = True
                    continue
                given.add((log, id))
            if due is not None:
                later.append(waiting_row(log, event))
                rows.append(found((None, id, kind, key, None, schema, due.time_us, headers, data, due.at)))
                continue
            version = None
            if key is not None:
                actual = last[key] or 0
                if expected is not None:
                    _expect(sql, log, log_name, key, expected, actual, counted)
                last[key] = version = actual + 1
            elif expected is not None:
                raise UsageError("expected_version needs a key: versions count within a key")
            waiting.append((log, id, kind, key, version, schema, time_us, headers, data))
    _insert(sql, waiting, rows)
    _schedule(sql, later)
    if highest := _highest(rows):
        names.spans.passed(highest)
    for log in remembered:
        is_last = len(logs) == 1 and rows and rows[-1][0] is not None
        names.versions[log].counted(rows[-1][0] if is_last else sql.value("log_last", (log,)), ())
    return rows, repeated


def _expect(sql: Sql, log: int, log_name: str, key: str, expected: int, actual: int, counted: set[int]) -> None:
    """Refuse another version than the one that is expected, and where what landed from a broker has none."""
    if log not in counted:
        if sql.value("log_landed_from", (log,)) is not None:
            raise UsageError(f"log {log_name!r}: what lands from a broker has no versions: leave out expected_version=")
        counted.add(log)
    if expected != actual:
        raise VersionConflict(log_name, key, expected, actual)


def _is_one(batches: Sequence[Batch]) -> bool:
    """Is it a single event of which nothing has to be checked?"""
    if len(batches) != 1 or len(batches[0][1]) != 1:
        return False
    event = batches[0][1][0]
    return event.expected_version is None and event.due is None and not event.may_repeat


def _append_one(sql: Sql, log: int, event: NewEvent) -> Row:
    """Its version is counted where it is stored: to ask for it first would take as long again."""
    id, kind, key, schema, time_us, headers, data, *_ = event
    row = sql.one("pg_event_append", (log, id, kind, key, schema, time_us, headers, data))
    assert row is not None
    return (row[0], id, kind, key, row[1], schema, time_us, headers, data)


def _last_versions(
    names: Names, sql: Sql, logs: dict[str, int], batches: Sequence[Batch]
) -> tuple[dict[str, dict[str, Any]], list[int]]:
    """By log and key, what the log holds now, None or 0 for a key without events; and the logs that remember it."""
    keys: dict[str, set[str]] = {log_name: set() for log_name in logs}
    for log_name, events in batches:
        keys[log_name].update([event.key for event in events if event.key is not None])
    found: dict[str, dict[str, Any]] = {}
    remembered: list[int] = []
    for log_name, wanted in keys.items():
        log = logs[log_name]
        if not sql.is_far and wanted:
            found[log_name] = names.versions[log].of(sql, log, wanted, sql.value("log_last", (log,)))
            remembered.append(log)
        elif len(wanted) <= 1:
            found[log_name] = {key: sql.value("pg_key_version", (log, key)) for key in wanted}
        else:  # another round trip, to learn that nobody else has appended, takes longer than to ask
            found[log_name] = from_json(sql.value("key_versions", (log, to_json([*wanted]).decode())))
    return found, remembered


def _insert(sql: Sql, waiting: list[Row], rows: list[Row]) -> None:
    """Insert what waits, and move it to `rows` with the positions it got."""
    if waiting:
        if {row[HEADERS] for row in waiting} != {None}:
            positions = sql.add_all("event_insert", waiting)
        else:  # as nearly always, and each value less makes it faster
            positions = sql.add_all("event_insert_plain", [(*row[:HEADERS], row[-1]) for row in waiting])
        rows.extend([(position, *row[1:]) for position, row in zip(positions, waiting, strict=True)])
        waiting.clear()


def _highest(rows: list[Row]) -> int:
    highest: int | None = rows[-1][0] if rows else 0
    return max(row[0] or 0 for row in rows) if highest is None else highest  # None: that one only waits


def _schedule(sql: Sql, later: list[Row]) -> None:
    if later:
        sql.many("scheduled_add", later)
        later.clear()


def _repeated(sql: Sql, log: int, log_name: str, event: NewEvent) -> Row | None:
    """An id seen before: the same content is the same event, other content is an error."""
    plain = event.derived and event.due is None  # an emission that waits is no reason not to append it now
    stored = sql.one("event_by_id" if plain else "event_or_scheduled", (log, event.id))
    if stored is None:
        return None
    stored = found(stored)
    if event.derived:
        return stored
    same = (stored[2], stored[3], stored[5]) == (event.type, event.key, event.schema)
    if not (same and is_same_json(bytes(stored[8]), event.data_raw)):
        has = "has" if stored[0] is not None else "has scheduled"
        raise IdConflict(
            f"log {log_name!r} {has} an event {event.id!r} with other content; an id names one fact: use a new id"
        )
    return stored
