"""The world of one schedule: virtual time, one database, processes that come and go, and whatever may go wrong.

It knows nothing about what the processes do; a `Scenario` does. All chance comes from one seeded
source and everything runs on one thread, so the same seed gives the same world, step by step.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import Coroutine
from typing import Any, Protocol

from redrive.app import App
from redrive.errors import StoreError
from redrive.observe.signals import Halted, Signal
from redrive.runner.supervise import Supervisor
from redrive.testing.sim.disk import Disk
from redrive.testing.sim.fate import Fate
from redrive.testing.sim.options import Faults, Options
from redrive.testing.sim.process import Crash, Process
from redrive.testing.virtual import FakeClock, VirtualLoop

COMMITS_MAX = 5_000  # no schedule needs so many: something runs in circles
STALLS_MAX = 3  # nested: each one is a stack of its own
CALM = Faults()


class Scenario(Protocol):
    """What a world is for."""

    tables: str  # SQL of the tables that exist from the start, separated by semicolons

    def enter(self, world: World) -> None:
        """This is the world; nothing runs yet."""
        ...

    def declare(self, app: App, process: Process) -> None:
        """Register the functions that a worker runs."""
        ...

    def begin(self) -> None:
        """Start what goes on beside the workers: producers, operators."""
        ...

    def committed(self, process: Process) -> None:
        """Look at the database after a commit; `world.fail` if it is wrong."""
        ...

    def heard(self, signal: Signal) -> None:
        """A living worker has told the world of this."""
        ...

    def power_cut(self) -> None:
        """The database went back to what was synced."""
        ...

    async def end(self) -> None:
        """The faults are over: return when everything has come to its end, `world.fail` if it does not."""
        ...


class World:
    """Runs a scenario in two worker processes, with faults first and without them at the end."""

    def __init__(self, scenario: Scenario, options: Options) -> None:
        self.scenario, self.options, self.seed = scenario, options, options.seed
        self.dice = random.Random(options.seed)
        self.clock = FakeClock()
        self.loop = VirtualLoop(self.clock)
        self.disk = Disk(scenario.tables)
        self.fate = Fate(self.dice, options.faults, options.latency)
        self.commits = 0
        self.trace: list[tuple[Any, ...]] = []
        self.violation = ""
        self.workers: dict[str, Process] = {}
        self.deaths = 0
        self._alive: dict[str, Process] = {}
        self._supervisors: dict[str, Supervisor] = {}
        self._dead: set[str] = set()
        self._births = 0
        self._stalled = 0
        self._synced: bytes | None = None  # what a power cut leaves; None: everything that is committed
        self._tasks: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------ running

    def run(self) -> None:
        """From the first process to the last check."""
        self.loop.set_exception_handler(self._unheard)
        self._over = self.loop.create_future()
        try:
            script = self.loop.create_task(self._script())
            script.add_done_callback(self._end)
            self.loop.run_until_complete(self._over)
            if not self.violation:
                script.result()
        finally:
            self._bury_everything()
            self.disk.close(somebody_is_left=bool(asyncio.all_tasks(self.loop)))
            self.loop.close()

    async def _script(self) -> None:
        self.scenario.enter(self)
        for name in ("w1", "w2"):
            self._boot(name)
        self.scenario.begin()
        self.go_on(self._chaos())
        await asyncio.sleep(self.options.phase)
        self.note("world", "calm")
        self.fate.faults = CALM
        for process in list(self.workers.values()):
            process.frozen_until = 0.0
        await self.scenario.end()

    def _end(self, *_: Any) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _bury_everything(self) -> None:
        """Only now are the tasks of the dead taken apart: they cannot reach the database any more."""
        for process in self._alive.values():
            process.dead = True
        for _ in range(10):
            left = asyncio.all_tasks(self.loop)
            if not left:
                break
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left, timeout=0.1))

    def go_on(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Something that happens beside the script; its failure is the script's."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._went)
        return task

    def _went(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Crash) and not self._over.done():
            self._over.set_exception(error)

    def _unheard(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that nobody waited for: normal in a dead process, a bug anywhere else."""
        error = context.get("exception")
        if error is not None and not isinstance(error, Crash) and not self._over.done():
            self.fail(f"bug: {context['message']}: {error!r}")

    def note(self, *what: Any) -> None:
        """Remember a step; the hash of all of them identifies the schedule."""
        self.trace.append((round(self.clock.monotonic(), 6), *what))

    def hash(self) -> str:
        """Equal for equal schedules."""
        return hashlib.blake2b(repr(self.trace).encode(), digest_size=8).hexdigest()

    def fail(self, why: str) -> None:
        """A promise is broken: the first one counts, and the world ends."""
        if not self.violation:
            self.violation = why
            self.note("VIOLATION", why)
            for process in self._alive.values():
                process.dead = True
            self._end()

    # ------------------------------------------------------------ processes

    def process(self, name: str) -> Process:
        """A process that is not a worker: a producer, an operator."""
        self._births += 1
        process = Process(self, name, self._births)
        self._alive[process.owner] = process
        return process

    def _boot(self, name: str) -> None:
        """Start a worker."""
        if self.violation:
            return
        process = self.process(name)
        self.workers[name] = process
        self.note(process.owner, "boots")
        app = App(":memory:", settings=self.options.settings(), env=process.env, inline=True)
        app.runtime._store = process.store
        app.listen(lambda signals: self._listen(process, signals))
        self.scenario.declare(app, process)
        self.go_on(self._serve(app, process))

    async def _serve(self, app: App, process: Process) -> None:
        """As `app.run()` in a process that somebody starts again whenever it ends."""
        try:
            async with app._supervised(None, ()) as supervisor:
                self._supervisors[process.owner] = supervisor
                await supervisor.run()
        except StoreError as error:  # refused while enrolling: the process exits and is started again
            self.note(process.owner, "exits", str(error))
        if not process.dead:
            self.note(process.owner, "ends")
            process.die("the end")

    def died(self, process: Process) -> None:
        """A crash, or the end. Workers come back."""
        self._dead.add(process.owner)
        self._alive.pop(process.owner, None)
        if self.workers.get(process.name) is process:
            self.deaths += 1
            self.loop.call_later(self.dice.expovariate(3.0), self._boot, process.name)

    def is_dead(self, owner: str) -> bool:
        """What another process of the same machine can see."""
        return owner in self._dead

    def stop(self, process: Process) -> None:
        """SIGTERM."""
        supervisor = self._supervisors.get(process.owner)
        if supervisor is not None:
            self.note(process.owner, "is asked to stop")
            supervisor.stop("simulated SIGTERM")

    def _listen(self, process: Process, signals: Any) -> None:
        for signal in signals:
            if not process.dead:
                self._hear(process, signal)

    def _hear(self, process: Process, signal: Signal) -> None:
        self.note(process.owner, type(signal).__name__, str(signal))
        self.scenario.heard(signal)
        if isinstance(signal, Halted) and signal.reason.startswith("bug"):
            self.fail(f"bug: {signal.subscription} halted by {signal.reason}")

    # ------------------------------------------------------------ what goes wrong

    def stall(self, process: Process) -> None:
        """A thread stands still while the others go on, sometimes for longer than a lease."""
        if self._stalled < STALLS_MAX and asyncio.current_task(self.loop) is None:  # a task of the same process goes on
            self._stalled += 1
            length = self.options.lease * self.dice.choice([0.01, 0.05, 0.3, 1.5])
            self.note(process.owner, "stalls", length)
            held_until, process.held_until = process.held_until, math.inf
            self.loop.let_others_run(length)
            process.held_until = max(held_until, process.frozen_until, self.loop.time())
            self._stalled -= 1

    async def _chaos(self) -> None:
        """Deaths, freezes, stops and clock jumps at any time."""
        while self.fate.faults.chaos:
            await asyncio.sleep(self.dice.expovariate(self.fate.faults.chaos))
            process = self.dice.choice(list(self.workers.values()))
            if process.dead or not self.fate.faults.chaos:
                continue
            match self.dice.choice(["kill", "kill", "freeze", "freeze", "stop", "jump", "jump for all"]):
                case "kill":
                    process.die("killed")
                case "freeze":
                    length = self.options.lease * self.dice.choice([0.5, 1.2, 3.0])
                    self.note(process.owner, "freezes", length)
                    process.frozen_until = process.held_until = self.loop.time() + length
                case "stop":
                    self.stop(process)
                case "jump":
                    process.clock.skew += self.dice.choice([-3600.0, -2.0, 2.0, 30.0])
                    self.note(process.owner, "jumps", process.clock.skew)
                case "jump for all":
                    self.clock.jump(seconds := self.dice.choice([-3600.0, -2.0, 2.0, 30.0]))
                    self.note("world", "jumps", seconds)

    def _power_cut(self) -> None:
        """Every process dies, and what was committed without a sync is gone."""
        if self._over.done():
            return
        for process in list(self._alive.values()):
            process.die("power cut")
        if self._synced is not None:
            self.disk.power_returns(self._synced)
            self._synced = None
            self.note("world", "loses commits")
        self.commits += 1
        self.scenario.power_cut()

    def committing(self, *, durable: bool) -> None:
        """Called before every transaction: a power cut takes back all that was not synced, and nothing else."""
        if not durable and self._synced is None:
            self._synced = self.disk.picture()

    def committed(self, process: Process, *, durable: bool) -> None:
        """Called after every commit, before anybody learns of it."""
        self.commits += 1
        if process.dead:
            self.fail(f"a dead process committed: {process.owner}")
        if self.commits > COMMITS_MAX:
            self.fail("livelock: commits without end")
        if durable:
            self._synced = None
        elif self.fate.power():
            self.loop.call_soon(self._power_cut)
        self.scenario.committed(process)
