"""Mutants of what protects a dependency: breakers, limits, probes. The simulated service itself must notice each.

As in `test_mutants.py`, whose rules are those of the protocol; these are the rules P1 to P5 in `docs/simulation.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from redrive.policy import breaker as brk
from redrive.policy import healing
from redrive.policy import outcome as out
from redrive.policy.auto_replay import BATCH_MAX
from redrive.policy.breaker import Admission, Breaker, Rule, State
from redrive.policy.limiter import Bucket, Taken
from redrive.runner.call import describe
from redrive.runner.gate import Gate
from redrive.runner.loop import HandlerLoop
from redrive.store.guards import Guards
from redrive.testing.sim.options import Dependency, Faults
from redrive.testing.simulator import simulate
from tests.simulation.test_mutants import Mutant, Plant, hunt, rewrite

SEEDS_MAX = 100
SICK = Dependency(failures=2, probes=1, cooldown=1.0, limit=None, when_open="pause", budget=100.0, over="wait")
WORLD: dict[str, Any] = {
    "kind": "async", "order": "key", "keys": 3, "key_by": "", "concurrency": 3, "call": 0.1, "timeout": None,
    "partitions": 2, "repartition": 2, "events": 14, "append_every": 0.05, "attempts": 12, "poison": 0.0, "odd": 0.0,
    "operate_every": 1.5, "dependency": SICK,
}  # fmt: skip
LIMITED = {**WORLD, "dependency": replace(SICK, limit="5/s"), "call": 0.0, "append_every": 0.0, "order": "none"}
SHARED = {**WORLD, "faults": Faults(), "call": 0.3, "events": 20, "partitions": 3, "repartition": 3}
SHARED_LIMIT = {
    **SHARED, "dependency": replace(SICK, limit="5/s", failures=1000), "call": 0.0, "append_every": 0.0,
    "order": "none",
}  # fmt: skip
DEATHS = {**WORLD, "faults": Faults(crash=0.01, chaos=1.0)}
HEALING = {**WORLD, "dependency": replace(SICK, when_open="bury", replays=True), "operate_every": 1e6}
MUTANTS: list[Mutant] = []


def mutant(name: str, rule: str, options: dict[str, Any]) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        MUTANTS.append(Mutant(name, rule, plant, options))
        return plant

    return add


# ---------------------------------------------------------------- P1: probes


@mutant("half-open lets everyone in", "P1", WORLD)
def _(patch: pytest.MonkeyPatch) -> None:
    admit = brk.admit

    def generous(breaker: Breaker, rule: Rule, now: float, in_flight: int) -> Admission:
        found = admit(breaker, rule, now, in_flight)
        return found._replace(room=math.inf) if found.breaker.state is State.PROBING else found

    patch.setattr(brk, "admit", generous)


@mutant("a gate stands open while the breaker is probing", "P1", WORLD)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "stands_open", property(lambda self: self.breaker.state is not State.OPEN))


@mutant("probes are counted per owner", "P1", SHARED)
def _(patch: pytest.MonkeyPatch) -> None:
    ask, asking = Gate.ask, []

    def note(self: Gate, wanted: int) -> None:
        asking[:] = [self.duty.member]
        ask(self, wanted)

    def own(self: Guards, name: str, now: float) -> int:
        return int(self._sql.value("probes_in_flight", {"breaker": name, "now": now, "me": asking[0]}))

    patch.setattr(Gate, "ask", note)
    patch.setattr(Guards, "probes", own)
    rewrite(patch, "probes_in_flight", "p.until > :now", "p.until > :now AND p.member = :me")


@mutant("the probes of a dead owner are never given back", "P1", DEATHS)
def _(patch: pytest.MonkeyPatch) -> None:
    rewrite(patch, "probes_in_flight", "AND m.epoch = p.epoch", "")


# ---------------------------------------------------------------- P2: what came of a probe


@mutant("probe result ignored", "P2", WORLD)
def _(patch: pytest.MonkeyPatch) -> None:
    answer = Gate._answer
    patch.setattr(Gate, "_answer", lambda self, work: None if work.probe else answer(self, work))


@mutant("a failed probe is one failure of many", "P2", WORLD)
def _(patch: pytest.MonkeyPatch) -> None:
    after = brk._after_one

    def patient(breaker: Breaker, rule: Rule, answer: brk.Answer, now: float) -> Breaker:
        return breaker if breaker.state is State.PROBING and not answer.good else after(breaker, rule, answer, now)

    patch.setattr(brk, "_after_one", patient)


# ---------------------------------------------------------------- P3: an open breaker costs nothing


@mutant("open spends attempts", "P3", WORLD)
def _(patch: pytest.MonkeyPatch) -> None:
    may_call = HandlerLoop._may_call

    async def refuse(self: HandlerLoop, count: int) -> bool:
        if self.work.gate is not None and self.work.gate.is_open and self.desk.ready:
            work, error = self.desk.ready.popleft(), ConnectionError("the breaker is open")
            work.outcome = out.Failed(error, describe(error))
            self.desk.outbox.append(work)
        return await may_call(self, count)

    patch.setattr(HandlerLoop, "_may_call", refuse)


@mutant("an open breaker holds nobody back", "P3", WORLD)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "stands_open", property(lambda self: True))


@mutant("a cooldown that starts over is not stored", "P3", {**WORLD, "faults": Faults(chaos=2.0)})
def _(patch: pytest.MonkeyPatch) -> None:
    admit = brk.admit

    def forgetful(breaker: Breaker, rule: Rule, now: float, in_flight: int) -> Admission:
        found = admit(breaker, rule, now, in_flight)
        return found if found.breaker.state is not State.OPEN else found._replace(breaker=breaker)

    patch.setattr(brk, "admit", forgetful)


@mutant(
    "what an open breaker buries it buries for ever", "P3", {**WORLD, "dependency": replace(SICK, when_open="bury")}
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(brk, "is_cooling", lambda breaker, now: breaker.state is State.OPEN)


# ---------------------------------------------------------------- P4: limits


def over_the_limit(patch: pytest.MonkeyPatch, fate: out.Outcome) -> None:
    """What there is no permit for meets this fate at once."""
    may_call = HandlerLoop._may_call

    async def hasty(self: HandlerLoop, count: int) -> bool:
        may, gate = await may_call(self, count), self.work.gate
        while gate is not None and gate.breaker.state is State.CLOSED and len(self.desk.ready) > len(gate._permits):
            work = self.desk.ready.pop()
            work.outcome = fate
            self.desk.outbox.append(work)
        return may

    patch.setattr(HandlerLoop, "_may_call", hasty)


@mutant("limiter reports success", "P4", LIMITED)
def _(patch: pytest.MonkeyPatch) -> None:
    over_the_limit(patch, out.APPLIED)


@mutant("drop on limit", "P4", LIMITED)
def _(patch: pytest.MonkeyPatch) -> None:
    over_the_limit(patch, out.Ignored("over the limit"))


@mutant("a limit limits nothing", "P4", LIMITED)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Guards, "take", lambda self, name, bucket, now, wanted: Taken(wanted, now, 0.0))


@mutant("a limit per owner", "P4", SHARED_LIMIT)
def _(patch: pytest.MonkeyPatch) -> None:
    ask, take, asking = Gate.ask, Guards.take, [0]

    def note(self: Gate, wanted: int) -> None:
        asking[:] = [self.duty.member]
        ask(self, wanted)

    def own(self: Guards, name: str, bucket: Bucket, now: float, wanted: int) -> Taken:
        return take(self, f"{name} {asking[0]}", bucket, now, wanted)

    patch.setattr(Gate, "ask", note)
    patch.setattr(Guards, "take", own)


@mutant("permits pile up while calls are slow", "P4", {**LIMITED, "call": 0.3, "append_every": 0.05, "concurrency": 1})
def _(patch: pytest.MonkeyPatch) -> None:
    def greedy(self: Gate, ready: int) -> int:
        waits = self.stands_open or self._is_tripping or self._monotonic() < self._ask_at
        return 0 if waits else ready - len(self._permits)

    patch.setattr(Gate, "wants", greedy)


# ---------------------------------------------------------------- P5: automatic replay


@mutant("auto-replay newest first", "P5", HEALING)
def _(patch: pytest.MonkeyPatch) -> None:
    next_letters = healing.next_letters

    def newest(letters: Iterable[healing.DeadLetter], room: int) -> list[healing.DeadLetter]:
        return next_letters(letters, BATCH_MAX)[::-1][:room]

    patch.setattr(healing, "next_letters", newest)


# ---------------------------------------------------------------- the hunt


@pytest.mark.timeout(300)
@pytest.mark.parametrize("planted", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_guard_is_noticed(
    planted: Mutant, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    assert hunt(planted, monkeypatch, record_property, SEEDS_MAX) <= SEEDS_MAX


WORLDS = {str(one.options): one for one in MUTANTS}


@pytest.mark.parametrize("planted", WORLDS.values(), ids=lambda mutant: mutant.name)
def test_it_is_the_mutant_that_is_noticed(planted: Mutant) -> None:
    """The same schedules without the mutant keep every promise."""
    for seed in range(8):
        result = simulate(seed, **planted.options)
        assert not result.violation, str(result)
