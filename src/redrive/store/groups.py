"""Many callers' appends in one transaction, each with its own answer; the same for every store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, TypeVar

from redrive.errors import EventError, NotBegun, UsageError
from redrive.event import NewEvent
from redrive.store.append import Batch, append_all
from redrive.store.port import Appending, StoreTx
from redrive.store.sql import Row

Done = Callable[[Any, BaseException | None], None]
Opening = Callable[[], AbstractContextManager[StoreTx]]
Outcome = tuple[Any, BaseException | None]
T = TypeVar("T")


def append_group(group: list[Appending], opening: Opening, sync: Callable[[Any], None], *, tries: int = 1) -> None:
    """One durable transaction for many callers; one caller's error is only its own.

    `sync` makes the commit sync what was stored before it, too: an id that was there already is acknowledged anew.
    `tries`: on so many connections, if each is found to be lost before anything was done.
    """
    outcomes: list[Outcome]
    try:
        try:
            batches = [(item.log, item.events) for item in group]
            rows = _begun(lambda: _append_all(batches, opening, sync), tries)
            following = iter(rows)
            outcomes = [(list(islice(following, len(item.events))), None) for item in group]
        except (EventError, UsageError):  # somebody's event is refused: the others once more
            if len(group) == 1 and not group[0].apart:
                raise
            outcomes = _begun(lambda: _append_each(group, opening, sync), tries)
    except BaseException as error:
        outcomes = [(None, error)] * len(group)
    wakes = {item.done(rows, failure) for item, (rows, failure) in zip(group, outcomes, strict=True)}
    for wake in wakes:
        if wake is not None:
            wake()


def _begun(job: Callable[[], T], tries: int) -> T:
    for _ in range(tries - 1):
        try:
            return job()
        except NotBegun:
            continue
    return job()


def _append_all(batches: Sequence[Batch], opening: Opening, sync: Callable[[Any], None]) -> list[Row]:
    with opening() as tx:
        rows, repeated = append_all(tx.logs, tx.sql, batches)
        if repeated:
            sync(tx)
    return rows


def _append_each(group: list[Appending], opening: Opening, sync: Callable[[Any], None]) -> list[Outcome]:
    """Each caller's behind a savepoint."""
    outcomes: list[Outcome] = []
    with opening() as tx:
        for item in group:
            if item.apart:
                each = [_append_guarded(tx, item.log, [event], sync) for event in item.events]
                outcomes.append(([error or rows[0] for rows, error in each], None))
            else:
                outcomes.append(_append_guarded(tx, item.log, item.events, sync))
    return outcomes


def _append_guarded(tx: StoreTx, log: str, events: Sequence[NewEvent], sync: Callable[[Any], None]) -> Outcome:
    """All of them, or none and the reason."""
    tx.savepoint()
    outcome: Outcome
    try:
        rows, repeated = tx.logs.append(log, events)
        if repeated:
            sync(tx)
        outcome = rows, None
    except (EventError, UsageError) as error:
        tx.undo()
        outcome = None, error
    tx.keep()
    return outcome


def run_here(job: Callable[[], Any], done: Done) -> None:
    """A job in the caller's thread."""
    try:
        result = job()
    except BaseException as error:
        done(None, error)
    else:
        done(result, None)
