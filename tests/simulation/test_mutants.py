"""Mutants: break a rule of the protocol on purpose, and the simulator must notice within so many seeds.

The rules are numbered as in `docs/simulation.md`. A mutant that survives means that the simulator has become
blind, or that the rule has become unnecessary; both are worth knowing. The run prints what each one took.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

import redrive.context
import redrive.policy.decide
import redrive.policy.lanes
import redrive.runner.call
import redrive.runner.controls
import redrive.runner.enroll
import redrive.runner.handle
import redrive.runner.leases
import redrive.runner.scheduling
import redrive.runner.settle
import redrive.testing.sim.disk
import redrive.testing.sim.workload
from redrive.context import Emission
from redrive.errors import CommitUnknown, StoreError
from redrive.policy import outcome as out
from redrive.policy.lanes import Head, Lanes
from redrive.policy.lease import Lease
from redrive.policy.partitions import Share
from redrive.policy.progress import Plan, Window
from redrive.runner.bridge import Bridge
from redrive.runner.desk import Desk
from redrive.runner.duty import Duty, Engine, Work
from redrive.runner.handle import Group, Handling, Round
from redrive.runner.holds import KeyHolds
from redrive.runner.leases import lease_of
from redrive.runner.open_letters import load_lanes
from redrive.runner.scheduling import Look
from redrive.runner.settle import Settling, tell
from redrive.runner.staff import Staff
from redrive.store.changes import Changed, Changes
from redrive.store.declared import stored_of
from redrive.store.done import Done
from redrive.store.keyed import Keyed
from redrive.store.letters import Letters
from redrive.store.port import StoreTx, Subscribed
from redrive.store.progress import Progress, member_of
from redrive.store.scheduled import take_due
from redrive.store.sqlite.store import SqliteStore
from redrive.store.sqlite.transaction import queries
from redrive.subscription import Subscription
from redrive.testing.sim.options import Faults
from redrive.testing.sim.process import SimStore
from redrive.testing.simulator import simulate

SEEDS_MAX = 2_000
OURS = ("AttributeError", "NameError", "TypeError", "ImportError")  # errors of the mutant itself prove nothing
FLAKY_DISK = Faults(error=0.1, unknown=0.05, crash=0.004, chaos=0.3)
# A lease that runs out while calls are long and commits fail, and then three failures in a row of one event that runs
# alone. Nobody dies: with three deaths a burial would have a cause. Elsewhere it took 1,447 seeds, here about 30.
FAILING_STORE: dict[str, Any] = {
    "kind": "async", "odd": 0.0, "poison": 0.0, "flaky": 0.0, "keyless": 0.0, "events": 4, "operate_every": 1e6,
    "lease": 0.6, "settle_max": 1, "concurrency": 3, "append_every": 0.0, "call": 0.3, "latency": 0.01,
    "faults": Faults(error=0.15, unknown=0.15),
}  # fmt: skip
SICK_DISK = Faults(midway=0.1)
POWER_CUTS: dict[str, Any] = {  # right after a letter has died: 76 seeds elsewhere, 2 here
    "kind": "projection", "emit": False, "poison": 0.3, "faults": Faults(power=0.2),
}  # fmt: skip
TAKE_OVERS = Faults(stall=0.6, chaos=1.0)
STATES: dict[str, Any] = {
    "kind": "async", "order": "none", "state": True, "wraps": True, "keys": 1, "concurrency": 3, "call": 0.1,
}  # fmt: skip
CONTENDED: dict[str, Any] = {  # one state, all at once, two attempts: the first conflict tells; 220 seeds elsewhere
    **STATES, "wraps": False, "attempts": 2, "events": 30, "append_every": 0.0, "poison": 0.0, "flaky": 0.4, "odd": 0.0,
    "timeout": None, "window_max": 1000, "settle_max": 1, "latency": 0.01, "operate_every": 1e6, "faults": Faults(),
}  # fmt: skip
STUBBORN: dict[str, Any] = {"kind": "projection", "poison": 0.0, "flaky": 0.0, "odd": 1.0, "faults": SICK_DISK}
REBUILDS: dict[str, Any] = {"kind": "projection", "emit": True, "operate_every": 0.1}
PARTITIONED: dict[str, Any] = {"partitions": 2, "repartition": 3, "key_by": "", "order": "key", "keys": 3}
# An owner that oversleeps its lease and then parks a letter, while another one has looked and not yet taken over: short
# leases, many failures, nobody else about. It took 643 seeds in a world where anything may happen, and takes about 20.
OVERSLEEPERS: dict[str, Any] = {
    "kind": "async", "concurrency": 3, "partitions": 1, "order": "key", "keys": 2, "keyless": 0.0, "poison": 0.6,
    "flaky": 0.0, "odd": 0.0, "timeout": None, "events": 30, "append_every": 0.3, "phase": 10.0, "emit": False,
    "settle_max": 1, "poll": 0.05, "lease": 0.6, "operate_every": 1e6, "faults": TAKE_OVERS,
}  # fmt: skip
GROUPS: dict[str, Any] = {  # many calls end at once, and some of them cannot be settled: 174 seeds elsewhere, 3 here
    "kind": "async", "concurrency": 3, "order": "key", "keys": 3, "keyless": 0.2, "poison": 0.0, "flaky": 0.0,
    "odd": 0.6, "timeout": None, "events": 30, "append_every": 0.0, "call": 0.0, "latency": 0.01, "settle_max": 500,
    "window_max": 1000,
}  # fmt: skip
SET_BACK: dict[str, Any] = {  # retries wait while clocks jump: 15 s of CPU elsewhere, 1.5 here
    "kind": "async", "attempts": 3, "poison": 0.0, "flaky": 0.6, "odd": 0.0, "append_every": 0.3, "operate_every": 1e6,
    "faults": Faults(chaos=3.0),
}  # fmt: skip
HELD_KEYS: dict[str, Any] = {"holds": True, "operate_every": 0.15, "keys": 2, "append_every": 0.3}
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A planted violation."""

    name: str
    rule: str
    plant: Plant
    options: dict[str, Any] = field(default_factory=dict)  # where the rule matters at all


MUTANTS: list[Mutant] = []


def mutant(name: str, rule: str, **options: Any) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        MUTANTS.append(Mutant(name, rule, plant, options))
        return plant

    return add


def rewrite(patch: pytest.MonkeyPatch, query: str, old: str, new: str) -> None:
    text = queries()[query]
    assert old in text, f"{query} has changed: give the mutant other words"
    patch.setitem(queries(), query, text.replace(old, new))


def hunt(planted: Mutant, patch: pytest.MonkeyPatch, record: Callable[[str, object], None], seeds_max: int) -> int:
    """How many schedules it takes until somebody notices."""
    planted.plant(patch)
    for seed in range(seeds_max):
        result = simulate(seed, **planted.options)
        if result.violation:
            assert not any(name in result.violation for name in OURS), f"the mutant is broken: {result.violation}"
            found = result.violation[:60].partition("\n")[0]
            record("mutants", f"rule {planted.rule:6} | {planted.name:70} | {seed + 1:4} seeds | {found}")
            return seed + 1
    pytest.fail(f"{planted.name}: nobody noticed in {seeds_max} schedules")


# ---------------------------------------------------------------- 1: fence and dedup


@mutant("the fence ignores the epoch", "1", **OVERSLEEPERS)
def _(patch: pytest.MonkeyPatch) -> None:
    rewrite(patch, "fence", "AND epoch = ?", "AND ? >= 0")
    rewrite(patch, "advance", "AND epoch = :epoch", "AND :epoch >= 0")


@mutant("what is written is committed before the fence's answer is known", "1")
def _(patch: pytest.MonkeyPatch) -> None:
    """As if all of it were sent at once, COMMIT included, and the answers read afterwards."""

    def fence(self: Progress, member: int, epoch: int, position: int) -> Any:
        return self._sql.one("fence", (member, epoch, position)) or (self.get(member).parked_version, 0, 0.0)

    patch.setattr(Progress, "fence", fence)
    patch.setattr(Progress, "advance", lambda self, change: self._sql.run("advance", change))


def retry_blindly(patch: pytest.MonkeyPatch) -> None:
    """No answer to a COMMIT? Then it did not happen: do it again."""
    run = Bridge.run

    async def again(self: Bridge, job: Callable[[], Any]) -> Any:
        for _ in range(3):
            try:
                return await run(self, job)
            except CommitUnknown:
                continue
        return await run(self, job)

    patch.setattr(Bridge, "run", again)


@mutant("an unknown commit is done again, the fence ignores the position", "1")
def _(patch: pytest.MonkeyPatch) -> None:
    retry_blindly(patch)
    rewrite(patch, "fence", "AND position = ?", "AND ? >= 0")


@mutant("an unknown commit is done again, done rows are not looked at", "1", **FAILING_STORE)
def _(patch: pytest.MonkeyPatch) -> None:
    def move(self: Done, member: int, add: Any, floor: int, expected: int) -> None:
        known = set(self.all(member))
        self.add(member, [position for position in add if position not in known])
        self.prune(member, floor)

    retry_blindly(patch)
    patch.setattr(Done, "move", move)


@mutant("settling a letter ignores its revision", "1, 3")
def _(patch: pytest.MonkeyPatch) -> None:
    for query in ("letter_settle", "letter_retry"):
        rewrite(patch, query, "AND rev = :rev AND state = 'retrying'", "AND :rev >= 0")


# ---------------------------------------------------------------- 2: parking marks done


@mutant("what is settled out of order leaves no done row", "2", kind="async", concurrency=3)
def _(patch: pytest.MonkeyPatch) -> None:
    plan = Window.plan
    patch.setattr(Window, "plan", lambda self, *args: plan(self, *args)._replace(add=[]))


@mutant("progress passes what is not settled", "2", kind="async", concurrency=3)
def _(patch: pytest.MonkeyPatch) -> None:
    plan = Window.plan

    def hasty(self: Window, settled: Any, *others: int) -> Plan:
        found = plan(self, settled)
        return found if not found.add else found._replace(prefix=found.add[-1], add=[], passed=len(self))

    patch.setattr(Window, "plan", hasty)


# ---------------------------------------------------------------- 3, 8: operators and the cache


@mutant("operators do not say that they were there", "3, 8")
def _(patch: pytest.MonkeyPatch) -> None:
    rewrite(patch, "lock_subscription", "parked_version + 1", "parked_version + 0")


@mutant("the owner misses a letter that an operator changed", "8")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Changes.add

    def forgetful(self: Changes, subscription: int, letters: Sequence[tuple[int, str | None]]) -> None:
        real(self, subscription, letters[:-1])

    patch.setattr(Changes, "add", forgetful)


@mutant("the owner reads a changed letter without the rest of its lane", "6, 8")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Changes.after

    def alone(self: Changes, *where: Any) -> Changed | None:
        found = real(self, *where)
        if found is None:
            return None
        listed = {row[0] for row in self._sql.connection.execute("SELECT letter FROM redrive_changes")}
        lanes = [(lane, head if head and head.letter in listed else None, size) for lane, head, size in found.lanes]
        return found._replace(lanes=lanes)

    patch.setattr(Changes, "after", alone)


@mutant("a take-over loads before it bumps the epoch", "8", **OVERSLEEPERS)
def _(patch: pytest.MonkeyPatch) -> None:
    def take(
        engine: Engine, subscription: Subscription, row: Subscribed, watched: Lease | None, watched_for: float,
        *, partition: int,
    ) -> Duty | Lease:  # fmt: skip
        allowed, clock = redrive.runner.leases._allowed, engine.env.clock
        with engine.store.transaction() as tx:
            seen = lease_of(tx.progress.get(row.id))
            if not allowed(engine, seen, clock.now(), watched_for if seen == watched else 0.0):
                return seen
            duty = Duty(engine, subscription, row, 0)
            duty.load(tx, seen)
            load_lanes(duty, tx, tx.progress.get(row.id).parked_version)
        now = clock.now()
        with engine.store.transaction() as tx:
            former = lease_of(tx.progress.get(row.id))
            if not allowed(engine, former, clock.now(), watched_for if former == watched else 0.0):
                return former
            values = {
                "member": row.id, "epoch": former.epoch, "owner": engine.env.owner, "now": now,
                "until": now + engine.settings.lease, "boot": engine.env.boot,
            }  # fmt: skip
            taken = tx.sql.one("lease_take", values)
            assert taken is not None
            duty.epoch = taken[0]
            now_stored = tx.progress.get(row.id)
            duty.window = Window(now_stored.position, duty.window._done)  # else the fence would help
            duty.settled_at = now_stored.settled_at  # else the next look would
        return duty

    patch.setattr(redrive.runner.leases, "take", take)


@mutant("a lease means nothing", "8")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(redrive.runner.leases, "may_take", lambda *_, **__: True)


# ---------------------------------------------------------------- 4: a key is busy until its settle commits


@mutant("a key is free when its function returns", "4", kind="async", concurrency=3)
def _(patch: pytest.MonkeyPatch) -> None:
    works, free_all = Staff.works, Desk.free_all
    freed: set[int] = set()

    def hasty(self: Staff, task: Any = None) -> Iterator[Work | None]:
        for work in works(self, task):
            yield work
            if work is not None and work.head is None and work.lane is not None:
                freed.add(id(work))
                self.desk.free(work)

    def rest(self: Desk, works: list[Work], *, ordinary: bool = False) -> None:
        free_all(self, [work for work in works if id(work) not in freed])
        freed.difference_update(map(id, works))

    patch.setattr(Staff, "works", hasty)
    patch.setattr(Desk, "free_all", rest)


@mutant("queued events do not look at their lane again", "4", kind="async")
def _(patch: pytest.MonkeyPatch) -> None:
    def free(self: Desk, work: Work) -> None:
        lane = self._place(work)
        if work.follow and work.lane is not None:
            self._following[work.lane] -= 1
        if lane is None or work.chained:
            return
        queue = self._waiting[lane]
        if not queue:
            del self._waiting[lane]
            return
        self._queued -= 1
        follower = queue.pop(0)
        if follower.head is None:
            self.run(follower)
        else:
            self._start(follower)

    patch.setattr(Desk, "free", free)


# ---------------------------------------------------------------- 5: neighbours are other keys


@mutant("later events of a failed key commit with the batch", "5", kind="projection", batch_max=500)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Settling, "parking", property(lambda self: {}))


@mutant("total order goes on after a failure", "5", order="total")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscription, "lane_of", lambda self, key: key if self.order == "key" else None)


# ---------------------------------------------------------------- 6, 7: heads and full lanes


@mutant("the newest letter of a lane is its head", "6, 20")
def _(patch: pytest.MonkeyPatch) -> None:
    rewrite(patch, "lane_heads", "min(position)", "max(position)")
    rewrite(patch, "lane_head", "ORDER BY position", "ORDER BY position DESC")


@mutant("a full lane stops retries, too", "7", lane_max=2, order="key")
def _(patch: pytest.MonkeyPatch) -> None:
    take_due, next_due = Lanes.take_due, Lanes.next_due

    def is_full(lanes: Lanes) -> bool:
        return any(size >= 2 for size in lanes._sizes.values())

    patch.setattr(Lanes, "take_due", lambda self, *a: [] if is_full(self) else take_due(self, *a))
    patch.setattr(Lanes, "next_due", lambda self: None if is_full(self) else next_due(self))


# ---------------------------------------------------------------- 9, 13, 19: reset, emissions, rebuild


@mutant("a reset starts the epochs again", "9", kind="projection")
def _(patch: pytest.MonkeyPatch) -> None:
    rewrite(patch, "progress_reset", "epoch = epoch + 1", "epoch = 0")


@mutant("a reset forgets the letters", "9, 19", kind="projection")
def _(patch: pytest.MonkeyPatch) -> None:
    rewrite(patch, "letters_supersede", "WHERE subscription", "WHERE 0 AND subscription")


@mutant("a rebuild emits again, under random ids", "13, 19", kind="projection", emit=True)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Settling, "is_quiet", lambda self, position: False)
    patch.setattr(redrive.context, "emission_id", lambda *_: str(uuid.uuid4()))


@mutant("emissions are made after the commit", "13", emit=True)
def _(patch: pytest.MonkeyPatch) -> None:
    learn = Settling.learn

    def later(self: Settling, seconds: float) -> None:
        learn(self, seconds)
        with self.duty.engine.store.transaction() as tx:
            for emission in vars(self).pop("late", ()):
                tx.logs.append(emission.log, [emission.event])

    def put_off(self: Settling, position: int, emission: Emission) -> None:
        vars(self).setdefault("late", []).append(emission)

    patch.setattr(Settling, "learn", later)
    patch.setattr(Settling, "emit", put_off)
    patch.setattr(Settling, "_queue_emission", put_off)


# ---------------------------------------------------------------- 11, 23: nobody pays for what is not his fault


@mutant("a store that fails is charged to the event that ran", "11", **FAILING_STORE)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keyed, "excuse", lambda self, subscription: None)


@mutant("a stop spends an attempt", "23", odd=0.25, kind="async")
def _(patch: pytest.MonkeyPatch) -> None:
    outcome_of = redrive.runner.call.outcome_of

    def harsh(error: BaseException, *rest: Any, **named: Any) -> Any:
        found = outcome_of(error, *rest, **named)
        return out.Failed(error, redrive.runner.call.describe(error)) if found is out.STOPPED else found

    patch.setattr(redrive.runner.handle, "outcome_of", harsh)


# ---------------------------------------------------------------- 12: durability


@mutant("an append is acknowledged before it is durable", "12", kind="projection", emit=False)
def _(patch: pytest.MonkeyPatch) -> None:
    append_group = SqliteStore.append_group

    def lazy(self: SimStore, group: Any) -> None:
        @contextmanager
        def transaction() -> Iterator[Any]:
            with SimStore.transaction(self, durable=False) as tx:
                yield tx

        with patch.context() as once:
            once.setattr(self, "transaction", transaction)
            append_group(self, group)

    patch.setattr(SimStore, "append_group", lazy)


@mutant("a dead letter is announced before it is durable", "12", **POWER_CUTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteStore, "sync", lambda self: None)


# ---------------------------------------------------------------- 15, 16: keyed state, groups


@mutant("keyed state is saved without its version", "15", kind="async", order="none", state=True, concurrency=3)
def _(patch: pytest.MonkeyPatch) -> None:
    rewrite(patch, "state_save", "AND version = :version", "AND :version >= 0")
    rewrite(patch, "state_save_many", "AND version = ?", "AND ? >= 0")
    for query in ("state_add", "state_add_many"):
        rewrite(patch, query, "ON CONFLICT DO NOTHING", "ON CONFLICT DO UPDATE SET data = excluded.data")


@mutant("when one of a group cannot be settled, all are called again", "16", **GROUPS)
def _(patch: pytest.MonkeyPatch) -> None:
    settle, write = Handling._settle, Handling._write

    def crude(self: Handling, group: Group, result: Round) -> None:
        try:
            settling = write(self, group, result, isolate=False)
        except redrive.runner.handle._Isolate:
            good = [work for work in group.works if work.outcome is out.APPLIED and work.effects is not None]
            if len(good) < 2:
                settle(self, group, result)
                return
            settle(self, Group([work for work in group.works if work not in good[1:]]), result)
            result.reruns += [(work, 0.01) for work in good[1:]]
            return
        settling.learn(0.0)
        tell(settling)

    patch.setattr(Handling, "_settle", crude)


# ---------------------------------------------------------------- 20, 21, 24: replay, clock, letters


@mutant("a replay goes on as long as the rule allows", "20", attempts=3)
def _(patch: pytest.MonkeyPatch) -> None:
    decided = redrive.policy.decide.decided

    def patient(outcome: Any, call: Any) -> Any:
        return decided(outcome, replace(call, attempt=1 if call.replay else call.attempt, replay=False))

    patch.setattr(redrive.runner.settle, "decided", patient)


@mutant("a clock that was set back is believed", "21", **SET_BACK)
def _(patch: pytest.MonkeyPatch) -> None:
    def believe(head: Head, now: float, delay_max: float) -> Head:
        return head

    patch.setattr(redrive.policy.lanes, "rebased", believe)
    patch.setattr(redrive.runner.duty, "rebased", believe)


@mutant("a letter that cannot be written is dropped", "24", poison=0.5, faults=Faults(midway=0.3))
def _(patch: pytest.MonkeyPatch) -> None:
    add = Letters.add

    def careless(self: Letters, subscription: int, new: Any, now: float) -> list[int]:
        try:
            return add(self, subscription, new, now)
        except (StoreError, sqlite3.OperationalError):
            return [0 for _ in new]

    patch.setattr(Letters, "add", careless)


# ---------------------------------------------------------------- bugs that were real once


@mutant("a letter is reopened while its predecessors come round again", "8", kind="projection", operate_every=0.1)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(redrive.runner.controls, "_is_idle", lambda duty, letter, busy: not busy(letter.lane, letter.id))


@mutant("any lease counts as the one that was watched", "8", faults=FLAKY_DISK)
def _(patch: pytest.MonkeyPatch) -> None:
    take = redrive.runner.leases.take

    def forgetful(
        engine: Engine, subscription: Subscription, row: Subscribed, watched: Any, since: float, *, partition: int
    ) -> Any:
        with engine.store.reading() as tx:
            seen = lease_of(tx.progress.member(member_of(row.id, partition)))
        return take(engine, subscription, row, seen, since, partition=partition)

    patch.setattr(redrive.runner.leases, "take", forgetful)


# ---------------------------------------------------------------- 14: partitions


@mutant("every owner takes the events of all partitions", "14", **PARTITIONED)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Share, "has_event", lambda self, event_id, key: True)


@mutant("a partition drops its marks before the others have passed them", "14", **PARTITIONED)
def _(patch: pytest.MonkeyPatch) -> None:
    plan, pass_to = Window.plan, Window.pass_to
    patch.setattr(Window, "plan", lambda self, settled, *_: plan(self, settled))
    patch.setattr(Window, "pass_to", lambda self, upto, *_: pass_to(self, upto))


@mutant("a repartition starts from the slowest and forgets what the others settled", "14", **PARTITIONED)
def _(patch: pytest.MonkeyPatch) -> None:
    repartition = redrive.runner.enroll.repartition

    def forgetful(tx: StoreTx, row: Subscribed, partitions: int) -> None:
        repartition(tx, row, partitions)
        tx.progress.done.clear(row.id)

    patch.setattr(redrive.runner.enroll, "repartition", forgetful)


@mutant("a repartition starts from the fastest", "14", **PARTITIONED)
def _(patch: pytest.MonkeyPatch) -> None:
    repartition = redrive.runner.enroll.repartition

    def hasty(tx: StoreTx, row: Subscribed, partitions: int) -> None:
        fastest = max(member.position for member in tx.progress.members(row.id))
        repartition(tx, row, partitions)
        tx.connection.execute("UPDATE redrive_progress SET position = ? WHERE subscription = ?", (fastest, row.id))

    patch.setattr(redrive.runner.enroll, "repartition", hasty)


@mutant("a repartition starts the epochs again", "9, 14", **PARTITIONED)
def _(patch: pytest.MonkeyPatch) -> None:
    rewrite(patch, "member_begin", "epoch = :epoch", "epoch = :epoch - :epoch")


@mutant("a discard that is reopened after a rebuild stays silent", "19", **REBUILDS)
def _(patch: pytest.MonkeyPatch) -> None:
    rewrite(patch, "letters_unheard", "OR (state <> 'superseded'", "OR (0")


@mutant("versions of a state come back after it was deleted", "15", **STATES)
def _(patch: pytest.MonkeyPatch) -> None:
    save, save_all, effects = Keyed.save, Keyed.save_all, Settling.effects

    def save_one(self: Keyed, subscription: int, key: str, version: int, data: bytes, position: int) -> bool:
        return save(self, subscription, key, version, data, version + 1)

    def save_many(self: Keyed, subscription: int, states: Any) -> bool:
        return save_all(self, subscription, [(key, v, data, v + 1) for key, v, data, _ in states])

    def remember(self: Settling, work: Work, *, together: bool) -> None:
        effects(self, work, together=together)
        if work.effects is not None and work.effects.state is not None:
            key, version, data = work.effects.state
            self._states[-1] = (key, (version + 1, data) if data else (0, b""))

    patch.setattr(Keyed, "save", save_one)
    patch.setattr(Keyed, "save_all", save_many)
    patch.setattr(Settling, "effects", remember)


@mutant("conflicts over a state spend attempts", "15", **CONTENDED)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(redrive.runner.handle, "StateConflict", type("Nothing", (Exception,), {}))


@mutant("SQLite may end a transaction and a function go on", "1", **STUBBORN)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(redrive.testing.sim.disk, "ISOLATION", None)
    patch.setattr(SqliteStore, "_has_ended", lambda self: False)
    patch.setattr(redrive.testing.sim.workload, "ODD", ("stubborn",))


# ---------------------------------------------------------------- scheduled events


LATER: dict[str, Any] = {"emit": True, "later": 0.3}


@mutant("what is due leaves the schedule in one transaction and is appended in another", "1", **LATER)
def _(patch: pytest.MonkeyPatch) -> None:
    def in_two_steps(engine: Engine) -> Look:
        with engine.store.transaction() as tx:
            due = take_due(tx.sql, tx.progress.now(engine.env.clock), 100)
        with engine.store.transaction() as tx:
            tx.logs.append("out", [one.event for one in due])
        return Look(bool(due), 0.1)

    patch.setattr(redrive.runner.scheduling, "append_due", in_two_steps)


@mutant("a clock that was set back makes what is scheduled wait for as long", "21", **LATER, faults=Faults(chaos=2.0))
def _(patch: pytest.MonkeyPatch) -> None:
    rewrite(patch, "scheduled_rebase", "WHERE set_at > :now", "WHERE set_at > :now + 1e9")


# ---------------------------------------------------------------- 25: declarations


UPGRADES: dict[str, Any] = {"versions": True, "partitions": 1}
UNDECIDED: dict[str, Any] = {**UPGRADES, "faults": Faults(stall=0.6)}  # between two looks at the store


@mutant("a lease is taken without comparing declarations", "25", **UPGRADES)
def _(patch: pytest.MonkeyPatch) -> None:
    def reservation(engine: Engine, tx: StoreTx, subscription: Subscription, row: Subscribed, now: float) -> Any:
        return stored_of(tx, row.id)[1]

    patch.setattr(redrive.runner.leases, "check_agrees", reservation)


@mutant("declarations are compared before the transaction that takes the lease", "25", **UNDECIDED)
def _(patch: pytest.MonkeyPatch) -> None:
    compare = redrive.runner.leases.check_agrees

    def early(engine: Engine, tx: StoreTx, subscription: Subscription, row: Subscribed, now: float) -> Any:
        is_taken = tx.progress.get(row.id).owner == engine.env.owner
        return stored_of(tx, row.id)[1] if is_taken else compare(engine, tx, subscription, row, now)

    patch.setattr(redrive.runner.leases, "check_agrees", early)


# ---------------------------------------------------------------- 28: a hold is a head without an event


@mutant("followers overtake a held head", "28", **HELD_KEYS)
def _(patch: pytest.MonkeyPatch) -> None:
    real = Settling._hold

    def forgetful(self: Settling, new: Any) -> None:
        real(self, replace(new, is_head=new.is_head and new.letter.reason != "held"))

    patch.setattr(Settling, "_hold", forgetful)


@mutant("a hold spends an attempt", "28", **HELD_KEYS)
def _(patch: pytest.MonkeyPatch) -> None:
    real = KeyHolds.letter
    patch.setattr(KeyHolds, "letter", lambda self, key: replace(real(self, key), spent=True))


@mutant("a projection applies an event of a held key", "28", **HELD_KEYS, kind="projection")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyHolds, "until", lambda self, key: None)


@mutant("a handler is called for a held key", "28", **HELD_KEYS, kind="async")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyHolds, "until", lambda self, key: None)


@mutant("a release does not reach the letters that were kept back in memory", "28", **HELD_KEYS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lanes, "release", lambda self: None)


# ---------------------------------------------------------------- the hunt


@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed(
    planted: Mutant, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    assert hunt(planted, monkeypatch, record_property, SEEDS_MAX) <= SEEDS_MAX


WORLDS = {str(one.options): one for one in MUTANTS if one.options}  # several mutants share one: once is enough


@pytest.mark.parametrize("planted", WORLDS.values(), ids=lambda mutant: mutant.name)
def test_it_is_the_mutant_that_is_noticed(planted: Mutant) -> None:
    """The same schedules without the mutant keep every promise."""
    for seed in range(25):
        result = simulate(seed, **planted.options)
        assert not result.violation, str(result)


def test_at_least_fifteen_rules_have_a_mutant() -> None:
    rules = {rule.strip() for planted in MUTANTS for rule in planted.rule.split(",")}
    assert len(rules) >= 15, sorted(rules, key=int)
