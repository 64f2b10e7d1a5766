"""Whose turn it is: what is behind a live log is taken in only while nobody has anything to do there."""

from __future__ import annotations

from typing import NamedTuple

from redrive.runner.duty import Duty

BEHIND_MAX = 100  # messages that are taken in at a time: what comes to the live log meanwhile waits for no more
CALM_SECONDS = 0.2  # without anything landing in the live log, until it counts as idle
STUCK_SECONDS = 60.0  # without anybody getting on there, until nobody waits for us who waits until all is done
LOOK_SECONDS, LOOK_SECONDS_MAX = 0.05, 5.0  # until we look again: while they get on, and while they do not


class Wait(NamedTuple):
    """It is not our turn."""

    seconds: float
    idle: bool  # there is no end in sight


class Turn:
    """Asks the store who goes first. Who is paused, halted or run by nobody does not."""

    def __init__(self, duty: Duty, live: str) -> None:
        self._duty, self._live = duty, live
        self._began = self._moved = duty.engine.env.clock.now()  # who begins with us has not landed anything yet
        self._readers: list[tuple[int, int]] = []

    def look(self) -> Wait | None:
        """How long to wait until the next look; None: it is our turn. Runs where reading happens."""
        now = self._duty.engine.env.clock.now()
        readers, landed_at = self._ahead(now)
        if readers != self._readers:
            self._readers, self._moved = readers, now
        if readers:
            is_stuck = now - self._moved >= STUCK_SECONDS
            return Wait(LOOK_SECONDS_MAX if is_stuck else LOOK_SECONDS, is_stuck)
        return Wait(LOOK_SECONDS, False) if 0 <= now - max(landed_at, self._began) < CALM_SECONDS else None

    def _ahead(self, now: float) -> tuple[list[tuple[int, int]], float]:
        """Those who have something to do on the live log and how far they are, and when something landed there."""
        readers, landed_at = [], 0.0
        with self._duty.engine.store.reading() as tx:
            log = tx.logs.id_of(self._live)
            for row in tx.progress.all() if log else ():
                progress = tx.progress.get(row.id)
                if row.source != self._live or progress.paused or progress.halted or not progress.owner:
                    continue
                if row.kind == "intake":
                    landed_at = progress.settled_at or 0.0
                elif progress.lease_until > now and tx.logs.lag(log, progress.position, 1):
                    readers.append((row.id, progress.position))
        return readers, landed_at
