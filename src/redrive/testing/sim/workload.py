"""What the simulated workers do: functions that count, fail as planned, and keep their own list of calls.

Every expected value is computed from the producer's list in this file, never from the log.
"""

from __future__ import annotations

import asyncio
import math
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redrive.app import App
from redrive.errors import Ignore, Reject, RetryLater, StoreError
from redrive.event import Event
from redrive.observe.signals import Buried, Signal
from redrive.policy.retry import retry
from redrive.policy.rules import rules
from redrive.sources.log import Log
from redrive.subscription import Subscription
from redrive.testing.sim.checker import WRAP, Checker
from redrive.testing.sim.operator import Operating
from redrive.testing.sim.options import Options
from redrive.testing.sim.outside import CALL_MAX, Outside
from redrive.testing.sim.process import Process
from redrive.testing.sim.seen import NAME, Planned
from redrive.testing.sim.world import World

COLUMNS = (
    "seq INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL, key TEXT, edits INTEGER NOT NULL, "
    "version INTEGER NOT NULL DEFAULT 0"
)
# A reset makes the last one anew: in these words and this place it is what it was, and another world may have it.
TABLES = f"""CREATE TABLE tail (seq INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL);
CREATE TABLE picky (event TEXT, fine INTEGER NOT NULL CHECK (fine = 1));
CREATE TABLE "effects" ({COLUMNS})"""
TAIL = "INSERT INTO tail (event) VALUES (?)"
SHARED = "S"  # a key of the other log that all keys of this one write to
EFFECT = "INSERT INTO effects (event, key, edits, version) VALUES (?, ?, ?, ?)"
PICKY = "INSERT INTO picky VALUES (?, ?)"
HEALED_AFTER = 5.0
DRAIN_MAX = 120.0  # seconds of virtual time in which everything must come to its end once the faults are over
ODD = ("reject", "ignore", "later", "picky", "slow", "exit", "junk", "unwanted", "stubborn", "versioned", "badkey")


class Planted(Exception):
    """A failure that the plan asked for."""


@dataclass(slots=True)
class Call:
    """One call of a handler, as the handler itself saw it."""

    process: Process
    event: str
    lane: str
    epoch: int


def plan(options: Options, dice: random.Random) -> list[Planned]:
    """What the producer will send, and what the function will do with each."""
    planned = []
    for index in range(options.events):
        fate, times, chance = "ok", 0, dice.random()
        if chance < options.poison:
            fate = "poison"
        elif chance < options.poison + options.flaky:
            fate, times = "flaky", dice.randint(1, options.attempts - 1)
        elif chance < options.poison + options.flaky + options.odd:
            fate, times = dice.choice(ODD), 1
        key = None if dice.random() < options.keyless else "ABC"[dice.randrange(options.keys)]
        if fate == "badkey" and not options.key_by:
            fate = "ok"
        kind = fate if fate in ("junk", "unwanted") else "thing"
        planned.append(Planned(index, f"e{index}", key, kind, fate, times))
    return planned


class Workload:
    """The scenario of our own suite."""

    tables = TABLES

    def __init__(self, options: Options) -> None:
        self.options = options
        self.events = plan(options, random.Random(f"plan {options.seed}"))
        self.by_id = {planned.id: planned for planned in self.events}
        self.fixed = False  # the bug is repaired: nothing is poison any more
        self.failures: Counter[str] = Counter()
        self.exited: set[str] = set()
        self.running: dict[tuple[str, str], Call] = {}
        self.good: set[tuple[str, int, str]] = set()  # calls that returned, by process and epoch
        self._all_sent = False
        self._partitions = options.partitions
        self._declared: dict[str, tuple[int, int]] = {}  # partitions and version, by process
        self._version = (
            1  # of the program as it is installed; a running process has the one that was installed at its start
        )

    # ------------------------------------------------------------ functions

    def declare(self, app: App, process: Process) -> None:
        source, out = app.log("in"), app.log("out")
        common: dict[str, Any] = {
            "name": NAME, "order": self.options.order, "letters": rules(discard=["junk"]),
            "retry": retry(attempts=self.options.attempts, wait=self.options.wait, wait_max="300ms"),
            "key_by": {"": None, "field": "k", "function": self._key}[self.options.key_by],
        }  # fmt: skip
        if self.options.tail:
            app.projection(out, name="tail")(lambda event, tx: tx.execute(TAIL, (event.data["of"],)))
        types = ("thing", "junk")
        if self.outside is not None:
            common |= self.outside.guards()
        self._declared[process.owner] = self._partitions, self._version
        common["partitions"] = self._partitions
        if self.options.versions:
            common["version"] = self._version
        match self.options.kind:
            case "async":
                common |= {"concurrency": self.options.concurrency, "timeout": self.options.timeout}
                app.on(source, *types, start="first", **common)(self._async(process, out))
            case "sync":
                common |= {"concurrency": self.options.concurrency}
                app.on(source, *types, start="first", **common)(self._sync(process, out))
            case kind:
                function = self._projection(process, out)
                if kind == "batch":
                    one = function

                    def function(events: Any, tx: Any) -> None:
                        for event in events:
                            one(event, tx)

                app.projection(source, *types, tables={"effects": COLUMNS}, batch=kind == "batch", **common)(function)

    def _key(self, event: Event[Any]) -> str | None:
        """A key function with a bug, until it is repaired."""
        planned = self.by_id[event.id]
        if planned.fate == "badkey" and not self._repaired(event):
            raise Planted("no key")
        return planned.key

    def _projection(self, process: Process, out: Log) -> Callable[[Any, Any], None]:
        number = self._declared[process.owner][1]

        def project(event: Event[Any], tx: Any) -> None:
            planned = self.by_id[event.id]
            effect = (event.id, planned.key, event.data.get("edits", 0), number)
            try:
                tx.execute(EFFECT, effect)
            except sqlite3.Error:
                if planned.fate != "stubborn":
                    raise
                tx.execute(EFFECT, effect)  # it must not matter that SQLite may have ended the transaction
            if self.options.emit:
                version = len(out.read_key(SHARED)) if planned.fate == "versioned" else None
                key = planned.key if version is None else SHARED
                after = self.options.later if version is None and self.options.later else None
                tx.emit(out, "echo", {"of": event.id}, key=key, expected_version=version, after=after)
            if planned.fate == "picky":
                self._count_failure(event, fails=not self._repaired(event))
                tx.execute(PICKY, (event.id, int(self._repaired(event))))
            self._judge(event)

        return project

    def _async(self, process: Process, out: Log) -> Callable[[Any, Any], Any]:
        async def handle(event: Event[Any], ctx: Any) -> None:
            if process.dead:
                await asyncio.Event().wait()
            call = self._start(process, event, ctx)
            dice = process.env.dice
            try:
                if dice.random() < 0.5 and self.options.state and ctx.key is not None:
                    _ = ctx.state  # what it is now decides, though time passes before it is used
                await self._take_time(process, event, ctx)
                self._ask(process, ctx, event, out)
                self._judge(event)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and self.options.timeout is not None:
                    self.failures[event.id] += 1  # it overran its time, or its process stops
                self._finish(call, good=False)
                raise
            self._finish(call, good=True)

        return handle

    def _sync(self, process: Process, out: Log) -> Callable[[Any, Any], None]:
        def handle(event: Event[Any], ctx: Any) -> None:
            process.check_alive()
            call = self._start(process, event, ctx)
            try:
                if self.outside is not None:
                    self.outside.answer(self.outside.arrives(process, self.by_id[event.id], ctx))
                self._ask(process, ctx, event, out)
                self._judge(event)
            except BaseException:
                self._finish(call, good=False)
                raise
            self._finish(call, good=True)

        return handle

    async def _take_time(self, process: Process, event: Event[Any], ctx: Any) -> None:
        seconds = min(process.env.dice.expovariate(1.0) * self.options.call, CALL_MAX if self.outside else math.inf)
        slow = self.by_id[event.id]
        if slow.fate == "slow" and self.options.timeout and self.failures[event.id] < slow.times:
            seconds = self.options.timeout * 3
        if self.outside is not None:
            await self.outside.call(process, slow, ctx, seconds)
        else:
            await asyncio.sleep(seconds)

    def _ask(self, process: Process, ctx: Any, event: Event[Any], out: Log) -> None:
        planned, number = self.by_id[event.id], self._declared[process.owner][1]
        ctx.execute(EFFECT, (event.id, planned.key, event.data.get("edits", 0), number))
        if self.options.state and ctx.key is not None:
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            ctx.state.setdefault("first", event.id)
            if self.options.wraps and ctx.state["n"] == WRAP:
                ctx.state.clear()
        if self.options.emit:
            version = len(out.read_key(SHARED)) if planned.fate == "versioned" else None
            after = self.options.later if version is None and self.options.later else None
            key = planned.key if version is None else SHARED
            ctx.emit(out, "echo", {"of": event.id}, key=key, expected_version=version, after=after)
        if planned.fate == "picky":
            ctx.execute(PICKY, (event.id, int(self._repaired(event))))
            self._count_failure(event, fails=not self._repaired(event))

    def _repaired(self, event: Event[Any]) -> bool:
        return self.fixed or bool(event.data.get("fixed"))

    def _count_failure(self, event: Event[Any], *, fails: bool) -> None:
        self.failures[event.id] += fails

    def _judge(self, event: Event[Any]) -> None:
        """Succeed or fail, as planned."""
        planned = self.by_id[event.id]
        match planned.fate:
            case "ignore":
                raise Ignore("as planned")
            case "exit" if event.id not in self.exited:
                self.exited.add(event.id)  # not a failure: the attempt is given back
                raise SystemExit
            case "later" if self.failures[event.id] == 0:
                self.failures[event.id] += 1
                raise RetryLater("200ms")
            case "flaky" if self.failures[event.id] < planned.times:
                self.failures[event.id] += 1
                raise Planted(event.id)
            case "reject" if not self._repaired(event):
                raise Reject("as planned")
            case "poison" | "junk" if not self._repaired(event):
                self.failures[event.id] += 1
                raise Planted(event.id)

    # ------------------------------------------------------------ a handler's own list of calls

    def _start(self, process: Process, event: Event[Any], ctx: Any) -> Call:
        planned = self.by_id[event.id]
        lane = {"key": planned.lane or event.id, "total": "*", "none": event.id}[self.options.order]
        if planned.fate == "badkey":
            lane = event.id
        call = Call(process, event.id, lane, ctx.epoch)
        world, checker = self.world, self.checker
        world.note(process.owner, "calls", event.id, ctx.attempt)
        running = self.running.get((process.owner, lane))
        if running is not None:
            world.fail(f"one call per lane: {event.id} starts while {running.event} runs in {process.owner}")
        self.running[process.owner, lane] = call
        edits = event.data.get("edits", 0)
        if ctx.idempotency_key != f"{NAME}:{event.id}" + (f":{edits}" if edits else ""):
            world.fail(f"idempotency key: {ctx.idempotency_key} for edit {edits} of {event.id}")
        checker.check_start(planned, ctx.epoch, ctx.attempt, self.failures[event.id])
        excused = planned.fate in ("picky", "versioned") or (self.options.order == "none" and self.options.state)
        excused = excused or self.operating.touched[event.id] > 0  # the attempt lost to an operator
        if (process.owner, ctx.epoch, event.id) in self.good and not excused:
            world.fail(f"called again: {event.id} had succeeded in this epoch and nothing went wrong since")
        return call

    def _finish(self, call: Call, *, good: bool) -> None:
        if self.running.get((call.process.owner, call.lane)) is call:
            del self.running[call.process.owner, call.lane]
        if good:
            self.good.add((call.process.owner, call.epoch, call.event))

    # ------------------------------------------------------------ the world asks

    def enter(self, world: World) -> None:
        self.world = world
        self.checker = Checker(world, self)
        self.operating = Operating(world, self)
        dependency = self.options.dependency
        self.outside = None if dependency is None else Outside(world, self, dependency)

    def begin(self) -> None:
        world = self.world
        world.go_on(self._produce())
        world.go_on(self.operating.run())
        world.go_on(self._deploy())
        if self.options.versions:
            world.go_on(self.operating.upgrade())

    async def _deploy(self) -> None:
        """Another number of partitions, one worker after the other; who has the former is stopped, or finds out.

        So is a worker of a former version.
        """
        await asyncio.sleep(self.options.phase / 2)
        self._partitions = self.options.repartition if self.options.partitions > 1 else 1
        dice = random.Random(f"deploy {self.options.seed}")
        while not self.world.violation:
            for process in list(self.world.workers.values()):
                if not process.dead and self._declared.get(process.owner) != (self._partitions, self._version):
                    await asyncio.sleep(dice.expovariate(2.0))
                    self.world.stop(process)
            await asyncio.sleep(1.0)

    def install(self) -> None:
        """Install the next version of the program: every process that starts from now on has it."""
        self._version += 1

    def declared(self, process: Process) -> Subscription:
        """The subscription, as the program declares it that is installed now."""
        app = App(":memory:", settings=self.options.settings(), env=process.env, inline=True)
        app.runtime._store = process.store
        self.declare(app, process)
        return app.subscriptions[NAME]

    def came_round(self, event: str) -> bool:
        """Was its letter replayed automatically?"""
        return self.outside is not None and event in self.outside.came_round

    def committed(self, process: Process) -> None:
        self.checker.check(process)
        if self.outside is not None:
            self.outside.committed()

    def heard(self, signal: Signal) -> None:
        if isinstance(signal, Buried):
            self.checker.announced[signal.letter] = signal.attempt

    def power_cut(self) -> None:
        self.checker.start_over()
        if self.outside is not None:
            self.outside.committed()

    async def _produce(self) -> None:
        """One event after the other, each until it is acknowledged: the list is the truth."""
        process = self.world.process("producer")
        dice = random.Random(f"producer {self.options.seed}")
        for planned in self.events:
            await asyncio.sleep(dice.expovariate(1.0) * self.options.append_every)
            while planned.position is None:
                if process.dead:
                    process = self.world.process("producer")
                    await asyncio.sleep(0.1)
                planned.position = await self._append(process, planned)
        self._all_sent = True

    async def _append(self, process: Process, planned: Planned) -> int | None:
        app = App(":memory:", settings=self.options.settings(), env=process.env, inline=True)
        app.runtime._store = process.store
        data = {"n": planned.index} if planned.fate == "badkey" else {"n": planned.index, "k": planned.key}
        key = None if self.options.key_by else planned.key
        appending = app.log("in").append_async(planned.type, data, key=key, id=planned.id)
        try:
            event = await asyncio.wait_for(appending, 5.0)
        except (StoreError, TimeoutError):  # no answer: ask again with the same id
            return None
        self.world.note("producer", "acknowledged", event.id, event.position)
        return event.position

    async def end(self) -> None:
        """Everything is repaired and sent round again; then all of it must be settled, soon."""
        self.fixed = True
        heals = self.options.dependency is not None and self.options.dependency.replays
        patience = HEALED_AFTER if heals else 0.0  # what comes round by itself is left to do so
        deadline = self.world.loop.time() + DRAIN_MAX
        while not (self._all_sent and self.checker.settled()):
            if self.world.violation:
                return
            if self.world.loop.time() > deadline:
                self.world.fail(f"liveness: {self.checker.unsettled()}")
            await self.operating.repair(replays=self.world.loop.time() > deadline - DRAIN_MAX + patience)
            await asyncio.sleep(0.3)
        self.checker.check_final()
