"""A simulated process: its own store handle, clock and dice, and a death from which nothing of it returns.

The store is the real SQLite store; this handle shares one in-memory database with all the others and
puts latency, errors, unknown commits, stalls and crashes around each operation.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from redrive.clock import Env
from redrive.errors import CommitUnknown, StoreBusy, StoreError
from redrive.store.port import Appending
from redrive.store.sqlite import SqliteStore
from redrive.store.sqlite.transaction import SqliteTx

if TYPE_CHECKING:
    from redrive.testing.sim.world import World

Done = Callable[[Any, BaseException | None], None]
BOOT = "simulated-boot"


class Crash(BaseException):
    """The process ends here. Not an Exception: nobody may catch it and go on."""


class SkewedClock:
    """The world's time, seen by a process whose wall clock may be wrong."""

    def __init__(self, process: Process) -> None:
        self._world = process.world
        self._process = process
        self.skew = 0.0
        self.drift = 0.0

    def now(self) -> float:
        """Wall time as this process sees it."""
        return self._world.clock.now() + self.skew

    def monotonic(self) -> float:
        """What passes between two looks of a job that the world does not see: a slow function, a busy machine."""
        if self._process.in_job and self._world.fate.slow():
            self.drift += self._world.fate.lost_time()
        return self._world.clock.monotonic() + self.drift


@dataclass(slots=True)
class SimEnv(Env):
    """Knows which simulated processes are dead, as a real one does on its own machine."""

    died: Callable[[str], bool] = bool

    def owner_is_dead(self, owner: str) -> bool:
        return self.died(owner)


class Process:
    """One incarnation. Jobs for the store run one after another, as on a writer thread."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world, self.name, self.owner = world, name, f"{name}.{number}"
        self.dead = False
        self.frozen_until = 0.0
        self.held_until = 0.0  # it stood still, or a part of it, until then
        self.in_job = False
        self.clock = SkewedClock(self)
        dice = random.Random(f"{world.seed}/{self.owner}")
        self.env = SimEnv(self.clock, dice, self.owner, BOOT, world.is_dead)
        self.store = SimStore(self)
        self._jobs: deque[tuple[Callable[[], Any], Done]] = deque()
        self._working = False

    def die(self, why: str) -> None:
        """Nothing of this incarnation acts again; its tasks stay where they are."""
        if not self.dead:
            self.dead = True
            self._jobs.clear()
            self.world.note(self.owner, "dies", why)
            self.world.died(self)

    def check_alive(self) -> None:
        """Raise Crash for whoever still runs in a dead process."""
        if self.dead:
            raise Crash

    # ------------------------------------------------------------ jobs

    def submit(self, job: Callable[[], Any], done: Done) -> None:
        """Queue a job behind the others of this process."""
        if not self.dead:
            self._jobs.append((job, done))
            if not self._working:
                self._working = True
                self._later(self._perform)

    def _later(self, what: Callable[[], None]) -> None:
        self.world.loop.call_later(self.world.fate.latency(), self._unless_gone, what)

    def _unless_gone(self, what: Callable[[], None]) -> None:
        frozen = self.frozen_until - self.world.loop.time()
        if self.dead:
            return
        if frozen > 0:
            self.world.loop.call_later(frozen, self._unless_gone, what)
        else:
            what()

    def _perform(self) -> None:
        job, done = self._jobs.popleft()
        self.in_job = True
        SqliteStore.submit(self.store, job, partial(self._performed, done))

    def _performed(self, done: Done, result: Any, error: BaseException | None) -> None:
        self.in_job = False
        if not self.dead:
            self._later(partial(self._answer, done, result, error))

    def _answer(self, done: Done, result: Any, error: BaseException | None) -> None:
        self._working = bool(self._jobs)
        if self._jobs:
            self._later(self._perform)
        done(result, error)


class SimStore(SqliteStore):
    """A process's handle on the database that all processes of the world share."""

    def __init__(self, process: Process) -> None:
        vars(self).update(vars(process.world.disk.store))  # the connection and its facets are the world's
        self._process, self._world = process, process.world
        self._seen_commits = -1

    def submit(self, job: Callable[[], Any], done: Done, *, here: bool = False) -> None:
        self._process.submit(job, done)

    def append(self, appending: Appending, *, here: bool = False) -> None:
        answers: list[tuple[Any, BaseException | None]] = []
        kept = replace(appending, done=lambda rows, error: answers.append((rows, error)))

        def done(*_: Any) -> None:
            if wake := appending.done(*answers[0]):
                wake()

        self._process.submit(lambda: self.append_group([kept]), done)

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[SqliteTx]:
        process, world = self._process, self._world
        self._pass("begin")
        fate = world.fate.commit()
        world.committing(durable=durable)
        with super().transaction(durable=durable) as tx:
            with world.disk.failing_midway(*world.fate.midway(fate)):
                yield tx
            process.check_alive()  # it may have died in a read of the user's function, whose Crash counts as an error
            match fate:
                case "error":
                    raise StoreError("simulated: the disk refused the commit")
                case "crash before":
                    process.die("before commit")
                    raise Crash
                case "unknown, lost":
                    world.note(process.owner, fate)
                    raise CommitUnknown("simulated: no answer, and it was not committed")
        world.committed(process, durable=durable)
        match fate:
            case "crash after":
                process.die("after commit")
            case "unknown, done":
                world.note(process.owner, fate)
                raise CommitUnknown("simulated: no answer, but it was committed").of(self)
        process.check_alive()

    @contextmanager
    def reading(self, *, snapshot: bool = True) -> Iterator[SqliteTx]:
        self._pass("read")
        with super().reading(snapshot=snapshot) as tx:
            yield tx

    def changed(self) -> bool:
        self._process.check_alive()
        seen, self._seen_commits = self._seen_commits, self._world.commits
        return seen != self._seen_commits

    def close(self) -> None:
        """The database is the world's."""

    def _pass(self, where: str) -> None:
        """Between two operations anything may happen."""
        process, world = self._process, self._world
        process.check_alive()
        match world.fate.passing():
            case "crash":
                process.die(f"at {where}")
            case "error":
                raise StoreBusy("simulated: the write lock is taken").of(self)
            case "stall" if process.in_job and not world.disk.connection.in_transaction:  # others would wait for it
                world.stall(process)
        process.check_alive()
