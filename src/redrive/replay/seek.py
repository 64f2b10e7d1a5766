"""Seeking: what a jump to another position would do, and doing it, inside one transaction.

Back: settled events come round again, their letters are superseded. Forward: events are given up, as ranges between
what is settled already, so that each range holds nothing but what was given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from redrive.errors import UsageError
from redrive.policy.progress import stretches
from redrive.replay.deed import Operator
from redrive.replay.rewind import check_all_come, excuse_all, ranges, take_back
from redrive.store.filters import EVERYWHERE, Asked, Filters
from redrive.store.heard import heard_of
from redrive.store.port import StoreTx, Subscribed

DIGITS_MAX = 18  # of a position: what is longer is none, and SQLite could not store it


@dataclass(frozen=True, slots=True)
class Sought:
    """What a seek did, or would do."""

    subscription: str
    was: int
    position: int
    superseded: int  # letters whose events come round again
    discarded: int  # events given up on the way forward
    again: int = 0  # settled events that come round again


def plan(tx: StoreTx, row: Subscribed, to: int | str) -> Sought:
    """What a seek would do now; UsageError if it is not allowed."""
    was, log, asked = tx.progress.get(row.id), tx.logs.id_of(row.source), Asked(tx.progress.filters(row.id))
    target = find_target(tx, log, to)
    done = tx.sql.all("ledger_done_events", {"subscription": row.id, "log": log, "above": was.position})
    settled = [position for position, kind in done if asked.wants(position, kind)]
    if target >= was.position:
        ahead = asked.count(tx, log, was.position, target) if target > was.position else 0
        return Sought(row.name, was.position, target, 0, ahead - sum(1 for one in settled if one <= target))
    asked = Asked(_filters_back(tx.progress.filters(row.id), target))
    _check_back(tx, row, target, asked)
    again = asked.count(tx, log, target, was.position)
    again += sum(1 for position, kind in done if asked.wants(position, kind))
    kept = tx.sql.all("seek_kept", {"subscription": row.id, "above": target, "upto": EVERYWHERE})
    again -= sum(n for kind, n in kept if asked.wants(EVERYWHERE, kind))
    superseded = int(tx.sql.value("seek_superseded", {"subscription": row.id, "above": target}))
    return Sought(row.name, was.position, target, superseded, 0, again)


def carry_out(tx: StoreTx, row: Subscribed, planned: Sought, operator: Operator, reason: str) -> None:
    """Do what was planned in this transaction."""
    if planned.position < planned.was:
        superseded = _back(tx, row, planned.position, operator.now())
        assert superseded == planned.superseded, (superseded, planned)
    elif planned.position > planned.was:
        discarded = _forward(tx, row, planned, operator, reason)
        assert discarded == planned.discarded, (discarded, planned)


def _filters_back(filters: Filters, target: int) -> list[tuple[int, Sequence[str]]]:
    """What comes round again is asked for by the filter of today: no other one is there to call the function by."""
    return [*((position, types) for position, types in filters if position < target), (target, filters[-1][1])]


def _check_back(tx: StoreTx, row: Subscribed, target: int, asked: Asked) -> None:
    if row.kind == "projection" or tx.sql.value("state_any", {"subscription": row.id}):
        what = "is a projection" if row.kind == "projection" else "has keyed state"
        raise UsageError(
            f"{row.name!r} {what}: going back would apply events to what they already changed. "
            f"`redrive rebuild {row.name}` clears it and starts over"
        )
    upto = int(tx.sql.value("pruned_highest"))
    if target < upto:  # of its own log they are missing; in another, what they emitted could be emitted twice
        raise UsageError(f"events up to position {upto} were pruned; {row.name!r} can go back to {upto} at most")
    check_all_come(tx, row, target, asked)


def _back(tx: StoreTx, row: Subscribed, target: int, now: float) -> int:
    filters = _filters_back(tx.progress.filters(row.id), target)
    tx.sql.run("filter_clear", {"subscription": row.id, "above": target})
    tx.progress.add_filter(row.id, *filters[-1])
    asked = Asked(filters)
    log = tx.logs.id_of(row.source)
    tx.sql.run("range_cut", {"subscription": row.id, "above": target})
    for skipped in ranges(tx, row.id):
        if skipped.upto > target:
            discarded = asked.count(tx, log, skipped.above, target)
            values = {"subscription": row.id, "from_position": skipped.above, "to_position": target}
            tx.sql.run("range_set", {**values, "discarded": discarded})
    superseded = take_back(tx, row, target, asked, now, quiet_until=0, heard=heard_of(tx, row.id))
    # What an earlier rebuild may have silenced was perhaps skipped then, and is applied for the first time now.
    tx.sql.run("progress_unquiet", {"subscription": row.id, "position": target})
    return superseded


def _forward(tx: StoreTx, row: Subscribed, planned: Sought, operator: Operator, reason: str) -> int:
    target = planned.position
    log, asked = tx.logs.id_of(row.source), Asked(tx.progress.filters(row.id))
    taken = [(position - 1, position) for position in tx.progress.done.of(row.id, planned.was)]
    taken += [(skipped.above, skipped.upto) for skipped in ranges(tx, row.id)]  # events of other logs lie in them, too
    total = 0
    for above, upto in stretches(planned.was, target, taken):
        discarded = asked.count(tx, log, above, upto)
        if not discarded:
            continue
        total += discarded
        details = {"above": above, "upto": upto, "discarded": discarded}
        audit = operator.audit(tx, "skip", row.name, f"positions {above + 1} to {upto}", reason, details)
        values = {"from_position": above, "to_position": upto, "discarded": discarded, "audit": audit}
        tx.sql.run("range_add", {"subscription": row.id, **values})
    tx.progress.done.prune_all(row.id, target)
    excuse_all(tx, row.id)
    anchor = tx.logs.anchor(log, target)
    tx.sql.run("progress_skip", {"subscription": row.id, "position": target, "anchor": anchor})
    return total


def find_target(tx: StoreTx, log: int, to: int | str) -> int:
    """A position that the log has reached: what is not there yet cannot be given up."""
    last = tx.logs.last(log) if log else 0
    if to in ("first", "now"):
        return 0 if to == "first" else last
    if isinstance(to, str) and not (to.isdecimal() and len(to) <= DIGITS_MAX):
        try:
            time = datetime.fromisoformat(to)
        except ValueError:
            raise UsageError(
                f'{to!r} is neither a position, "first", "now" nor a time like 2026-01-31T00:00Z'
            ) from None
        if time.tzinfo is None:
            raise UsageError(f"{to!r} has no time zone; append Z or +01:00")
        return min(last, tx.logs.last_before(log, round(time.timestamp() * 1e6)) if log else 0)
    position = int(to)
    if not 0 <= position <= last:
        raise UsageError(f"position {position} is not in the log; it goes from 0 to {last}")
    return position
