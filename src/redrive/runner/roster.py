"""The roster: which workers are there, what each of them runs, and how partitions are shared out among them.

Every worker writes down that it lives, reads who else does, and draws the same conclusions (`policy/partitions`). A
subscription with one partition is nobody's fair share: who comes first has it, the others stand by.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from redrive.policy.partitions import may_want, quotas, surplus
from redrive.runner.duty import Engine
from redrive.store.port import StoreTx, Subscribed
from redrive.store.progress import partition_of
from redrive.subscription import Subscription
from redrive.version import VERSION

NOTHING: Mapping[str, str] = {}
FORGET_AFTER = 10.0  # lease times; until then `redrive workers` shows who has fallen silent


class Roster:
    """One worker's view of all of them, as of the last beat."""

    def __init__(self, engine: Engine, work: Mapping[str, tuple[Subscription, Subscribed]]) -> None:
        self._engine = engine
        self._shared = {name: row for name, (subscription, row) in work.items() if subscription.partitions > 1}
        self._started_at = engine.env.clock.now()
        self._quota: dict[str, dict[str, int]] = {}
        self._owners: dict[str, dict[int, str | None]] = {}
        self._run_elsewhere: set[str] = set()

    @property
    def interval(self) -> float:
        """Seconds between two beats: two may fail before anybody thinks us dead."""
        return self._engine.settings.lease / 3

    def beat(self, runs: Mapping[str, int], waits: Mapping[str, str] = NOTHING) -> None:
        """Say that we live and run these subscriptions, in so many partitions, and look who else does.

        `waits`: subscriptions that we may not run, and why. Runs where writing happens.
        """
        env, lease = self._engine.env, self._engine.settings.lease
        with self._engine.store.transaction() as tx:
            now = tx.progress.now(env.clock)
            mine = {
                "owner": env.owner, "version": VERSION, "started_at": self._started_at, "now": now,
                "runs": json.dumps(dict(sorted(runs.items()))), "waits": json.dumps(dict(sorted(waits.items()))),
            }  # fmt: skip
            tx.sql.run("worker_beat", mine)
            tx.sql.run("workers_forget", {"before": now - FORGET_AFTER * lease})
            self._look(tx, now - lease)

    def leave(self) -> None:
        """We stop: the others need not wait until they miss us."""
        with self._engine.store.transaction() as tx:
            tx.sql.run("worker_leave", {"owner": self._engine.env.owner})
            tx.sql.run("reservations_end", {"owner": self._engine.env.owner})

    def _look(self, tx: StoreTx, since: float) -> None:
        env = self._engine.env
        live = {
            owner: json.loads(runs)
            for owner, _, _, seen_at, runs, _ in tx.sql.all("workers_all")
            if owner == env.owner or (seen_at > since and not env.owner_is_dead(owner))
        }
        self._run_elsewhere = {name for owner, runs in live.items() if owner != env.owner for name in runs}
        for name, row in self._shared.items():
            self._owners[name] = {partition_of(one.member): one.owner for one in tx.progress.members(row.id)}
            count = len(self._owners[name])
            runners = [owner for owner, runs in live.items() if runs.get(name) == count]
            self._quota[name] = quotas(count, runners, name)

    def may_take(self, name: str, owned: Collection[int]) -> bool:
        """May we take one more partition, now that we own these? Who declares another number of them may try."""
        me = self._engine.env.owner
        if me not in self._quota.get(name, {}):
            return True
        return may_want(self._with(name, owned), self._quota[name], me)

    def is_run_elsewhere(self, name: str) -> bool:
        """Does another living process run this subscription, or wait for its lease?"""
        return name in self._run_elsewhere

    def surplus(self, name: str, owned: Mapping[int, bool]) -> list[int]:
        """Which of these partitions others should have; with each, whether it is stuck."""
        stuck = [partition for partition, is_stuck in owned.items() if is_stuck]
        return surplus(self._with(name, owned), self._quota.get(name, {}), self._engine.env.owner, stuck)

    @property
    def shared(self) -> Collection[str]:
        """The subscriptions that have several partitions."""
        return self._shared.keys()

    def _with(self, name: str, owned: Collection[int]) -> dict[int, str | None]:
        """The owners as of the last beat, except that we know better about ourselves."""
        me = self._engine.env.owner
        seen = self._owners.get(name, {})
        others = {partition: None if owner == me else owner for partition, owner in seen.items()}
        return others | dict.fromkeys(owned, me)
