"""Who works on this store: every process that runs subscriptions, and what each of them owns."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from redrive.clock import Env, short_name
from redrive.store.port import Store, StoreTx
from redrive.store.progress import partition_of


@dataclass(frozen=True, slots=True)
class Owned:
    """A partition that a worker holds. Times are seconds since 1970."""

    subscription: str
    partition: int
    partitions: int
    since: float | None
    lease_until: float
    position: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Worker:
    """One process at one moment; one that only its leases are left of has neither version nor times."""

    owner: str
    name: str  # host:pid
    version: str
    started_at: float | None
    seen_at: float | None
    state: str  # working, standby (owns nothing), silent (late with its sign of life), dead
    runs: tuple[str, ...]
    owns: tuple[Owned, ...]
    waits: dict[str, str] = field(default_factory=dict)  # subscriptions that it may not run, and why


def workers(store: Store, env: Env, lease: float) -> list[Worker]:
    """All of them, the one that started first first, in one snapshot."""
    with store.reading() as tx:
        return workers_in(tx, env, lease)


def workers_in(tx: StoreTx, env: Env, lease: float) -> list[Worker]:
    """The same in a snapshot of the caller's."""
    owned = _owned(tx)
    known = tx.sql.all("workers_all")
    since = env.clock.now() - lease
    found = [
        Worker(
            owner, short_name(owner), version, started_at, seen_at,
            _state(env, owner, seen_at > since, owner in owned), tuple(json.loads(runs)), tuple(owned.pop(owner, ())),
            json.loads(waits),
        )
        for owner, version, started_at, seen_at, runs, waits in known
    ]  # fmt: skip
    for owner, left in owned.items():  # its row was dropped long ago, and nobody has taken over since
        state = "dead" if env.owner_is_dead(owner) else "silent"
        found.append(Worker(owner, short_name(owner), "", None, None, state, (), tuple(left)))
    return found


def _owned(tx: StoreTx) -> dict[str, list[Owned]]:
    owned: dict[str, list[Owned]] = {}
    for name, member, owner, since, until, position, epoch, count in tx.sql.all("members_owned"):
        owned.setdefault(owner, []).append(Owned(name, partition_of(member), count, since, until, position, epoch))
    return owned


def _state(env: Env, owner: str, was_seen: bool, owns: bool) -> str:
    if env.owner_is_dead(owner):
        return "dead"
    if not was_seen:
        return "silent"
    return "working" if owns else "standby"
