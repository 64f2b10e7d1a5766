"""Where every subscription stands, as the store knows it: also while no worker runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from redrive.clock import Env, short_name
from redrive.policy.declaration import Reservation
from redrive.policy.lease import Lease, State, state_of
from redrive.replay.deed import WITHOUT_KEYS
from redrive.store import journal, landed
from redrive.store.declared import version_of
from redrive.store.holds import holds_of
from redrive.store.port import ProgressRow, Store, StoreTx, Subscribed


class NotRun(NamedTuple):
    """A worker that has a subscription and may not run it: it is declared otherwise, or another one rebuilds it."""

    worker: str  # host:pid
    reason: str


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """One subscription at one moment. Times are seconds since 1970."""

    subscription: str
    kind: str
    source: str
    order: str
    position: int
    lag_events: int  # events above the progress and not settled, asked for or not; of a mirror, changes of letters
    lag_seconds: float  # age of the oldest of them
    oldest_seconds: float  # age of the oldest event that is not applied: pending, or held in an open letter
    scheduled: int  # events that are appended to its source later
    applied: int
    ignored: int
    retrying: int
    waiting: int  # letters behind another of their lane: nothing is wrong with them
    dead: int
    holds: int  # keys, or prefixes of keys, that an operator holds here
    owner: str | None  # who holds a lease that still counts
    lease_until: float | None
    silent_seconds: float | None  # since its owner's last sign of life, if its lease has lapsed and it may still live
    silent_owner: str | None
    paused: bool
    halted: str | None
    rebuilding_until: int | None  # the position it had before its last reset, while it is on the way back there
    last_id: str | None
    last_type: str | None
    last_time: float | None
    settled_at: float | None
    version: str | None  # of the function, as it was declared last
    reserved_by: str | None  # the process that rebuilds it: other workers wait
    not_run_by: tuple[NotRun, ...] = ()  # living workers that may not run it, and why

    @property
    def state(self) -> str:
        """The one word for it."""
        if self.paused:
            return "paused"
        if self.halted is not None:
            return "halted"
        if self.owner is None:
            if self.silent_owner is not None:
                return "silent"
            return "standby" if self.not_run_by else "stopped"
        return "rebuilding" if self.rebuilding_until is not None else "running"


class FullLane(NamedTuple):
    """A lane with so many letters, and the subscription that it belongs to."""

    subscription: str
    lane: str
    letters: int

    def told(self, lane_max: int) -> str:
        """In words, beside what it may hold."""
        shown = self.lane if len(self.lane) <= LANE_SHOWN else self.lane[:LANE_SHOWN] + "…"
        held = f"{self.subscription}: lane {shown!r} holds {self.letters:,} letters of {lane_max:,}"
        return f"{held}: intake has stopped" if self.letters >= lane_max else held

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return f"redrive dlq -s {self.subscription}: repair or discard its head"


LANE_SHOWN = 60  # characters of a key
LAG_MAX = 1_000_000  # events counted; where there are more, the number is "at least"


def status(store: Store, env: Env) -> list[SubscriptionStatus]:
    """All subscriptions, by name, in one snapshot."""
    with store.reading() as tx:
        return status_in(tx, env)


def status_in(tx: StoreTx, env: Env, lag_max: int = LAG_MAX) -> list[SubscriptionStatus]:
    """The same in a snapshot of the caller's."""
    waiting = {name: count for name, count, *_ in tx.sql.all("scheduled_backlog", {"now": env.clock.now()})}
    not_run = _not_run(tx, env)
    return [
        replace(
            _of(tx, row, tx.progress.get(row.id), env, waiting, lag_max), not_run_by=tuple(not_run.get(row.name, ()))
        )
        for row in tx.progress.all()
    ]


def fullest_lanes(tx: StoreTx, least: int) -> list[FullLane]:
    """Lanes with at least so many letters, the fullest first."""
    names = {row.id: row.name for row in tx.progress.all()}
    return [
        FullLane(names[subscription], lane, count)
        for subscription, lane, count in tx.sql.all("doctor_lanes", {"least": least})
    ]


def is_owned(progress: ProgressRow, env: Env) -> bool:
    """Does somebody hold a lease that still counts?"""
    return lease_state(progress, env)[0] is State.HELD


def lease_state(progress: ProgressRow, env: Env) -> tuple[State, bool]:
    """What the lease is worth now, and whether its owner is known to be dead."""
    lease = Lease(progress.owner, progress.epoch, progress.lease_until, bool(progress.unclean), progress.boot or "")
    dead = bool(lease.owner) and env.owner_is_dead(lease.owner or "")
    return state_of(lease, now=env.clock.now(), owner_is_dead=dead), dead


def _of(
    tx: StoreTx, row: Subscribed, progress: ProgressRow, env: Env, waiting: Mapping[str, int], lag_max: int
) -> SubscriptionStatus:
    now = env.clock.now()
    if row.kind == "mirror":  # it follows the journal of letters
        progress = progress._replace(position=int(landed.positions(tx.sql, row.id).get(0, "0")))
        lag, oldest = journal.lag(tx.sql, progress.position, lag_max)
    elif row.kind == "intake":  # what it lands is settled with that; the rest of the log was appended by others
        lag, oldest = 0, None
    else:
        lag, oldest = _log_lag(tx, row, progress, lag_max)
    letters = tx.letters.counts(row.id)
    held = _oldest_held(tx, row) if any(letters.get(state) for state in ("retrying", "waiting", "dead")) else None
    unapplied = [at for at in (oldest, held) if at is not None]
    held_by, dead = lease_state(progress, env)
    owned, silent = held_by is State.HELD, held_by is State.EXPIRED and not dead
    version, reservation = version_of(tx, row.id)
    return SubscriptionStatus(
        subscription=row.name, kind=row.kind, source=row.source, order=row.ordering, position=progress.position,
        lag_events=max(0, lag), lag_seconds=0.0 if oldest is None else max(0.0, now - oldest),
        oldest_seconds=max(0.0, now - min(unapplied)) if unapplied else 0.0, scheduled=waiting.get(row.source, 0),
        applied=progress.applied + letters.get("applied", 0), ignored=progress.ignored,
        retrying=letters.get("retrying", 0), waiting=letters.get("waiting", 0), dead=letters.get("dead", 0),
        holds=_holds(tx, row, now),
        owner=progress.owner if owned else None, lease_until=progress.lease_until if owned else None,
        silent_seconds=max(0.0, now - min(progress.lease_set_at, progress.lease_until)) if silent else None,
        silent_owner=progress.owner if silent else None,
        paused=bool(progress.paused), halted=progress.halted,
        rebuilding_until=progress.quiet_until if progress.position < progress.quiet_until else None,
        last_id=progress.anchor, last_type=progress.last_type,
        last_time=None if progress.last_time_us is None else progress.last_time_us / 1e6,
        settled_at=progress.settled_at, version=version,
        reserved_by=reservation.owner if _is_reserved(reservation, env) else None,
    )  # fmt: skip


def _holds(tx: StoreTx, row: Subscribed, now: float) -> int:
    return 0 if row.kind in WITHOUT_KEYS else sum(hold.ends_at(now) > now for hold in holds_of(tx.sql, row.id))


def _is_reserved(reservation: Reservation, env: Env) -> bool:
    dead = reservation.owner is not None and env.owner_is_dead(reservation.owner)
    return reservation.holds(me="", now=env.clock.now(), owner_is_dead=dead)


def _not_run(tx: StoreTx, env: Env) -> dict[str, list[NotRun]]:
    """By subscription: the living workers that may not run it, and why."""
    found: dict[str, list[NotRun]] = {}
    for owner, *_, waits in tx.sql.all("workers_all"):
        for name, reason in json.loads(waits).items():
            if not env.owner_is_dead(owner):
                found.setdefault(name, []).append(NotRun(short_name(owner), reason))
    return found


def _log_lag(tx: StoreTx, row: Subscribed, progress: ProgressRow, limit: int) -> tuple[int, float | None]:
    """How many events are not settled, and the time of the oldest."""
    log = tx.logs.id_of(row.source)
    lag = tx.logs.lag(log, progress.position, limit) if log else 0
    lag -= len(tx.progress.done.of(row.id, progress.position))
    oldest = tx.logs.oldest_above(log, progress.position) if lag > 0 else None
    return lag, None if oldest is None else oldest / 1e6


def _oldest_held(tx: StoreTx, row: Subscribed) -> float | None:
    """The time of the event that has been held in an open letter longest; when it was held, if the event is gone."""
    log = tx.logs.id_of(row.source)
    times = []
    for position, held_at in tx.sql.all("letter_open_first", {"subscription": row.id}):
        time_us = tx.logs.oldest_above(log, position - 1) if log else None
        times.append(held_at if time_us is None else min(held_at, time_us / 1e6))
    return min(times, default=None)
