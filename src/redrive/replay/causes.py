"""Causes: dead letters that failed in the same place in the same way, and what people know about them.

All numbers come from counters, so that a million letters are listed as quickly as ten. A lane is held back by its head:
it counts for the cause of a head that is dead, and so do the letters that wait behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redrive.errors import UsageError
from redrive.replay.deed import Operator
from redrive.replay.select import Selection, subscription_of
from redrive.replay.tally import first_of
from redrive.store.port import Store, StoreTx

LETTERS_LOOKED_AT = 500  # for their causes, where counters do not know
EVERY = Selection()


class Note(NamedTuple):
    """What somebody wrote down about a cause."""

    at: float
    who: str
    text: str
    resolved: int


@dataclass(frozen=True, slots=True)
class Cause:
    """Dead letters of one subscription with one fingerprint."""

    fingerprint: str
    subscription: str
    dead: int
    lanes: int
    waiting: int
    error_type: str
    error_message: str
    reasons: tuple[str, ...]
    types: tuple[str, ...]
    first_seen: float | None
    last_seen: float | None
    standing: str  # "", "resolved" or "regressed": somebody said it was fixed, and it came back
    notes: tuple[Note, ...]


class Causes(NamedTuple):
    """Some of those there are."""

    found: list[Cause]
    total: int
    exact: bool  # False: only the first letters of the selection were looked at, there may be more causes


def causes(store: Store, selection: Selection = EVERY, limit: int = 100) -> Causes:
    """The causes that letters of a selection have, those with most letters first; each is shown whole."""
    letters, exact = ([], True) if selection.is_of_counters else first_of(store, selection, LETTERS_LOOKED_AT)
    meant = {(one.fingerprint, one.subscription_id) for one in letters}
    with store.reading() as tx:
        wanted = subscription_of(tx, selection)
        rows = tx.sql.all("causes")
        if selection.is_of_counters:
            meant = {
                (row[0], row[1]) for row in rows if wanted in (None, row[1]) and selection.covers(row[0], *row[3:5])
            }
        groups: dict[tuple[str, int], list[Sequence[Any]]] = {}
        for row in rows:
            if (row[0], row[1]) in meant:
                groups.setdefault((row[0], row[1]), []).append(row)
        ordered = sorted(groups.values(), key=lambda rows: (-sum(row[5] for row in rows), rows[0][0]))
        found = [_cause(tx, of_one) for of_one in ordered[:limit]]
        return Causes(found, len(ordered), exact)


def note(operator: Operator, fingerprint: str, text: str, *, resolved: bool = False) -> str:
    """Write down what is known of a cause, named by its fingerprint or how that begins; returns the whole of it."""
    if not text.strip():
        raise UsageError("a note needs a text")
    with operator.transaction() as tx:
        whole = find_cause(tx, fingerprint)
        values = {"fingerprint": whole, "now": operator.now(), "who": operator.who, "text": text}
        tx.sql.run("note_add", {**values, "resolved": int(resolved)})
        operator.audit(tx, "note", "", f"fingerprint {whole}", text, {"resolved": resolved})
    return whole


def find_cause(tx: StoreTx, start: str) -> str:
    """The one fingerprint that begins like this."""
    found = [row[0] for row in tx.sql.all("fingerprint_like", {"start": start})] if start else []
    if start in found:
        return start
    if not found:
        raise UsageError(f"no letter has the fingerprint {start!r}; `redrive dlq` lists those there are")
    if len(found) > 1:
        raise UsageError(f"{start!r} is the beginning of {len(found)} fingerprints: {', '.join(found[:5])}")
    return str(found[0])


def _cause(tx: StoreTx, rows: Sequence[Sequence[Any]]) -> Cause:
    fingerprint, number, name = rows[0][:3]
    dead, last = sum(row[5] for row in rows), max(row[6] for row in rows) or None
    where = {"fingerprint": fingerprint, "subscription": number}
    error_type, message, first = tx.sql.one("cause_first", where) or ("", "", None)
    lanes, waiting = tx.sql.one("cause_counts", where) or (0, 0)
    notes = tuple(Note(*row) for row in tx.sql.all("notes_of", {"fingerprint": fingerprint}))
    reasons, types = (tuple(sorted({row[place] for row in rows})) for place in (3, 4))
    return Cause(
        fingerprint, name, dead, lanes, waiting, error_type, message, reasons, types, first, last,
        _standing(notes, last), notes,
    )  # fmt: skip


def _standing(notes: Sequence[Note], last_seen: float | None) -> str:
    fixed = [one.at for one in notes if one.resolved]
    if not fixed:
        return ""
    return "regressed" if last_seen is not None and last_seen > fixed[-1] else "resolved"
