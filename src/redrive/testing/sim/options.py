"""What one schedule is made of. A seed decides everything; an option given by hand overrides the seed."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal

from redrive.errors import UsageError
from redrive.settings import Settings


@dataclass(frozen=True, slots=True)
class Faults:
    """How often something goes wrong, per operation on the store unless it says otherwise."""

    error: float = 0.0  # nothing happened, and an error says so
    unknown: float = 0.0  # COMMIT was sent and no answer came: half of them happened
    midway: float = 0.0  # the disk gives up in the middle of a transaction
    crash: float = 0.0  # the process dies: before, or after the commit
    stall: float = 0.0  # a thread stands still between two operations while the world goes on
    power: float = 0.0  # the machine goes dark after a commit that was not synced, and takes it back
    chaos: float = 0.0  # deaths, freezes, stops and clock jumps per second, at any time

    def scaled(self, by: float) -> Faults:
        """More or less of everything."""
        return Faults(*(getattr(self, field.name) * by for field in fields(self)))


HANDLERS = ("async", "sync")  # kinds whose function runs outside of the transaction
UPGRADED = 0.1  # share of the schedules in which a rebuild brings a newer version
DEPENDENT = 0.12  # share of the handlers that call a service outside
HOLDING = 0.15  # share of the schedules in which keys are held
USUAL = Faults(error=0.015, unknown=0.02, midway=0.01, crash=0.006, stall=0.04, power=0.02, chaos=0.5)


@dataclass(frozen=True, slots=True)
class Dependency:
    """A service outside that a handler calls, and what it says about it."""

    failures: int
    probes: int
    cooldown: float
    limit: str | None
    when_open: Literal["pause", "bury"]
    budget: float  # retries a second
    over: Literal["wait", "bury"]  # what becomes of retries that it does not cover
    replays: bool = False  # dead letters come round again by themselves when it is well

    @property
    def causes(self) -> set[str]:
        """Why an event may be buried without having been called."""
        said = {"breaker_open": self.when_open, "retry_limited": self.over}
        return {reason for reason, answer in said.items() if answer == "bury"}

    def settings(self) -> dict[str, Any]:
        """Its part of them."""
        return {"retry_budget": self.budget, "retry_budget_over": self.over}

    @staticmethod
    def of(dice: random.Random) -> Dependency:
        """One as good as any."""
        return Dependency(
            failures=dice.randint(1, 3),
            probes=dice.randint(1, 2),
            cooldown=dice.choice([1.0, 1.5]),
            limit=dice.choice([None, None, "5/s", "20/s"]),
            when_open=dice.choice(["pause", "pause", "pause", "bury"]),
            budget=dice.choice([8.0, 20.0, 100.0]),
            over=dice.choice(["wait", "wait", "bury"]),
            replays=dice.random() < 0.4,
        )


@dataclass(frozen=True, slots=True)
class Options:
    """One schedule, spelt out."""

    seed: int
    kind: str  # projection, batch, async, sync
    order: str
    concurrency: int
    state: bool
    wraps: bool  # the state is deleted at every third event of a key
    emit: bool
    tail: bool  # a second subscription applies what the first one emits
    key_by: str  # where the key is: "" with the event, "field" in its data, "function" asks a function
    timeout: float | None
    attempts: int
    events: int
    keys: int
    keyless: float
    poison: float
    flaky: float
    odd: float  # share of verdicts, bad statements, slow calls, exits
    lane_max: int
    window_max: int
    batch_max: int
    settle_max: int
    lease: float
    poll: float
    call: float  # mean seconds a handler takes
    latency: float  # mean seconds an operation takes
    append_every: float
    operate_every: float
    phase: float  # seconds of trouble before the faults stop
    faults: Faults
    partitions: int
    repartition: int  # how many there are after the second half of the trouble began
    wait: float  # seconds before the next attempt; without any, a projection makes it in the same transaction
    later: float  # seconds after which what is emitted comes into the log; 0: at once
    dependency: Dependency | None  # what a handler calls
    versions: bool = False  # does an operator rebuild with a newer version while workers run the former one?
    holds: bool = False  # does an operator hold keys?

    @staticmethod
    def of(seed: int, **given: Any) -> Options:
        """Everything the seed decides, except what is given."""
        dice = random.Random(seed)
        kind = dice.choice(["projection"] * 3 + ["batch"] * 2 + ["async"] * 6 + ["sync"])
        order = dice.choice(["key"] * 6 + ["none", "none", "total"])
        handler = kind in HANDLERS
        drawn = Options(
            seed=seed,
            kind=kind,
            order=order,
            concurrency=dice.randint(1, 3) if handler and order != "total" else 1,
            state=handler and dice.random() < 0.6,
            wraps=dice.random() < 0.5,
            emit=dice.random() < 0.5,
            tail=dice.random() < 0.4,
            key_by=dice.choice(["", "", "", "field", "function"]),
            timeout=0.4 if kind == "async" and dice.random() < 0.3 else None,
            attempts=dice.randint(2, 3),
            events=dice.randint(6, 14),
            keys=dice.randint(1, 3),
            keyless=dice.choice([0.0, 0.0, 0.2]),
            poison=dice.choice([0.0, 0.15, 0.3]),
            flaky=dice.choice([0.0, 0.25, 0.4]),
            odd=dice.choice([0.0, 0.1, 0.25]),
            lane_max=dice.choice([2, 3, 1000, 1000]),
            window_max=dice.choice([2, 5, 1000]),
            batch_max=dice.choice([1, 3, 500]),
            settle_max=dice.choice([1, 2, 500]),
            lease=dice.uniform(0.6, 1.5),
            poll=dice.choice([0.05, 0.4]),
            call=dice.choice([0.0, 0.02, 0.1]),
            latency=dice.choice([0.001, 0.01]),
            append_every=dice.choice([0.0, 0.05, 0.3]),
            operate_every=dice.choice([0.15, 0.4, 1.5]),
            phase=dice.uniform(2.5, 5.0),
            faults=USUAL.scaled(dice.choice([0.0, 0.5, 1.0, 2.0])),
            partitions=dice.choice([1, 1, 1, 2, 3]),
            repartition=dice.choice([1, 2, 3]),
            wait=dice.choice([0.0, 0.1, 0.1]) if not handler else 0.1,
            later=dice.choice([0.0, 0.0, 0.0, 0.0, 0.02, 0.5]),
            dependency=None,
            holds=random.Random(f"hold {seed}").random() < HOLDING,  # its own: other seeds go on as they did
        )
        outside = random.Random(f"guard {seed}")  # its own: other seeds go on as they did
        calls_out = outside.random() < DEPENDENT and handler and given.get("kind", kind) in HANDLERS
        if given.get("dependency", calls_out):
            drawn = replace(drawn, dependency=Dependency.of(outside), attempts=outside.randint(2, 12))
        newer = random.Random(f"versions {seed}")  # its own, likewise
        drawn = replace(drawn, versions=newer.random() < UPGRADED)
        unknown = set(given) - {field.name for field in fields(Options)}
        if unknown:
            raise UsageError(f"a schedule has no option {min(unknown)!r}")
        return replace(drawn, **given)._sensible()

    def _sensible(self) -> Options:
        """What was given by hand may not go together with what the seed drew."""
        return replace(
            self,
            state=self.state and self.handler,
            tail=self.tail and self.emit,
            concurrency=self.concurrency if self.handler and self.order != "total" else 1,
            timeout=self.timeout if self.kind == "async" else None,
            partitions=self.partitions if self.divisible else 1,
            repartition=self.repartition if self.divisible and self.partitions > 1 else 1,
            dependency=self.dependency if self.handler else None,
        )

    @property
    def divisible(self) -> bool:
        """May there be partitions?"""
        return self.order != "total" and not self.key_by and not (self.kind == "batch" and self.emit)

    @property
    def handler(self) -> bool:
        """Does the function run outside of the transaction?"""
        return self.kind in HANDLERS

    def settings(self) -> Settings:
        """The settings of every process of this schedule."""
        return _settings(self)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in asdict(self).items())


@lru_cache(maxsize=1)  # each event is appended by an app of its own, and to check them again takes as long as to append
def _settings(options: Options) -> Settings:
    guards = {} if options.dependency is None else options.dependency.settings()
    return Settings(
        lease=options.lease, batch_max=options.batch_max, window_max=options.window_max, lane_max=options.lane_max,
        settle_max=options.settle_max, poll_min=options.poll, poll_max=options.poll, halt_wait=0.1, halt_wait_max=0.4,
        stop_timeout=2.0, **guards,
    )  # fmt: skip
