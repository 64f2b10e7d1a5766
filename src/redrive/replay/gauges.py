"""What a scrape finds in the store: lag, letters, lanes, owners. In one snapshot, bounded, and without writing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from redrive.clock import Env
from redrive.errors import BugError, StoreError
from redrive.observe import metrics as m
from redrive.observe.prometheus import LABELS_MAX, Sample
from redrive.observe.signals import Signals
from redrive.policy.breaker import State
from redrive.policy.keys import bounds
from redrive.policy.letters import shown_state
from redrive.replay.status import status_in
from redrive.replay.workers import workers_in
from redrive.store.port import Store, StoreTx

BREAKER_STATES = {State.CLOSED: 0.0, State.PROBING: 1.0, State.OPEN: 2.0}
COUNT_MAX = 100_000  # events and lanes counted per subscription: seven milliseconds each, and as alarming as more

DUE_MAX = 10_000  # lanes looked at for a head that is due: each has to be read

HELD_MAX = 10_000  # open letters looked at for the oldest of a state: each has to be read

log = logging.getLogger("redrive")


def read_gauges(
    store: Callable[[], Store],
    env: Env,
    signals: Signals,
    lease: float,
    *,
    halted_here: Mapping[str, str],
    breakers: Iterable[str],
) -> list[Sample]:
    """Everything that is read when scraped.

    `halted_here`: what this process knows and could not write down. `breakers`: those that the program declares.
    """
    here = halted_here
    dropped: Sample = (m.SIGNALS_DROPPED, (), float(signals.dropped))
    try:
        with store().reading() as tx:
            found = [*_subscriptions(tx, env, here), *_letters(tx, env), *_breakers(tx, breakers)]
            found += [*_logs(tx, env), *_store(tx, env, lease)]
    except (StoreError, BugError) as error:
        log.warning("a scrape found no store: %s", error)
        halts: list[Sample] = [(m.HALTED, (name,), 1.0) for name in here]
        return [(m.STORE_UP, (), 0.0), dropped, *halts]
    return [(m.STORE_UP, (), 1.0), dropped, *found]


def _subscriptions(tx: StoreTx, env: Env, halted_here: Mapping[str, str]) -> Iterator[Sample]:
    for one in status_in(tx, env, COUNT_MAX):
        name = (one.subscription,)
        yield m.LAG_EVENTS, name, float(one.lag_events)
        yield m.LAG_SECONDS, name, one.lag_seconds
        yield m.HALTED, name, float(one.halted is not None or one.subscription in halted_here)
        yield m.PAUSED, name, float(one.paused)
        yield m.OWNED, name, float(one.owner is not None)
        yield m.REBUILDING, name, float(one.rebuilding_until is not None)
        yield m.SETTLED_AT, name, one.settled_at or 0.0


def _letters(tx: StoreTx, env: Env) -> Iterator[Sample]:
    now = env.clock.now()
    for name, state, reason, count in tx.sql.all("metrics_letters"):
        yield m.LETTERS, (name, shown_state(state, reason), reason), float(count)
    for name, state, since in tx.sql.all("metrics_letters_held", {"limit": HELD_MAX}):
        yield m.LETTER_AGE, (name, state), 0.0 if since is None else max(0.0, now - since)
    for row in tx.progress.all():
        due = tx.sql.value("metrics_due", {"subscription": row.id, "limit": DUE_MAX, "now": now})
        yield m.LETTERS_DUE, (row.name,), float(due)
    for name, lanes, fullest in tx.sql.all("metrics_lanes", {"limit": COUNT_MAX}):
        yield m.PARKED_LANES, (name,), float(lanes)
        yield m.FULLEST_LANE, (name,), float(fullest or 0)


def _breakers(tx: StoreTx, declared: Iterable[str]) -> Iterator[Sample]:
    for name in declared:
        label = name.removesuffix("/")
        yield m.BREAKER_STATE, (label,), BREAKER_STATES[tx.guards.breaker(name).state]
        counts: dict[str, int] = {}
        if name.endswith("/"):
            low, high = bounds(name)
            counts.update(tx.sql.all("breakers_count", {"low": low, "high": high}))
        for state in (State.OPEN, State.PROBING):
            yield m.BREAKER_KEYS, (label, str(state)), float(counts.get(state, 0))


def _logs(tx: StoreTx, env: Env) -> Iterator[Sample]:
    now = env.clock.now()
    for number, name in islice(tx.sql.all("log_all"), LABELS_MAX):
        oldest = tx.logs.oldest_above(number, 0)
        yield m.LOG_POSITION, (name,), float(tx.logs.last(number))
        yield m.LOG_AGE, (name,), 0.0 if oldest is None else max(0.0, now - oldest / 1e6)


def _store(tx: StoreTx, env: Env, lease: float) -> Iterator[Sample]:
    yield m.STORE_BYTES, (), float(tx.sql.value("metrics_bytes"))
    due_at = (tx.sql.one("scheduled_next") or (None,))[0]
    yield m.SCHEDULED_LATE, (), 0.0 if due_at is None else max(0.0, env.clock.now() - due_at)
    replayed = tx.sql.one("metrics_replayed") or (0, 0, 0, 0)
    for result, count in zip(("applied", "failed", "skipped", "waiting"), replayed, strict=True):
        yield m.REPLAYED, (result,), float(count)
    states = [worker.state for worker in workers_in(tx, env, lease)]
    for state in ("working", "standby", "silent", "dead"):
        yield m.WORKERS, (state,), float(states.count(state))
