"""Causes: dead letters that failed in the same place in the same way, and what people know about them.

Counts come from the counters. How many events wait behind a cause is counted for its first letters only, so
that a million letters are listed as quickly as ten; `waiting_exact` says whether there were more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redrive.errors import UsageError
from redrive.policy.action import BEHIND_HEAD
from redrive.replay.deed import Operator
from redrive.replay.select import Selection, subscription_of
from redrive.replay.tally import first_of
from redrive.store.port import Store, StoreTx

LOOKED_AT = 3_000  # letters whose lanes are counted, over all causes that are listed
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
    waiting_exact: bool  # False: lanes and waiting are of the first letters, there are more
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
        found: list[Cause] = []
        following = {number for number in {rows[0][1] for rows in ordered} if _has_followers(tx, number)}
        budget = LOOKED_AT // 2 if letters else LOOKED_AT
        for of_one in ordered[:limit]:
            found.append(_cause(tx, of_one, budget, of_one[0][1] in following))
            budget = max(0, budget - found[-1].dead)
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


def _has_followers(tx: StoreTx, subscription: int) -> bool:
    """Does anything of it wait behind something else?"""
    return any(row[1] == BEHIND_HEAD for row in tx.sql.all("ledger_kept_counts", {"subscription": subscription}))


def _cause(tx: StoreTx, rows: Sequence[Sequence[Any]], budget: int, following: bool) -> Cause:
    fingerprint, number, name = rows[0][:3]
    dead = sum(row[5] for row in rows)
    where = {"fingerprint": fingerprint, "subscription": number}
    error_type, message, first = tx.sql.one("cause_first", where) or ("", "", None)
    lanes, waiting, exact, last = _blast_radius(tx, where, dead, budget, following)
    notes = tuple(Note(*row) for row in tx.sql.all("notes_of", {"fingerprint": fingerprint}))
    reasons, types = (tuple(sorted({row[place] for row in rows})) for place in (3, 4))
    return Cause(
        fingerprint, name, dead, lanes, waiting, exact, error_type, message, reasons, types, first, last,
        _standing(notes, last), notes,
    )  # fmt: skip


def _blast_radius(
    tx: StoreTx, where: dict[str, Any], dead: int, budget: int, following: bool
) -> tuple[int, int, bool, float | None]:
    """Lanes held back, events waiting in them, whether all were counted, and when the last one failed."""
    exact = dead <= budget
    newest = tx.sql.value("cause_last", where)
    if not following and not exact:
        return dead, 0, True, newest
    lanes, waiting, last = tx.sql.all("cause_lanes", {**where, "limit": budget})[0]
    return lanes, waiting, exact, max(last or 0.0, newest or 0.0) or None


def _standing(notes: Sequence[Note], last_seen: float | None) -> str:
    fixed = [one.at for one in notes if one.resolved]
    if not fixed:
        return ""
    return "regressed" if last_seen is not None and last_seen > fixed[-1] else "resolved"
