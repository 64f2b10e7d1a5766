"""Pruning by itself, at the times of a cron line: whichever worker comes first does it, a short transaction at a time.

What goes, and what stays, is what `redrive prune` says. A worker that dies on the way leaves the rest for the next
time; a time at which nobody was running is made up for, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from redrive.policy.cron import next_time
from redrive.replay.deed import Operator
from redrive.replay.prune import PrunePlan, What, letter_pieces
from redrive.replay.prune_events import event_pieces, limit_events
from redrive.store.sql import BOOKS
from redrive.units import show_duration

WHO = "auto-prune"
HOURLY = "0 * * * *"  # for logs, where the settings name no times
PAUSE = 0.05  # seconds between two pieces: others want to write, too


class Next(NamedTuple):
    """When to look again, and whether there is nothing to do until then."""

    wait: float
    idle: bool


class Upkeep:
    """One worker's part in it."""

    def __init__(self, operator: Operator, cron: str | None, older_than: float, logs: Mapping[str, float]) -> None:
        """Letters go at the times of `cron` when they are so old; events of logs when they are older than each says."""
        self._operator, self._cron = replace(operator, who=WHO), cron or HOURLY
        letters = {} if cron is None else {"letters": What(older_than)}
        self._chores = letters | {f"log {name}": What(keep, logs=(name,)) for name, keep in logs.items()}
        self._work: Iterator[None] | None = None

    def step(self) -> Next:
        """One piece of it, where writing happens."""
        if self._work is None:
            now = self._operator.now()
            chore = self._take_turn(now)
            if chore is None:
                return Next(next_time(self._cron, now) - now, idle=True)
            self._work = self._prune(self._chores[chore], now)
        if next(self._work, self) is self:
            self._work = None
        return Next(PAUSE, idle=False)

    def _take_turn(self, now: float) -> str | None:
        """What is due and nobody else has begun. Whoever looks for the first time begins to count the times."""
        store = self._operator.store
        with store.reading() as tx:
            due = [name for name in self._chores if self._is_due(tx.books.get(f"upkeep {name}"), now)]
        for name in due:
            with store.transaction() as tx:
                tx.sql.claim((BOOKS,))
                last = tx.books.get(f"upkeep {name}")
                if not self._is_due(last, now):
                    continue
                tx.books.set(f"upkeep {name}", now)
            if last is not None:
                return name
        return None

    def _is_due(self, last: float | None, now: float) -> bool:
        return last is None or next_time(self._cron, min(last, now)) <= now

    def _prune(self, what: What, now: float) -> Iterator[None]:
        operator, done = self._operator, PrunePlan(now - what.older_than)
        if what.logs:
            for log in what.logs:
                yield from self._prune_events(log, done)
        else:
            yield from letter_pieces(operator.store, what, done)
        if done.nothing:
            return
        target = f"{'letters' if not what.logs else f'log {what.logs[0]}'} older than {show_duration(what.older_than)}"
        counts = {
            "before": done.before, "applied": done.applied, "superseded": done.superseded, "emptied": done.emptied,
            "events": {one.log: [one.events, one.upto] for one in done.events},
        }  # fmt: skip
        with operator.transaction() as tx:
            tx.letters.sieve.prune()
            operator.audit(tx, "prune", "", target, f"cron {self._cron}", counts)
        operator.tell("prune", "", target)

    def _prune_events(self, log: str, done: PrunePlan) -> Iterator[None]:
        """Who declares how long a log is kept gives up rebuilding from what is older."""
        with self._operator.store.reading() as tx:
            if not tx.logs.id_of(log):
                return
            readers = [row.name for row in tx.progress.all() if row.source == log]
            plan = limit_events(tx, log, done.before, no_rebuild=readers)
        events = letters = 0
        for gone, with_them in event_pieces(self._operator.store, plan):
            events, letters = events + gone, letters + with_them
            yield
        done.events.append(replace(plan, events=events, letters=letters))
