"""Bringing events into logs and out of them: one by hand, or whole files of CloudEvents.

What is read is checked like an append. A batch is one transaction with its audit row, so an interrupted import has
done whole batches; run again, it finds their ids and adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from redrive import cloudevents
from redrive.draft import draft
from redrive.errors import EventError, UsageError
from redrive.event import Event, NewEvent, check_log, from_row, scheduled_from
from redrive.failpoints import hit
from redrive.replay.deed import Operator
from redrive.replay.events import EventRow, Wanted, following, last_position, unknown_log
from redrive.store.port import Store, StoreTx
from redrive.types import EventTypes

PAGE = 500  # events read at a time
BATCH_EVENTS_MAX, BATCH_BYTES_MAX = 1000, 4_000_000  # in one transaction: bounds how long the write lock is held
BAD_SHOWN_MAX = 20  # bad lines that are told one by one; their number is always exact


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no event, and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of an import, so far: lines = added + present + bad."""

    lines: int = 0
    added: int = 0
    present: int = 0  # there already, with the same content
    bad: int = 0
    errors: tuple[BadLine, ...] = ()  # the first bad ones
    bytes: int = 0  # of the file, read so far
    stopped: bool = False  # at a bad line: its batch and what follows were left out


def append(
    operator: Operator, types: EventTypes, log: str, kind: str, raw: bytes, *, key: str | None = None,
    id: str | None = None, headers: Mapping[str, str] | None = None, expected_version: int | None = None,
    after: str | None = None, reason: str = "", create: bool = False,
) -> tuple[Event[Any], bool]:  # fmt: skip
    """Append one event, or schedule it, and audit it; False beside it if it was there already."""
    event = draft(
        types, operator.env, kind, msgspec.Raw(raw.strip()), key=key, id=id, headers=headers,
        expected_version=expected_version, after=after,
    )  # fmt: skip
    types.decode(event.type, event.schema, event.data_raw)  # what the program could not read is not appended
    with operator.transaction() as tx:
        _check_log(tx, log, create)
        rows, repeated = tx.logs.append(log, [event])
        is_new, action = not repeated, "append" if event.due is None else "schedule"
        if is_new:
            details: dict[str, Any] = {"log": log, "type": event.type, "bytes": len(event.data_raw)}
            details |= {"position": rows[0][0]} if event.due is None else {"due_at": event.due.at}
            operator.audit(tx, action, "", f"event {event.id}", reason, details)
        hit("operator.before_commit")
    if is_new:
        operator.tell(action, "", f"event {event.id}")
    else:
        operator.store.sync()  # the earlier copy may have been committed this moment, and not be on the disk
    return (from_row if rows[0][0] is not None else scheduled_from)(rows[0], types), is_new


def export(store: Store, wanted: Wanted, after: int = 0) -> Iterator[tuple[EventRow, bytes]]:
    """Events as lines, up to the last one there is now; pages, so that no long look keeps the WAL from being cut."""
    upto = last_position(store)
    while True:
        rows = following(store, wanted, after, PAGE, upto=upto, payload=True)
        for row in rows:
            yield row, cloudevents.encode(row, cloudevents.source_of(row.log))
        if len(rows) < PAGE:
            return
        after = rows[-1].position


def load(
    operator: Operator, log: str, lines: Iterable[bytes], *, skip_bad: bool = False, reason: str = "",
    create: bool = False, name: str = "", told: Callable[[Imported], None] = lambda so_far: None,
) -> Imported:  # fmt: skip
    """Import a file, a batch at a time. A bad line ends it, and its batch is not imported; or it is left out."""
    with operator.store.reading() as tx:
        _check_log(tx, log, create)
    so_far = Imported()
    for batch in _batches(lines):
        so_far = _load_batch(operator, log, batch, so_far, skip_bad, reason, name)
        told(so_far)
        if so_far.stopped:
            break
    if so_far.present:
        operator.store.sync()
    return so_far


def _batches(lines: Iterable[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    size = 0
    for number, line in enumerate(lines, 1):
        if batch and (len(batch) == BATCH_EVENTS_MAX or size + len(line) > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append((number, line))
        size += len(line)
    if batch:
        yield batch


def _load_batch(
    operator: Operator, log: str, batch: list[tuple[int, bytes]], so_far: Imported, skip_bad: bool, reason: str,
    name: str,
) -> Imported:  # fmt: skip
    bad: list[BadLine] = []
    events: list[tuple[int, NewEvent]] = []
    now_us = int(operator.now() * 1e6)
    for number, line in batch:
        try:
            if line.strip():
                events.append((number, _read(line, now_us)))
        except EventError as error:
            bad.append(BadLine(number, str(error)))
    added = present = 0
    if not bad or skip_bad:
        added, present, conflicts = _store(operator, log, events, skip_bad, reason, name)
        bad = sorted(bad + conflicts, key=lambda one: one.line)
    size = sum(len(line) for _, line in batch)
    return Imported(
        so_far.lines + added + present + len(bad), so_far.added + added, so_far.present + present,
        so_far.bad + len(bad), (so_far.errors + tuple(bad))[:BAD_SHOWN_MAX], so_far.bytes + size,
        stopped=bool(bad) and not skip_bad,
    )  # fmt: skip


def _read(line: bytes, now_us: int) -> NewEvent:
    if len(line) > cloudevents.LINE_BYTES_MAX:
        raise EventError(f"the line has {len(line):,} bytes; the limit is {cloudevents.LINE_BYTES_MAX:,}")
    return cloudevents.decode(line, now_us)


class _Stop(Exception):
    """A conflict, and nobody said that bad lines may be left out: the batch is rolled back."""


def _store(
    operator: Operator, log: str, events: list[tuple[int, NewEvent]], skip_bad: bool, reason: str, name: str
) -> tuple[int, int, list[BadLine]]:
    """(added, present, conflicts) of one batch, in one transaction."""
    if not events:
        return 0, 0, []
    conflicts: list[BadLine] = []
    try:
        with operator.transaction() as tx:
            last = _last(tx, log)
            positions, conflicts = _append(tx, log, events)
            if conflicts and not skip_bad:
                raise _Stop
            added = len({position for position in positions if position is not None and position > last})
            if added:
                details = {"log": log, "file": name, "added": added, "lines": [events[0][0], events[-1][0]]}
                operator.audit(tx, "import", "", f"log {log}", reason, details)
            hit("operator.before_commit")
    except _Stop:
        return 0, 0, conflicts
    hit("operator.committed")
    return added, len(positions) - added, conflicts


def _append(tx: StoreTx, log: str, events: list[tuple[int, NewEvent]]) -> tuple[list[int | None], list[BadLine]]:
    """All at once; if an id is taken by another event, one by one, to learn which."""
    tx.savepoint()
    try:
        rows, _ = tx.logs.append(log, [event for _, event in events])
    except EventError:
        tx.undo()
        tx.keep()
    else:
        tx.keep()
        return [row[0] for row in rows], []
    positions: list[int | None] = []  # None: the event is there, and waits for its time
    conflicts: list[BadLine] = []
    for number, event in events:
        tx.savepoint()
        try:
            positions.append(tx.logs.append(log, [event])[0][0][0])
        except EventError as error:
            tx.undo()
            conflicts.append(BadLine(number, str(error)))
        tx.keep()
    return positions, conflicts


def _last(tx: StoreTx, log: str) -> int:
    """The position above which everything is new, because nobody else appends from here on."""
    number = tx.logs.id_of(log, create=True)
    tx.sql.claim((number,))
    return tx.logs.last(number)


def _check_log(tx: StoreTx, log: str, create: bool) -> None:
    """A mistyped name must not make a log; one that somebody reads is known, if only by name."""
    check_log(log)
    if create or tx.logs.id_of(log) or any(row.source == log for row in tx.progress.all()):
        return
    raise UsageError(f"{unknown_log(tx, log)} (--create makes a new one)")
