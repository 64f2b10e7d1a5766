"""What needs an operator now: the short answer for monitoring, and the lines below `redrive status`.

It only reads, and every number comes from a counter or from an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from redrive.clock import Env, short_name
from redrive.policy.holds import Holds
from redrive.replay.machine import FREE_OUT, room_of, size
from redrive.replay.status import SubscriptionStatus
from redrive.store.holds import holds_of
from redrive.store.port import Store, StoreTx
from redrive.units import show_duration

DUE_MAX = 60.0  # seconds: a deployment takes less time between two workers
LOOKED_AT_MAX = 10_000  # retrying letters of a subscription that are looked at for a due one


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that an operator has to look at."""

    check: str  # dead letters, halted, silent, standby, due letters, or free space
    message: str
    advice: str
    subscription: str | None = None
    count: int | None = None  # letters


def attention(store: Store, env: Env, statuses: Sequence[SubscriptionStatus]) -> list[Need]:
    """Everything that needs an operator, the store first, then by subscription."""
    with store.reading() as tx:
        found = [need for one in statuses for need in needs_of(tx, env, one)]
    return [*no_room(store.url), *found]


def needs_of(tx: StoreTx, env: Env, one: SubscriptionStatus) -> Iterator[Need]:
    """What one subscription needs."""
    name = one.subscription
    if one.halted is not None:
        yield Need("halted", f"{name} is halted: {one.halted}", "remove the cause; a running worker tries again", name)
    elif one.silent_seconds is not None and not one.paused:
        yield Need(
            "silent", f"{name}: its owner {short_name(one.silent_owner or '')} has shown no sign of life for "
            f"{show_duration(round(one.silent_seconds))}: it cannot write to the store, hangs, or is gone",
            "look at the log of that process; if it is gone, start a worker: it takes over at once", name,
        )  # fmt: skip
    elif one.owner is None and one.not_run_by and not one.paused:
        worker, reason = one.not_run_by[0]
        advice = "start a worker with the program that the store knows"
        yield Need("standby", f"{name}: no worker may run it; {worker} says: {reason}", advice, name)
    if one.dead:
        yield dead_letters(name, one.dead)
    if one.owner is None and not one.paused and one.retrying + one.waiting:
        row = tx.progress.find(name)
        due, age = (0, 0.0) if row is None else due_letters(tx, row.id, env.clock.now())
        if due:
            yield Need("due letters", told_due(name, due, age), "start a worker", name, due)


def dead_letters(name: str, count: int) -> Need:
    """Dead letters of a subscription."""
    noun = "letter" if count == 1 else "letters"
    return Need("dead letters", f"{name}: {count:,} dead {noun}", f"redrive dlq -s {name}", name, count)


def told_due(name: str, due: int, age: float) -> str:
    """Letters without a worker, in words."""
    told = "1 letter is" if due == 1 else f"{due:,} letters are"
    return f"{name}: {told} due, the first for {show_duration(round(age))}, and no worker runs it"


def due_letters(tx: StoreTx, subscription: int, now: float) -> tuple[int, float]:
    """How many letters should have run more than a minute ago, and for how many seconds the first of them is due.

    No worker would run a letter whose key is held.
    """
    values = {"subscription": subscription, "before": now - DUE_MAX, "limit": LOOKED_AT_MAX}
    if holds := Holds(holds_of(tx.sql, subscription), now=now):
        due = [due_at for key, due_at in tx.sql.all("attention_due_keys", values) if holds.until(key, now) is None]
        return len(due), now - min(due, default=now)
    count, first = tx.sql.one("attention_due", values) or (0, None)
    return int(count or 0), 0.0 if first is None else now - first


def no_room(url: str) -> Iterator[Need]:
    """A file system that is full: what cannot be written cannot be told in the store either."""
    room = room_of(url)
    if room is not None and room.free < FREE_OUT:
        yield Need(
            "free space", f"{size(room.free)} of {size(room.total)} are free where the store is: what cannot be "
            "written halts, and a halt cannot be written either",
            "make room now; nothing is lost, and everything goes on by itself",
        )  # fmt: skip
