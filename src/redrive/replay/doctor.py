"""The doctor: what about this store, this machine and these subscriptions will hurt, and what to do about it.

It only looks. Each finding says what it means; `ok` ones are told too, so that one sees what was looked at.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from redrive.clock import Env, short_name
from redrive.errors import Halted, SourceDown, UsageError
from redrive.policy.lease import Lease, State, state_of
from redrive.replay.attention import due_letters, told_due
from redrive.replay.foreign import foreign_writers_in
from redrive.replay.foreign import told as told_writers
from redrive.replay.machine import examine_file, examine_server
from redrive.replay.status import fullest_lanes, is_owned
from redrive.settings import Settings, check_subscriptions
from redrive.store.address import is_postgres
from redrive.store.port import ProgressRow, Store, StoreTx, Subscribed
from redrive.store.scheduled import next_due
from redrive.subscription import Subscription
from redrive.units import show_duration

OK, WARNING, PROBLEM = "ok", "warning", "problem"

UNOWNED_MAX = 86_400.0  # seconds without an owner, with events waiting, after which it looks forgotten
DEAD_AGE_MAX = 7 * 86_400.0
LATE_MAX = 3_600.0  # seconds after which a due letter of an owned subscription should have run
CLOCK_SLACK, CLOCK_MAX = 2.0, 300.0  # seconds that the clock may be behind stored times: noise, nuisance
NEARLY = 0.8  # share of lane_max
COUNT_MAX = 10_000  # letters looked at; where there are more, the number is "at least"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    state: str  # ok, warning or problem
    message: str
    advice: str = ""
    subscription: str | None = None


def examine(store: Store, env: Env, settings: Settings, declared: Collection[str] | None = None) -> Iterator[Finding]:
    """Look at everything; `declared` are the subscriptions of the program, None if nobody gave one."""
    if is_postgres(store.url):
        seen = examine_server(store)
    else:
        seen = examine_file(store, settings.checkpoint_pages)
    takes_writes = True
    for check, state, message, advice in seen:
        yield Finding(check, state, message, advice)
        takes_writes &= not (state == PROBLEM and check in ("free space", "writing"))
    with store.reading() as tx:
        yield _clock(tx, env.clock.now())
        rows = [(row, tx.progress.get(row.id)) for row in tx.progress.all()]
        yield from _settings(settings, declared, [row.name for row, _ in rows])
        found = [*_subscriptions(tx, env, rows, declared), *_letters(tx, env, settings, rows)]
        if writers := foreign_writers_in(tx):
            advice = "drop them, or make sure that they only read"
            found.append(Finding("own tables", WARNING, told_writers(writers), advice))
        found += _scheduled(tx, env.clock.now())
    yield from found
    if not any(one.subscription for one in found):
        count = f"{len(rows)} subscriptions" if len(rows) != 1 else "1 subscription"
        told = f"{count}: none is halted, paused, forgotten or held up"
        if takes_writes:
            yield Finding("subscriptions", OK, told)
        else:
            advice = "look at the logs of the workers: what halts them cannot be written down"
            yield Finding("subscriptions", WARNING, f"{told}, as far as the store could be written to", advice)


def examine_brokers(subscriptions: Iterable[Subscription]) -> Iterator[Finding]:
    """Ask the brokers that a program reads from."""
    for subscription in subscriptions:
        source = subscription.origin
        if source is None:
            continue
        try:
            found = source.examine()
        except Halted as error:
            yield Finding("broker", PROBLEM, str(error), "correct the program, or the rights it has", source.log)
            continue
        except SourceDown as error:
            yield Finding("broker", PROBLEM, str(error), "start it, or correct the address in the program", source.log)
            continue
        for text in found:
            yield Finding("broker", WARNING, f"{source.log}: {text}", "", source.log)
        if not found:
            yield Finding("broker", OK, f"{source.log} answers, and warns of nothing")


def _clock(tx: StoreTx, now: float) -> Finding:
    newest = tx.sql.value("doctor_newest") or 0.0
    behind = newest - now
    if behind <= CLOCK_SLACK:
        return Finding("clock", OK, "it is not behind the times in the store")
    return Finding(
        "clock", PROBLEM if behind > CLOCK_MAX else WARNING,
        f"it is {show_duration(behind)} behind a time in the store: it was set back, or another machine is ahead",
        "set the clock (NTP); retries that were due start their pause again, nothing is lost",
    )  # fmt: skip


def _settings(settings: Settings, declared: Collection[str] | None, stored: list[str]) -> Iterator[Finding]:
    known = sorted({*stored, *(declared or ())})
    try:
        check_subscriptions(settings, known if declared is None else declared)
    except UsageError as error:
        yield Finding("settings", PROBLEM if declared is not None else WARNING, str(error), "correct or remove it")
    else:
        yield Finding("settings", OK, "every option is known")


def _subscriptions(
    tx: StoreTx, env: Env, rows: list[tuple[Subscribed, ProgressRow]], declared: Collection[str] | None
) -> Iterator[Finding]:
    now = env.clock.now()
    for row, progress in rows:
        name = row.name
        lease = Lease(progress.owner, progress.epoch, progress.lease_until, bool(progress.unclean), progress.boot or "")
        dead = bool(lease.owner) and env.owner_is_dead(lease.owner or "")
        held = state_of(lease, now=now, owner_is_dead=dead)
        if declared is not None and name not in declared:
            yield Finding(
                "orphan", WARNING, f"{name} is in the store and not in the program", f"if it was renamed: "
                f"redrive rename {name} NEW; if it was removed: redrive forget {name} --reason TEXT; it holds back "
                f"`prune --events {row.source}` as long as it is here", name,
            )  # fmt: skip
        if progress.halted is not None:
            yield Finding(
                "halted", PROBLEM, f"{name} is halted: {progress.halted}",
                "remove the cause; a running worker tries again by itself", name,
            )  # fmt: skip
        if progress.paused:
            advice = f"redrive resume {name}, when it may go on"
            yield Finding("paused", WARNING, f"{name} is paused: nothing runs until it is resumed", advice, name)
        elif held is State.EXPIRED:
            why = "is dead" if dead else f"has been silent for {show_duration(max(0.0, now - progress.lease_until))}"
            look = "" if dead else "if that process lives, it hangs or cannot write to the store: look at its log; or "
            yield Finding(
                "lease", WARNING, f"{name}: its owner {short_name(lease.owner or '')} {why}",
                f"{look}start a worker: it takes over at once", name,
            )  # fmt: skip
        elif held is State.FREE:
            yield from _unowned(tx, row, progress, now)


def _unowned(tx: StoreTx, row: Subscribed, progress: ProgressRow, now: float) -> Iterator[Finding]:
    log = tx.logs.id_of(row.source)
    seen = progress.lease_set_at or float(tx.sql.value("doctor_created", {"subscription": row.id}))
    if now - seen > UNOWNED_MAX and log and tx.logs.lag(log, progress.position, 1):
        yield Finding(
            "unowned", WARNING, f"{row.name}: nobody has run it for {show_duration(now - seen)}, and events wait",
            "start a worker; if its function is gone, it stays behind and holds back pruning", row.name,
        )  # fmt: skip


def _letters(
    tx: StoreTx, env: Env, settings: Settings, rows: list[tuple[Subscribed, ProgressRow]]
) -> Iterator[Finding]:
    now, most = env.clock.now(), settings.lane_max
    for one in fullest_lanes(tx, math.ceil(most * NEARLY)):
        yield Finding("lane", PROBLEM if one.letters >= most else WARNING, one.told(most), one.remedy, one.subscription)
    for row, progress in rows:
        limits = {"subscription": row.id, "limit": COUNT_MAX}
        old, seen = tx.sql.one("doctor_old_dead", {**limits, "before": now - DEAD_AGE_MAX}) or (0, 0)
        if old:
            yield Finding(
                "dead letters", WARNING,
                f"{row.name}: {_many(old, seen)} dead for more than {show_duration(DEAD_AGE_MAX)}",
                f"redrive dlq -s {row.name}: repair, replay or discard them", row.name,
            )  # fmt: skip
        late, seen = tx.sql.one("doctor_late", {**limits, "before": now - LATE_MAX}) or (0, 0)
        if late and progress.owner and not progress.paused and progress.halted is None:
            yield Finding(
                "late letters", WARNING, f"{row.name}: {_many(late, seen)} due for more than {show_duration(LATE_MAX)}",
                "look at its worker: is it overloaded, or does a call hang?", row.name,
            )  # fmt: skip
        due, age = due_letters(tx, row.id, now)
        if due and not is_owned(progress, env) and not progress.paused:
            yield Finding("due letters", WARNING, told_due(row.name, due, age), "start a worker", row.name)
        inflight = [one for member in tx.progress.members(row.id)
                    for one in tx.sql.all("inflight_all", {"member": member.member})]  # fmt: skip
        for position, charges, lost in inflight:
            if charges:
                yield Finding(
                    "crashes", WARNING, f"{row.name}: the event at position {position} was alone in flight when its "
                    f"worker died, {charges - lost} times, or lost its connection, {lost} times",
                    f"after {settings.crash_charges_max} it is buried by itself", row.name,
                )  # fmt: skip


def _scheduled(tx: StoreTx, now: float) -> Iterator[Finding]:
    due_at, _ = next_due(tx.sql, now)
    if due_at is not None and now - due_at > LATE_MAX:
        yield Finding(
            "scheduled", WARNING, f"a scheduled event has been due for {show_duration(now - due_at)}",
            "start a worker: any process that runs the app appends what is due; `redrive scheduled` lists",
        )  # fmt: skip


def _many(count: int, seen: int) -> str:
    """How many letters; only the first were looked at."""
    number = f"at least {count:,}" if seen >= COUNT_MAX else f"{count:,}"
    return f"{number} letter{' is' if count == 1 else 's are'}"
