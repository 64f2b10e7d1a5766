"""Appending what is due: each worker waits for the next due time, and whoever comes first appends.

An event leaves the schedule in the transaction that appends it, so that a worker may die anywhere and any number of
them may try at the same time. Nobody polls: we look when something was written, when the next event is due, and with
every beat of the roster, in case a clock was set meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import NamedTuple

from redrive.errors import StoreError
from redrive.failpoints import hit
from redrive.observe import signals as sig
from redrive.runner.bridge import Bridge
from redrive.runner.duty import Engine
from redrive.runner.wake import Wake
from redrive.store.append import append_all
from redrive.store.scheduled import DueEvent, batches, next_due, take_due
from redrive.store.sql import Row

log = logging.getLogger("redrive")


class Look(NamedTuple):
    """What one look has brought."""

    more: bool  # something was due, and more may be
    wait: float | None  # seconds until the next is due


class Scheduler:
    """One worker's part in appending what is due."""

    def __init__(self, engine: Engine, bridge: Bridge, *, pause: float) -> None:
        """`pause`: so many seconds at least between two looks for news, which may come a thousand times a second."""
        self._engine, self._bridge, self._pause = engine, bridge, pause
        self.wake = Wake(asyncio.Event())  # one of its own: that we wait is no reason to look for other processes
        self._rests = False
        self._hurried = asyncio.Event()
        self.on_idle: Callable[[], None] = _nothing  # called when we rest, and when a pause keeps us from looking

    async def run(self) -> None:
        """Until cancelled."""
        clock, wait = self._engine.env.clock, self._engine.settings.halt_wait
        while True:
            looked_at = clock.monotonic()
            try:
                look = await self._bridge.run(lambda: append_due(self._engine))
                wait = self._engine.settings.halt_wait
            except StoreError as error:
                log.debug("could not look for what is due: %s", error)
                look, wait = Look(False, wait), min(wait * 2, self._engine.settings.halt_wait_max)
            if look.more:
                continue
            await self._rest(look.wait)
            soonest = looked_at + min(self._pause, math.inf if look.wait is None else look.wait)
            if (left := soonest - clock.monotonic()) > 0:
                await self._take_a_break(left)

    @property
    def is_idle(self) -> bool:
        """Is nothing due, and has nobody written since we looked?"""
        return self._rests and not self.wake.pending

    def hurry(self) -> None:
        """Everybody else has nothing left to do and waits for our look: whatever pause there is ends now."""
        self._hurried.set()

    async def _take_a_break(self, seconds: float) -> None:
        self._hurried.clear()
        self.on_idle()
        timer = asyncio.get_running_loop().call_later(seconds, self._hurried.set)
        try:
            await self._hurried.wait()
        finally:
            timer.cancel()

    async def _rest(self, seconds: float | None) -> None:
        self._rests = True
        self.on_idle()
        try:
            await self.wake.wait(seconds)
        finally:
            self._rests = False


def append_due(engine: Engine) -> Look:
    """Append what is due, as much as one transaction may hold. Runs where writing happens."""
    clock, limit = engine.env.clock, engine.settings.batch_max
    with engine.store.reading(snapshot=False) as tx:
        due_at, was_set_back = next_due(tx.sql, clock.now())
    if due_at is None:
        return Look(False, None)
    if due_at > clock.now() and not was_set_back:
        return Look(False, due_at - clock.now())
    rows: list[Row] = []
    with engine.store.transaction() as tx:
        now = tx.progress.now(clock)
        due = take_due(tx.sql, now, limit)
        if due:
            hit("due.taken")
            rows, _ = append_all(tx.logs, tx.sql, list(batches(due)))
            hit("due.before_commit")
        else:
            due_at, _ = next_due(tx.sql, now)
    if not due:
        return Look(False, None if due_at is None else max(0.0, due_at - now))
    hit("due.committed")
    _tell(engine, due, [row[0] for row in rows], now)
    return Look(True, None)


def _tell(engine: Engine, due: list[DueEvent], positions: list[int], now: float) -> None:
    facts: list[sig.Signal] = []
    for name in dict.fromkeys(one.log for one in due):
        mine = [(one.due_at, position) for one, position in zip(due, positions, strict=True) if one.log == name]
        facts.append(sig.Appended(name, len(mine), max(position for _, position in mine)))
        facts.append(sig.CameDue(name, len(mine), max(0.0, now - min(due_at for due_at, _ in mine))))
        engine.appended(name)
    engine.signals.tell(facts)


def _nothing() -> None:
    pass
