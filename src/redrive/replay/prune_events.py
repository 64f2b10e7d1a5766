"""Pruning a log: which of its oldest events nobody needs any more, and deleting them with all that speaks of them.

Kept is whatever lies at or above the first position that somebody needs, the newest event of every key (versions count
on from it), and the event that each progress recognises its log by.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from redrive.errors import Halted, SourceDown, UsageError
from redrive.failpoints import hit
from redrive.replay.forget import delete_letters
from redrive.replay.rewind import ranges
from redrive.store import journal
from redrive.store.filters import Asked
from redrive.store.port import Store, StoreTx, Subscribed
from redrive.store.pruned import keep_pruned, keep_pruned_upto, pruned_of, pruned_upto
from redrive.store.sql import BOOKS
from redrive.subscription import Subscription

BATCH = 1000  # events per transaction
PENDING_MAX = 10_000  # entries of a broker that are asked for before a log is pruned: a second
ACKNOWLEDGING = "redis:"  # how logs begin whose broker may give again what has landed


@dataclass(frozen=True, slots=True)
class EventPlan:
    """Events of a log that would go, and what holds back more."""

    log: str
    number: int  # of the log
    upto: int  # nothing above this position goes
    last: int  # the log's last position when it was planned
    events: int
    letters: int  # discarded letters that go with their events
    held_by: str  # why not more
    unacknowledged: int | None = 0  # events among them that the broker would give again; None if it was not asked
    warning: str = ""  # about these


def plan_events(
    tx: StoreTx, log_name: str, before: float, no_rebuild: Sequence[str], no_mirror: Sequence[str] = ()
) -> EventPlan:
    """Which events of a log may go, and how many these are."""
    plan = limit_events(tx, log_name, before, no_rebuild, no_mirror)
    where = {"log": plan.number, "upto": plan.upto, "last": plan.last}
    events = int(tx.sql.value("prune_events_count", where))
    chosen = [{**where, "subscription": row.id} for row in _readers(tx, log_name)]
    letters = sum(int(tx.sql.value("prune_events_letters", one)) for one in chosen)
    return replace(plan, events=events, letters=letters)


def check_unacknowledged(store: Store, plan: EventPlan, intake: Subscription | None) -> EventPlan:
    """Ask the broker of a log whether it would give again what the plan deletes: that would be applied again.

    `intake` is the subscription that lands its messages, if the program is known.
    """
    if not plan.events:
        return plan
    if intake is None or intake.origin is None:
        with store.reading() as tx:
            is_fed = any(row.kind == "intake" for row in _readers(tx, plan.log))
        if not (is_fed and plan.log.startswith(ACKNOWLEDGING)):
            return plan
        told = "the broker was not asked whether it would give some of them again: add --app MODULE:APP"
        return replace(plan, unacknowledged=None, warning=told)
    try:
        ids = intake.origin.unacknowledged(intake.group, PENDING_MAX)
    except (SourceDown, Halted) as error:
        told = f"the broker could not be asked whether it would give some of them again: {error}"
        return replace(plan, unacknowledged=None, warning=told)
    with store.reading() as tx:
        rows = [tx.sql.one("event_by_id", (plan.number, id)) for id in ids]
    count = sum(1 for row in rows if row is not None and row[0] <= plan.upto)
    if not count:
        return plan
    least = "at least " if len(ids) == PENDING_MAX else ""
    told = (
        f"group {intake.group!r} has not acknowledged {least}{count:,} of them: the broker gives them again, they "
        "count as new, and are applied again; let a worker acknowledge them first"
    )
    return replace(plan, unacknowledged=count, warning=told)


def limit_events(
    tx: StoreTx, log_name: str, before: float, no_rebuild: Sequence[str], no_mirror: Sequence[str] = ()
) -> EventPlan:
    """Up to where the events of a log may go; none of them is counted."""
    log = _log(tx, log_name)
    readers = _readers(tx, log_name)
    last = tx.logs.last(log)
    limits = [
        (tx.logs.last_before(log, round(before * 1e6)), "the events after it are not old enough"),
        (last - 1, "the newest event of a log stays"),
        *(limit for row in readers for limit in _limits(tx, log, row, before, row.name in no_rebuild)),
        *_mirror_limits(tx, log_name, no_mirror),
    ]
    upto, why = min(limits, key=lambda limit: limit[0])
    upto = max(upto, 0)
    return EventPlan(log_name, log, upto, last, 0, 0, why)


def _limits(tx: StoreTx, log: int, row: Subscribed, before: float, may_forget: bool) -> Iterator[tuple[int, str]]:
    """Positions up to which this subscription needs nothing, each with what needs the next."""
    progress, name = tx.progress.get(row.id), row.name
    anchor = tx.sql.one("event_anchor", (log, progress.position))
    yield (0 if anchor is None else anchor[0] - 1), f"{name} has not read further"
    first_open = tx.sql.value("prune_first_open", {"subscription": row.id})
    if first_open is not None:
        yield first_open - 1, f"{name} has an open letter at position {first_open}"
    young = tx.sql.value("prune_first_young", {"subscription": row.id, "before": before})
    if young is not None:
        yield young - 1, f"{name} has a letter at position {young} that was settled since"
    if not may_forget and (row.kind == "projection" or tx.sql.value("state_any", {"subscription": row.id})):
        start = tx.progress.filters(row.id)[0][0]
        yield start, f"{name} could not be rebuilt; --no-rebuild {name} gives that up"


def _mirror_limits(tx: StoreTx, log_name: str, no_mirror: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Letters of which a mirror lacks something need their events."""
    mirror = journal.slowest(tx.sql, no_mirror)
    if mirror is not None:
        lowest = tx.sql.value("journal_lowest", {"after": mirror[1], "source": log_name})
        if lowest is not None:
            yield lowest - 1, f"{mirror[0]} has not mirrored a letter at position {lowest}; --no-mirror {mirror[0]}"


def check_mirrors(tx: StoreTx, names: Sequence[str]) -> None:
    """Refuse a name that is no mirror's."""
    mirrors = [row.name for row in tx.progress.all() if row.kind == "mirror"]
    for name in names:
        if name not in mirrors:
            raise UsageError(
                f"--no-mirror {name}: there is no such mirror; those there are: {', '.join(mirrors) or 'none'}"
            )


def check_readers(tx: StoreTx, logs: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a name that reads none of these logs: whoever gives up a rebuild should mean the right one."""
    readers = [row.name for row in tx.progress.all() if row.source in logs]
    for name in names:
        if name not in readers:
            raise UsageError(
                f"--no-rebuild {name}: it does not read {' or '.join(map(repr, logs))}; those that do: "
                f"{', '.join(readers) or 'none'}"
            )


def _log(tx: StoreTx, name: str) -> int:
    log = tx.logs.id_of(name)
    if not log:
        import difflib  # only ever needed on the way out

        known = [other for _, other in tx.sql.all("log_all")]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise UsageError(f"there is no log {name!r} in this store; {hint}")
    return log


def prune_events(store: Store, plan: EventPlan, told: Callable[[int], None] = lambda events: None) -> EventPlan:
    """Delete them, oldest first; what has come to be needed since stays. `told` is called with how many are gone."""
    events = letters = 0
    for gone in event_pieces(store, plan) if plan.events else ():
        events, letters = events + gone[0], letters + gone[1]
        told(events)
    return replace(plan, events=events, letters=letters)


def event_pieces(store: Store, plan: EventPlan) -> Iterator[tuple[int, int]]:
    """The same in short transactions: how many events and letters went in each."""
    more = True
    while more:
        with store.transaction() as tx:
            _hold(tx, plan.log)
            upto = min(plan.upto, *(_still(tx, plan.number, row) for row in _readers(tx, plan.log)), plan.last)
            where = {"log": plan.number, "upto": upto, "last": plan.last, "limit": BATCH}
            positions = [position for (position,) in tx.sql.all("prune_events_page", where)]
            more = len(positions) == BATCH
            gone = _delete(tx, plan.number, _readers(tx, plan.log), positions) if positions else (0, 0)
        yield gone


def trim(store: Store, log_name: str, before: float) -> bool:
    """Delete the oldest events of an outbox, in one short transaction; is there more to delete?

    Only from its beginning, and only what is older than that time and needed by nobody. Of an outbox nobody asks for
    versions: unlike other logs it need not keep the newest event of each key.
    """
    with store.reading() as tx:
        if not _old_positions(tx, tx.logs.id_of(log_name), before, tx.logs.last(tx.logs.id_of(log_name)) - 1, limit=1):
            return False
    with store.transaction() as tx:
        log = tx.logs.id_of(log_name)
        _hold(tx, log_name)
        readers = _readers(tx, log_name)
        limits = [limit for row in readers for limit, _ in _limits(tx, log, row, before, may_forget=False)]
        positions = _old_positions(tx, log, before, min([tx.logs.last(log) - 1, *limits]), limit=BATCH)
        if positions:
            _delete(tx, log, readers, positions)
            hit("trim.before_commit")
    return len(positions) == BATCH


def _old_positions(tx: StoreTx, log: int, before: float, upto: int, *, limit: int) -> list[int]:
    rows = tx.sql.all("trim_page", {"log": log, "upto": upto, "limit": limit})
    return [position for position, _ in takewhile(lambda row: row[1] < before * 1e6, rows)]


def _delete(tx: StoreTx, log: int, readers: Sequence[Subscribed], positions: list[int]) -> tuple[int, int]:
    """These events, and what is known of them; how many events and letters went."""
    letters = sum(_forget(tx, log, row, positions) for row in readers)
    events = tx.sql.run("prune_events", {"positions": json.dumps(positions)})
    for row in readers:
        _recount_ranges(tx, log, row, positions[-1])
    keep_pruned_upto(tx, log, max(positions[-1], pruned_upto(tx, log)))
    tx.logs.spans.prune(positions[-1])
    return events, letters


def _hold(tx: StoreTx, log_name: str) -> None:
    """Nobody who reads the log moves, and nobody begins to read it, until this batch is gone."""
    for row in sorted(_readers(tx, log_name), key=lambda row: row.id):
        tx.sql.one("hold", {"subscription": row.id})
    tx.sql.claim((BOOKS,))  # whoever registers a subscription claims them, too


def _readers(tx: StoreTx, log_name: str) -> list[Subscribed]:
    return [row for row in tx.progress.all() if row.source == log_name]


def _still(tx: StoreTx, log: int, row: Subscribed) -> int:
    """A seek back or a reopened letter since the plan: asked again under the write lock."""
    anchor = tx.sql.one("event_anchor", (log, tx.progress.get(row.id).position))
    first_open = tx.sql.value("prune_first_open", {"subscription": row.id})
    limit = 0 if anchor is None else int(anchor[0]) - 1
    return limit if first_open is None else min(limit, int(first_open) - 1)


def _forget(tx: StoreTx, log: int, row: Subscribed, positions: list[int]) -> int:
    """What a subscription knows of events that go: letters and edits; their fates stay as numbers."""
    progress, asked = tx.progress.get(row.id), Asked(tx.progress.filters(row.id))
    pruned, start = pruned_of(tx, row.id, progress.started_from), progress.started_from
    chosen = {"subscription": row.id, "positions": json.dumps(positions)}
    letters = tx.sql.all("prune_letters_at", chosen)
    counted = [one for one in letters if one[1] > start and asked.wants(one[1], one[3])]
    applied = sum(1 for one in counted if one[2] == "applied")
    if letters:
        delete_letters(tx, row.id, [one[0] for one in letters], applied=applied)
    tx.sql.run("prune_edits_at", chosen)
    settled = sum(
        count
        for low, high, _ in asked.spans(start, positions[-1])
        for kind, count in tx.sql.all("prune_events_types", {**chosen, "above": low, "upto": high})
        if asked.wants(high, kind)
    )
    discarded = sum(1 for one in counted if one[2] == "discarded")
    kept = replace(
        pruned, upto=max(positions[-1], pruned.upto), settled=pruned.settled + settled,
        discarded=pruned.discarded + discarded,
    )  # fmt: skip
    keep_pruned(tx, row.id, kept)
    return sum(1 for one in letters if one[2] == "discarded")


def _recount_ranges(tx: StoreTx, log: int, row: Subscribed, upto: int) -> None:
    """A skipped range holds fewer events now; those that it had count among what was pruned."""
    start, asked = tx.progress.get(row.id).started_from, Asked(tx.progress.filters(row.id))
    gone = 0
    for one in ranges(tx, row.id):
        if one.above >= upto:
            continue
        left = asked.count(tx, log, one.above, one.upto)
        if left == one.discarded:
            continue
        gone += one.discarded - left if one.above >= start else 0
        where = {"subscription": row.id, "from_position": one.above, "to_position": one.upto}
        if left:
            tx.sql.run("range_set", {**where, "discarded": left})
        else:
            tx.sql.run("prune_range", where)
    if gone:
        pruned = pruned_of(tx, row.id, start)
        keep_pruned(tx, row.id, replace(pruned, discarded=pruned.discarded + gone))
