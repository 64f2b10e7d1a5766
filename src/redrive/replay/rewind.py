"""Taking progress back: what reset and seek have in common, inside their one transaction.

Letters above the target are superseded (their history stays), their events come round again. What was
discarded stays discarded: intake finds it done. The epoch grows, so a former owner can write nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redrive.errors import UsageError
from redrive.policy.letters import OPEN
from redrive.store.filters import EVERYWHERE, Asked
from redrive.store.heard import Heard, keep_emitted
from redrive.store.letters import WAS_OPEN, WAS_SETTLED
from redrive.store.port import StoreTx, Subscribed

PAGE = 10_000  # positions marked at a time
KINDS_MAX = 5  # shown of the types that stand in the way; the first ones say enough


@dataclass(frozen=True, slots=True)
class Range:
    """Positions that were skipped: above `above`, up to `upto`; all that was asked for in it is discarded."""

    above: int
    upto: int
    discarded: int


def ranges(tx: StoreTx, subscription: int) -> list[Range]:
    """The skipped ranges of a subscription, in order."""
    return [Range(*row[:3]) for row in tx.sql.all("range_all", {"subscription": subscription})]


def take_back(
    tx: StoreTx, row: Subscribed, to: int, asked: Asked, now: float, *, quiet_until: int, heard: Heard
) -> int:
    """Everything above a position is to be processed again; returns how many letters were superseded.

    Emissions at or below `quiet_until` stay unmade, except of events that were held in an open letter.
    Such an event emits no more if it was applied before an earlier rebuild, and failed only in that one (`heard`).
    """
    log, was = tx.logs.id_of(row.source), tx.progress.get(row.id)
    marks = {"subscription": row.id, "was_open": WAS_OPEN, "was_settled": WAS_SETTLED}
    passed = tx.sql.all("letters_passed", {"subscription": row.id, "quiet_until": was.quiet_until})
    emitted = [(letter, state) for letter, state, *event in passed if heard.has(*event)]
    tx.sql.run("letters_heard", {**marks, "progress": was.position})
    superseded = tx.sql.run("letters_supersede", {**marks, "above": to, "now": now})
    tx.sql.many(
        "letter_heard", [{"id": letter, "was_open": WAS_OPEN, "was_settled": WAS_SETTLED} for letter, _ in emitted]
    )
    keep_emitted(tx, row.id, [letter for letter, state in emitted if state == "discarded"])
    tx.progress.done.clear(row.id)
    discarded = tx.sql.all("letters_discarded", {"subscription": row.id, "above": to})
    tx.progress.done.add(row.id, [position for (position,) in discarded])
    for skipped in ranges(tx, row.id):
        _keep_skipped(tx, row.id, log, skipped, asked, to)
    excuse_all(tx, row.id)
    anchor = tx.logs.anchor(log, to) if to else None
    values = {"subscription": row.id, "position": to, "anchor": anchor, "quiet_until": quiet_until}
    tx.sql.run("progress_reset", values)
    return superseded


def check_all_come(tx: StoreTx, row: Subscribed, to: int, asked: Asked) -> None:
    """A letter is closed because its event comes round again: one that is not asked for any more would be lost."""
    span = {"subscription": row.id, "above": to, "upto": EVERYWHERE}
    found = tx.sql.all("ledger_letters", span)
    left = {kind for state, kind, _ in found if state in OPEN and not asked.wants(EVERYWHERE, kind)}
    if left:
        shown = ", ".join(sorted(left)[:KINDS_MAX])
        raise UsageError(
            f"{row.name!r} has open letters of types that it no longer asks for, which would not come round again: "
            f"{shown}. Replay or discard them first: redrive dlq list -s {row.name} --type TYPE"
        )


def excuse_all(tx: StoreTx, subscription: int) -> None:
    """Whoever runs something now is fenced, not crashed."""
    for row in tx.progress.members(subscription):
        tx.keyed.excuse(row.member)


def _keep_skipped(tx: StoreTx, subscription: int, log: int, skipped: Range, asked: Asked, to: int) -> None:
    """A skipped range stays skipped: marks on what the filter asks for in it now."""
    discarded = 0
    for low, high, event_type, count in asked.types(tx, log, skipped.above, skipped.upto):
        discarded += count
        if high > to:
            _mark(tx, subscription, {"log": log, "above": max(low, to), "upto": high, "type": event_type})
    values = {
        "subscription": subscription, "from_position": skipped.above, "to_position": skipped.upto,
        "discarded": discarded,
    }  # fmt: skip
    tx.sql.run("range_set", values)


def _mark(tx: StoreTx, subscription: int, which: dict[str, Any]) -> None:
    """Mark the events of a range as done, a page at a time: there may be millions."""
    positions = [which["above"]]
    while positions:
        page = {**which, "above": positions[-1], "limit": PAGE}
        positions = [position for (position,) in tx.sql.all("events_of_type", page)]
        tx.progress.done.add(subscription, positions)
