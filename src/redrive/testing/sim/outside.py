"""A service outside of the simulated world's database: down now and then, and it keeps its own list of who called it.

What a breaker and a limit promise is checked here, by what arrives: never by what redrive itself counts. Of its tables
only the state of the breaker is read, to know what was promised at that moment.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive.policy.auto_replay import auto_replay
from redrive.policy.breaker import breaker
from redrive.policy.limiter import paced
from redrive.testing.sim.options import Dependency
from redrive.testing.sim.seen import Planned

if TYPE_CHECKING:
    from redrive.testing.sim.process import Process
    from redrive.testing.sim.workload import Workload
    from redrive.testing.sim.world import World

NAME = "outside"
CALL_MAX = 0.4  # seconds that a call takes at most, so that a worker that is not held up soon looks at the store again
STALE = 0.8  # seconds after which such a worker knows how the breaker stands
NEARLY = 0.05  # of a call: a bucket rounds a little
SICK_FOR = 3.0  # seconds after the other trouble is over, at most
SELECTED = """SELECT o.operation, l.event_id, o.asked, l.state = 'dead' AND l.rev = o.rev AND o.result IS NULL
FROM redrive_operation_letters o JOIN redrive_operations b ON b.id = o.operation AND b.who = 'auto-replay'
JOIN redrive_letters l ON l.id = o.letter ORDER BY l.position"""
BREAKER = "SELECT state, since FROM redrive_breakers WHERE name = ?"


@dataclass(slots=True, eq=False)
class Arrival:
    """One call, as the service sees it."""

    process: Process
    planned: Planned
    epoch: int
    attempt: int
    at: float
    probe: float | None  # the state that let it through as a probe began then; None: it came as any other
    over: bool = False
    good: bool = False


class Outside:
    """The service, and what it may expect of those who call it."""

    def __init__(self, world: World, workload: Workload, dependency: Dependency) -> None:
        self.world, self.workload, self.dependency = world, workload, dependency
        self.bucket = None if dependency.limit is None else paced(dependency.limit)
        self.outages = _outages(random.Random(f"outages {world.seed}"), world.options.phase)
        self.state, self.since = "closed", 0.0
        self.left = {"closed": 0.0, "open": -1e9, "probing": -1e9}  # when the breaker was last seen to be so
        self.arrivals: list[Arrival] = []
        self.calls: Counter[str] = Counter()
        self._latest: dict[str, Arrival] = {}  # of each event, until what came of it is seen
        self._successes = 0  # of probes, since it is probing
        self._offset = 0.0  # of the wall clock
        self.came_round: set[str] = set()  # events whose letter was replayed automatically
        self._asked: set[tuple[int, str]] = set()  # the same, by operation
        self._fair_since = 0  # arrivals before this one came by other clocks

    def guards(self) -> dict[str, Any]:
        """What a handler says about it."""
        rule = self.dependency
        return {
            "breaker": breaker(
                NAME, failures=rule.failures, cooldown=rule.cooldown, probes=rule.probes, when_open=rule.when_open
            ),
            "limit": rule.limit,
            "replay": auto_replay(on_recovery=True) if rule.replays else None,
        }

    # ------------------------------------------------------------ calls

    async def call(self, process: Process, planned: Planned, ctx: Any, seconds: float) -> None:
        """Do what is asked, unless it is down: ConnectionError."""
        arrival = self.arrives(process, planned, ctx)
        try:
            await asyncio.sleep(seconds)
            if process.dead:
                await asyncio.Event().wait()
            self.answer(arrival)
        finally:
            arrival.over = True

    def answer(self, arrival: Arrival) -> None:
        """Well, or not."""
        arrival.over = True
        now = self.world.clock.monotonic()
        if any(began <= now < ended for began, ended in self.outages):
            self.workload.failures[arrival.planned.id] += 1
            raise ConnectionError("simulated: nobody answers")
        arrival.good = True

    def arrives(self, process: Process, planned: Planned, ctx: Any) -> Arrival:
        """A call begins."""
        now = self.world.clock.monotonic()
        self.left[self.state] = now
        knows = now - max(self.left["closed"], process.held_until) > STALE
        arrival = Arrival(process, planned, ctx.epoch, ctx.attempt, now, self.since if knows else None)
        self.calls[planned.id] += 1
        self._notice_clocks()
        if knows and self.state == "open" and now - self.left["probing"] > STALE:
            self.world.fail(f"open: {planned.id} is called by {process.owner}, who knows that the breaker is open")
        self.arrivals.append(arrival)
        if self._is_owned(arrival):
            self._latest[planned.id] = arrival
        self._check_probes()
        self._check_limit()
        return arrival

    def _check_probes(self) -> None:
        """At most so many are under way of those who own what they work on, whatever others believe to own."""
        fair = self.arrivals[self._fair_since :]
        under_way = [one for one in fair if one.probe is not None and self._is_under_way(one)]
        if self.state == "probing" and len(under_way) > self.dependency.probes:
            told = [f"{one.planned.id} of {one.process.owner}" for one in under_way]
            self.world.fail(f"probes: {told} are under way, {self.dependency.probes} may be")

    def _is_under_way(self, arrival: Arrival) -> bool:
        return self._is_owned(arrival) and not arrival.over and not arrival.process.dead

    def _is_owned(self, arrival: Arrival) -> bool:
        return self.workload.checker.seen.member_of(arrival.planned).epoch == arrival.epoch

    def _check_limit(self) -> None:
        """No stretch of time sees more than the bucket holds, fills, and what each caller has got in advance."""
        if self.bucket is None:
            return
        last, callers = self.arrivals[-1], set()
        for count, one in enumerate(reversed(self.arrivals[self._fair_since :]), 1):
            callers.add((one.process.owner, one.epoch, self.workload.checker.seen.member_of(one.planned)))
            fair = self.bucket.burst * (1 + len(callers)) + self.bucket.rate * (last.at - one.at)
            if count > fair + NEARLY:
                self.world.fail(f"limit: {count} calls in {last.at - one.at:.3f} s, {self.dependency.limit} is allowed")

    def _notice_clocks(self) -> None:
        """Who shares a breaker or a bucket shares a clock: while one differs, or after all were set, we start over."""
        offset = round(self.world.clock.now() - self.world.clock.monotonic(), 3)
        skews = {process.clock.skew for process in self.world.workers.values() if not process.dead}
        if len(skews) > 1 or offset != self._offset:
            self._fair_since = len(self.arrivals) + 1
        self._offset = offset

    # ------------------------------------------------------------ the breaker

    def committed(self) -> None:
        """How the breaker stands now, and whether it heeds what came of its probes."""
        rows = self.world.disk.rows(BREAKER, NAME)
        state, since = rows[0] if rows else ("closed", 0.0)
        self.left[self.state] = self.world.clock.monotonic()
        if (state, since) != (self.state, self.since):
            self.world.note(NAME, state)
            self._successes = 0
        self.state, self.since = state, since
        self._notice_clocks()
        self._heed()
        self._check_attempts()
        if self.dependency.replays:
            self._check_replays()

    def _check_replays(self) -> None:
        """What comes round again by itself comes in the order of the log."""
        rows = self.world.disk.rows(SELECTED)
        asked = {(operation, event) for operation, event, is_asked, _ in rows if is_asked}
        for operation, event in sorted(asked - self._asked):
            older = (row for row in rows[: [row[:2] for row in rows].index((operation, event))] if row[0] == operation)
            passed_over = [other for _, other, is_asked, waits in older if waits and not is_asked]
            if passed_over:
                self.world.fail(f"auto-replay: {event} comes round again before {passed_over}")
        self._asked |= asked
        self.came_round |= {event for _, event in asked}

    def _heed(self) -> None:
        """What is settled of the latest calls: a bad probe opens it, enough good ones close it."""
        seen = self.workload.checker.seen
        applied = {event for event, _, _ in seen.effects}
        for event, arrival in list(self._latest.items()):
            letter = seen.letters.get(event)
            failed = letter is not None and letter.attempts == arrival.attempt and letter.state in ("retrying", "dead")
            if not arrival.over or not (failed or event in applied):
                continue
            del self._latest[event]
            if self.state != "probing" or arrival.probe != self.since:
                continue
            if failed and not arrival.good:
                self.world.fail(f"probe: {event} failed as a probe, and the breaker is probing still")
            self._successes += arrival.good and event in applied
            if self._successes >= self.dependency.probes:
                self.world.fail(f"probe: {self._successes} went well, and the breaker is probing still")

    def _check_attempts(self) -> None:
        """An attempt is a call that was made."""
        for letter in self.workload.checker.seen.letters.values():
            calls, called = self.calls[letter.event], self.workload.by_id[letter.event].fate != "badkey"
            if letter.attempts > calls and called:
                self.world.fail(f"attempts: {letter.event} has spent {letter.attempts}, and was called {calls} times")


def _outages(dice: random.Random, phase: float) -> list[tuple[float, float]]:
    """When it is down: now and then while there is trouble, and perhaps for a while after that."""
    outages, now = [], dice.choice([0.0, dice.uniform(0.0, 1.0)])
    while now < phase:
        ends = now + dice.uniform(0.3, 2.5)
        outages.append((now, min(ends, phase + SICK_FOR)))
        now = ends + dice.uniform(0.2, 1.5)
    return outages
