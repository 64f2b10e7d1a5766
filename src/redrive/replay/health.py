"""Health, honestly: what is wrong, in words, and never green while something is.

Three questions. *Live*: does this process still turn, or should it be restarted? *Ready*: does it work, or stand
by, on a store it can read? *Healthy*: is there nothing that somebody has to look at?
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from redrive.clock import Env
from redrive.errors import BugError, StoreError, UsageError
from redrive.policy.halting import HALTED
from redrive.replay.ledger import Verdict
from redrive.replay.status import SubscriptionStatus, status_in
from redrive.store.port import Store

Ready = Literal["ready", "standby", "stopped", "broken"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    message: str
    subscription: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The answers, and why."""

    live: bool
    ready: Ready
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Is there nothing to look at?"""
        return self.live and all(check.ok for check in self.checks)

    @property
    def is_ready(self) -> bool:
        """May traffic be sent here, and may a deployment go on?"""
        return self.live and self.ready in ("ready", "standby")

    def shown(self) -> dict[str, Any]:
        """As JSON."""
        checks = [
            {"check": one.name, "ok": one.ok, "message": one.message}
            | ({} if one.subscription is None else {"subscription": one.subscription})
            for one in self.checks
        ]
        return {"healthy": self.healthy, "live": self.live, "ready": self.ready, "checks": checks}


@dataclass(frozen=True, slots=True)
class Process:
    """What a process knows of itself: nothing of this is in the store."""

    turns: bool | None  # does its event loop turn? None: it runs no subscriptions
    posts: Collection[str] = ()  # what it runs
    waiting: Mapping[str, str] | None = None  # post -> why it does not run here
    dropped: int = 0  # signals that no listener got

    @property
    def halted(self) -> dict[str, str]:
        """Subscriptions that stand still here, and why."""
        waiting = dict(self.waiting or {})
        return {
            post.partition("/")[0]: why.removeprefix(HALTED) for post, why in waiting.items() if why.startswith(HALTED)
        }


def examine_health(
    store: Store | StoreError | UsageError,
    env: Env,
    process: Process,
    declared: Collection[str],
    ledger: list[Verdict] | None,
) -> Health:
    """Look at everything. `store` may be why there is none; `declared` none: whatever the store knows."""
    checks, statuses = [check_loop(process), _signals(process)], None
    try:
        if isinstance(store, Exception):
            raise store
        with store.reading() as tx:
            statuses = [one for one in status_in(tx, env, 1) if not declared or one.subscription in declared]
        checks.append(Check("store", True, "it can be read"))
    except BugError as error:
        checks.append(Check("ledger", False, f"the store contradicts itself: {error}; see `redrive verify`"))
    except (StoreError, UsageError) as error:
        checks.append(Check("store", False, f"it cannot be read: {error}"))
    checks += _subscriptions(statuses or [], process)
    checks += _ledger(ledger)
    readable = statuses is not None
    return Health(process.turns is not False, _ready(process, readable), tuple(checks))


def check_loop(process: Process) -> Check:
    """Does the process still do anything?"""
    if process.turns is None:
        return Check("worker", True, "this process runs no subscriptions")
    if process.turns:
        return Check("worker", True, "its event loop turns")
    return Check(
        "worker", False, "its event loop does not turn: an async function blocks it; "
        "make it a plain def, or await what it waits for",
    )  # fmt: skip


def _signals(process: Process) -> Check:
    if not process.dropped:
        return Check("signals", True, "every listener got all of them")
    return Check(
        "signals", False, f"{process.dropped:,} batches of signals were dropped since this process started, because a "
        "listener is too slow: metrics and log lines are incomplete; no event is concerned",
    )  # fmt: skip


def _subscriptions(statuses: list[SubscriptionStatus], process: Process) -> Iterator[Check]:
    halted = {one.subscription: one.halted for one in statuses if one.halted is not None} | process.halted
    for name, why in sorted(halted.items()):
        yield Check("halted", False, f"it stopped by itself and tries again: {why}", name)
    for one in statuses:
        if one.paused:
            yield Check("paused", True, "an operator paused it; `redrive resume` lets it go on", one.subscription)


def _ledger(verdicts: list[Verdict] | None) -> Iterator[Check]:
    if verdicts is None:
        return
    broken = [one for one in verdicts if not one.sound]
    for one in broken:
        said = "; ".join(violation.message for violation in one.violations)
        yield Check(
            "ledger", False, f"not every event is accounted for: {said}; see `redrive verify`", one.subscription
        )
    if not broken:
        yield Check("ledger", True, "every event is accounted for, once")


def _ready(process: Process, readable: bool) -> Ready:
    if process.turns is None:
        return "stopped"
    halted = process.halted
    names = {post.partition("/")[0] for post in process.posts}
    if not readable or (names and names <= set(halted)):
        return "broken"
    waiting = process.waiting or {}
    standing_by = bool(process.posts) and all(post in waiting for post in process.posts)
    return "standby" if standing_by else "ready"
