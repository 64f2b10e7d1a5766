"""Pruning: deleting what is settled and old, without anything that the ledger or a rebuild still needs.

Letters: applied ones become a number, superseded ones go, a discarded one keeps its row (it keeps its event out of
a rebuild) and loses its history. Everything happens in short transactions; interrupted, the next run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from redrive.replay.deed import Operator, Told, find, untold
from redrive.replay.forget import delete_letters, forget_history
from redrive.replay.prune_events import EventPlan, check_mirrors, check_readers, plan_events, prune_events
from redrive.store import journal
from redrive.store.filters import Asked
from redrive.store.letters import WAS_OPEN
from redrive.store.port import ProgressRow, Store, StoreTx, Subscribed
from redrive.units import show_duration

BATCH = 1000  # letters per transaction: a few tens of milliseconds
PLAN_PAGE = 10_000
GONE = ("applied", "superseded")  # states whose letters go altogether
_OLD = {"applied": "prune_applied", "superseded": "prune_superseded", "discarded": "prune_discarded"}


Candidate = tuple[int, int, str]  # letter, position, type


@dataclass(slots=True)
class PrunePlan:
    """What pruning would delete, or has deleted."""

    before: float  # letters and events touched before this time
    applied: int = 0
    superseded: int = 0
    emptied: int = 0  # discarded letters that lose their history
    attempts: int = 0
    journal: int = 0
    unmirrored: int = 0  # letters that stay, because a mirror lacks something of them
    events: list[EventPlan] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many letters and events are deleted or emptied."""
        return self.applied + self.superseded + self.emptied + sum(one.events for one in self.events)

    @property
    def nothing(self) -> bool:
        """Is there nothing to do?"""
        return not (self.applied or self.superseded or self.emptied or any(one.events for one in self.events))


@dataclass(frozen=True, slots=True)
class What:
    """What an operator wants pruned."""

    older_than: float
    subscription: str | None = None
    logs: tuple[str, ...] = ()
    no_rebuild: tuple[str, ...] = ()  # subscriptions that need not be rebuilt any more
    no_mirror: tuple[str, ...] = ()  # mirrors that need not have what goes


def plan_prune(store: Store, now: float, what: What) -> PrunePlan:
    """Exact numbers, without doing anything."""
    plan = PrunePlan(now - what.older_than)
    with store.reading() as tx:
        plan.events = [
            plan_events(tx, log, plan.before, what.no_rebuild, what.no_mirror) for log in dict.fromkeys(what.logs)
        ]
        check_readers(tx, what.logs, what.no_rebuild)
        check_mirrors(tx, what.no_mirror)
        for row in _chosen(tx, what.subscription):
            progress, asked = tx.progress.get(row.id), Asked(tx.progress.filters(row.id))
            for state in (*GONE, "discarded"):
                after = 0
                while page := _page(tx, row, progress, state, plan.before, after, PLAN_PAGE):
                    _count(tx, plan, state, [one[0] for one in _going(tx, page, state, asked, what, plan)])
                    after = page[-1][0]
    return plan


def prune(operator: Operator, what: What, plan: PrunePlan, reason: str = "", told: Told = untold) -> PrunePlan:
    """Do what was planned, batch by batch; what was touched since is left alone. `told` is called after each batch."""
    done = PrunePlan(plan.before)
    total = plan.size
    target = f"older than {show_duration(what.older_than)}"
    with operator.transaction() as tx:
        planned = {
            "before": plan.before, "applied": plan.applied, "superseded": plan.superseded, "emptied": plan.emptied,
            "events": {one.log: [one.events, one.upto] for one in plan.events}, "no_rebuild": list(what.no_rebuild),
            "no_mirror": list(what.no_mirror),
        }  # fmt: skip
        operator.audit(tx, "prune", what.subscription or "", target, reason, planned)
    for _ in letter_pieces(operator.store, what, done):
        told(done.size, total)
    for one in plan.events:

        def gone(events: int, before: int = done.size) -> None:
            told(before + events, total)

        done.events.append(prune_events(operator.store, one, gone))
    with operator.transaction() as tx:
        tx.letters.sieve.prune()
    operator.tell("prune", what.subscription or "", target)
    return done


def _chosen(tx: StoreTx, name: str | None) -> list[Subscribed]:
    return tx.progress.all() if name is None else [find(tx, name)]


def letter_pieces(store: Store, what: What, done: PrunePlan) -> Iterator[None]:
    """Delete letters that were settled before that time, in short transactions; `done` counts them."""
    with store.reading() as tx:
        rows = _chosen(tx, what.subscription)
    for row in rows:
        for state in (*GONE, "discarded"):
            after, more = 0, True
            while more:
                with store.transaction() as tx:
                    page = _prune_page(tx, row, state, what, done, after)
                more = len(page) == BATCH
                after = page[-1][0] if page else after
                yield


def _prune_page(
    tx: StoreTx, row: Subscribed, state: str, what: What, done: PrunePlan, after: int
) -> Sequence[Candidate]:
    tx.sql.one("hold", {"subscription": row.id})
    progress, asked = tx.progress.get(row.id), Asked(tx.progress.filters(row.id))
    page = _page(tx, row, progress, state, done.before, after, BATCH)
    going = _going(tx, page, state, asked, what, done)
    ids = [one[0] for one in going]
    _count(tx, done, state, ids)
    if state == "discarded":
        forget_history(tx, ids)
    elif ids:
        counted = sum(1 for one in going if state == "applied" and one[1] > progress.started_from)
        delete_letters(tx, row.id, ids, applied=counted)
    return page


def _page(
    tx: StoreTx, row: Subscribed, progress: ProgressRow, state: str, before: float, after: int, limit: int
) -> Sequence[Candidate]:
    values = {"subscription": row.id, "state": state, "before": before, "after": after, "limit": limit}
    if state == "superseded":  # one that was open has emitted nothing yet, until its event is settled again
        values |= {"was_open": WAS_OPEN, "progress": progress.position}
    return [(one[0], one[1], one[2]) for one in tx.sql.all(_OLD[state], values)]


def _going(
    tx: StoreTx, page: Sequence[Candidate], state: str, asked: Asked, what: What, plan: PrunePlan
) -> list[Candidate]:
    """What a mirror lacks stays; so does, for `verify`, an applied letter that its filter does not explain."""
    behind = journal.behind(tx.sql, [one[0] for one in page], what.no_mirror)
    plan.unmirrored += len(behind)
    return [one for one in page if one[0] not in behind and (state != "applied" or asked.wants(one[1], one[2]))]


def _count(tx: StoreTx, plan: PrunePlan, state: str, ids: list[int]) -> None:
    if not ids:
        return
    chosen = {"ids": json.dumps(ids)}
    plan.attempts += int(tx.sql.value("prune_attempt_count", chosen))
    plan.journal += int(tx.sql.value("prune_journal_count", chosen))
    if state == "discarded":
        plan.emptied += len(ids)
        plan.journal -= len(ids)  # the last entry stays: it says what the letter is
    elif state == "applied":
        plan.applied += len(ids)
    else:
        plan.superseded += len(ids)
