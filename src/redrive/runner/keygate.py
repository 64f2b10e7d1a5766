"""The gate before a handler whose keys each have a breaker, and a limit, of their own.

A work whose key is in trouble, or is limited, is taken aside until the store says what becomes of it: it goes, with a
pass; or it becomes a letter, without an attempt spent, that is due when its key may be tried again; or, if it is one
already, it is due later. All others go as if there were no gate. A lane has one work under way, and the next starts
when the fate of that is committed, breaker and all: nobody has to guess what the breaker will say.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from redrive.observe import signals as sig
from redrive.policy import action as act
from redrive.policy import breaker as brk
from redrive.policy import keys as policy
from redrive.policy import outcome as out
from redrive.policy.breaker import PRISTINE, Admission, Answer, Breaker, State
from redrive.policy.keys import Go, Hold, Verdict, is_clean
from redrive.policy.lanes import Head
from redrive.runner.budget import blocked
from redrive.runner.desk import Desk
from redrive.runner.duty import Duty, Work, fence
from redrive.runner.gate import Gate
from redrive.runner.settle import Settling
from redrive.store.port import StoreTx

ASK_MAX = 500  # works asked for in one transaction: each is a few statements, and others want to write, too
LOOK_EVERY = 1.0  # seconds between two looks at what others know of the keys: there may be thousands in trouble
SWEEP_EVERY = 10.0  # seconds between two looks for rows that have nothing to tell any more


class KeyGate(Gate):
    """What stands between the works of one owner and the many places they go to."""

    def __init__(self, duty: Duty, desk: Desk) -> None:
        super().__init__(duty)
        assert self.rule is not None
        self.desk, self._rule = desk, self.rule
        self._known: dict[str, Breaker] = {}  # by key, "" for what has none: those that are not closed and clean
        self._passes: set[Work] = set()
        self._ask_again: dict[str, float] = {}  # on the monotonic clock, by key: asking earlier would be in vain
        self._not_made: Counter[str] = Counter()  # probes that were taken from the store: others may make them
        self._heard: dict[str, Breaker] = {}  # how they stand when the transaction at hand has committed
        self.blamed: dict[Work, float] = {}  # works whose key takes the blame: its breaker is open for so long
        self._look_at = self._sweep_at = 0.0

    def _slot(self, key: str | None) -> str:
        """Whose breaker it is."""
        known = self._known
        return key if key is not None and (key in known or len(known) < policy.KEYS_MAX) else ""

    def _name(self, slot: str) -> str:
        return policy.name_of(self.name, slot)

    @property
    def _buckets(self) -> str:
        return f"limit {self.duty.subscription.name}/"

    def _is_free(self, work: Work) -> bool:
        if self._limit is not None or self._trips(work):
            return False
        found = self._known.get(self._slot(work.key)) if self._known else None
        return found is None or policy.lets_all(found, self.duty.engine.env.clock.now())

    def _trips(self, work: Work) -> bool:
        """Outside a lane calls run side by side: do those that are not settled yet open the breaker they share?"""
        if not self._streak or work.key is not None:
            return False
        shared = self._known.get("", PRISTINE)
        return shared.state is not State.CLOSED or shared.failures + self._streak >= self._rule.failures

    @property
    def stands_open(self) -> bool:
        """Does it let everything through?"""
        return self._limit is None and not self._known

    @property
    def is_shut(self) -> bool:
        """Never for all of them."""
        return False

    @property
    def watches(self) -> bool:
        """May others, or an operator, know better by now?"""
        return bool(self._known)

    # ------------------------------------------------------------ passes

    def pass_one(self, ready: deque[Work]) -> Work:
        """The next work that may be called; IndexError if there is none. From any thread."""
        while True:
            work = ready.popleft()
            if not self._trips(work):
                if work in self._passes:
                    self._passes.discard(work)
                    return work
                if self._is_free(work):
                    return work
            self.desk.aside.append(work)

    def wants(self, ready: int) -> int:
        """Nothing for all of them: see `sift`."""
        return 0

    def defer(self, due: Iterable[tuple[str | None, Head]]) -> list[tuple[str | None, Head]]:
        """Letters whose time has come, without those whose key is certainly still left alone."""
        now, may = self.duty.engine.env.clock.now(), []
        for lane, head in due:
            found = self._known.get(self._slot(lane))
            wait = 0.0
            if found is not None and found.state is State.OPEN:
                wait = self._seconds(found, now)
            if wait > 0 and self._rule.when_open == "pause":
                self.duty.lanes.put(lane, head._replace(due_at=now + wait))
            else:
                may.append((lane, head))
        return may

    def _seconds(self, breaker: Breaker, now: float) -> float:
        """How long an open one stays so."""
        admission = brk.admit(breaker, self._rule, now, 0)
        return policy.shut_for(admission, self._rule) if not admission.room else 0.0

    def sift(self, stale: Iterable[Work] = ()) -> list[Work]:
        """Take aside what does not go by itself; those to be asked for now. `stale`: given up while they were ready."""
        desk, now = self.desk, self._monotonic()
        for work in stale:
            self._give_up_pass(work)
        if not self.stands_open:
            for queue in (desk.ready, desk.alone):
                self._take_aside(queue)
        asked: list[Work] = []
        for _ in range(len(desk.aside)):
            work = desk.aside.popleft()
            if work.head is not None and self.duty.lanes.head(work.lane, work.head.letter) != work.head:
                desk.free(work)  # an operator changed it: the new head comes by itself
            elif self._is_free(work):
                self._give_up_pass(work)
                desk.run(work)
            elif len(asked) >= ASK_MAX or self._ask_again.get(self._slot(work.key), 0.0) > now or self._trips(work):
                desk.aside.append(work)
            else:
                asked.append(work)
        for work in asked:
            self._give_up_pass(work)
            self._ask_again.pop(self._slot(work.key), None)
        return asked

    def _take_aside(self, queue: deque[Work]) -> None:
        for _ in range(len(queue)):
            try:
                work = queue.popleft()
            except IndexError:  # who calls was faster
                return
            goes = self._is_free(work) or (work in self._passes and not self._trips(work))
            (queue if goes else self.desk.aside).append(work)

    def _give_up_pass(self, work: Work) -> None:
        if work in self._passes:
            self._passes.discard(work)
            self._not_made[self._slot(work.key)] += work.probe
            work.probe = False

    def pause(self) -> float:
        """Seconds until there is something to ask, or to tidy up."""
        waiting = [self._ask_again.get(self._slot(work.key), 0.0) for work in self.desk.aside]
        return max(0.0, min([self._sweep_at, *waiting]) - self._monotonic())

    @property
    def has_to_sweep(self) -> bool:
        """Is it time to tidy up?"""
        return self._monotonic() >= self._sweep_at

    def ask_for(self, works: Sequence[Work]) -> list[tuple[Work, Verdict]]:
        """What becomes of these. Runs where writing happens. A power cut that takes it back takes us, too."""
        duty, found = self.duty, dict[str, Breaker]()
        by_slot: dict[str, list[Work]] = {}
        for work in works:
            by_slot.setdefault(self._slot(work.key), []).append(work)
        told: list[tuple[Work, Verdict]] = []
        with duty.engine.store.transaction(durable=False) as tx:
            fence(duty, tx)
            now = duty.engine.env.clock.now()
            for slot in sorted(by_slot):  # two who lock the same ones do it in the same order
                mine = by_slot[slot]
                found[slot], verdicts = self._judge(tx, slot, len(mine), now)
                told += zip(mine, verdicts, strict=True)
        for slot, breaker in found.items():
            self._not_made.pop(slot, None)
            self._understand(slot, breaker, now)
        self._sweep_at = min(self._sweep_at, self._monotonic() + SWEEP_EVERY)
        return told

    def _judge(self, tx: StoreTx, slot: str, count: int, now: float) -> tuple[Breaker, list[Verdict]]:
        name, owner = self._name(slot), (self.duty.member, self.duty.epoch)
        admission = Admission(PRISTINE, math.inf, 0.0)
        if slot in self._known:
            if self._not_made[slot]:
                tx.guards.return_probes(name, owner, self._not_made[slot])
            before = tx.guards.lock(name)
            admission = brk.admit(before, self._rule, now, tx.guards.probes(name, now))
            if admission.breaker != before:
                tx.guards.save(name, admission.breaker)
            if slot and is_clean(admission.breaker, now):
                tx.guards.forget(name, admission.breaker)
        limit, taken = brk.limit_after(admission.breaker, self._limit, now), None
        if limit is not None and (wanted := int(min(count, admission.room))):
            taken = tx.guards.take(self._buckets + slot, limit, now, wanted)
        verdicts = policy.verdicts(count, admission, taken, self._rule)
        probes = verdicts.count(Go(probe=True))
        if probes:
            tx.guards.take_probes(name, owner, probes, now + self._probe_seconds())
        return admission.breaker, verdicts

    def sweep(self) -> None:
        """Remove what has nothing to tell. Runs where writing happens, and by itself: it locks rows of others."""
        with self.duty.engine.store.transaction(durable=False) as tx:
            fence(self.duty, tx)
            now = self.duty.engine.env.clock.now()
            found = tx.guards.keyed(self._name(""), policy.KEYS_MAX)
            for slot, breaker in found.items():
                if is_clean(breaker, now):
                    tx.guards.forget(self._name(slot), breaker)
            fading = any(policy.fades(breaker, now) for breaker in found.values())
            more = tx.guards.forget_full(self._buckets, now) or fading
        self._sweep_at = self._monotonic() + SWEEP_EVERY if more else math.inf

    def decide(self, told: Iterable[tuple[Work, Verdict]]) -> None:
        """Do as the store has said."""
        for work, verdict in told:
            match verdict:
                case Go(probe):
                    work.probe = probe
                    self._passes.add(work)
                    self.desk.run(work)
                case Hold(reason, seconds):
                    self._hold(work, reason, seconds)

    def _hold(self, work: Work, reason: str, seconds: float) -> None:
        desk, slot = self.desk, self._slot(work.key)
        limited = reason == act.RATE_LIMITED
        if limited and policy.waits_here(len(desk), self.duty.engine.settings.window_max):
            self._ask_again[slot] = self._monotonic() + seconds
            desk.aside.append(work)
            return
        if not limited and self._rule.when_open == "bury" and self._known.get(slot, PRISTINE).state is State.OPEN:
            work.outcome = blocked(act.BREAKER_OPEN, "BreakerOpen", f"the breaker {self._name(slot)!r} was open")
            work.attempt -= 1
        elif work.head is not None:
            due_at = self.duty.engine.env.clock.now() + seconds
            self.duty.lanes.put(work.lane, work.head._replace(due_at=due_at))
            desk.free(work)
            return
        else:
            work.outcome = out.Held(reason, seconds)
        desk.outbox.append(work)

    # ------------------------------------------------------------ answers

    def called(self, work: Work) -> bool:
        """A call came to an end; is that worth settling at once? From any thread."""
        answer = self._answer(work)
        bad = answer is not None and not answer.good
        if work.key is None and answer is not None:
            self._streak = self._streak + 1 if bad else 0
        return work.probe or bad

    def look(self, tx: StoreTx) -> None:
        """What others have learnt of the keys."""
        if self._monotonic() < self._look_at:
            return
        self._look_at = self._monotonic() + LOOK_EVERY
        now = self.duty.engine.env.clock.now()
        found = {"": tx.guards.breaker(self._name("")), **tx.guards.keyed(self._name(""), policy.KEYS_MAX)}
        for slot in {*self._known, *found}:
            was, breaker = self._known.get(slot, PRISTINE), found.get(slot, PRISTINE)
            self._understand(slot, breaker, now)
            if was.state is State.OPEN and breaker.state is not State.OPEN:
                self._make_due(slot, now)

    def _make_due(self, lane: str, now: float) -> None:
        """What waited for its breaker need not wait any more."""
        head = self.duty.lanes.names.get(lane)
        if head is not None and head.state == "retrying" and head.due_at > now:
            self.duty.lanes.put(lane, head._replace(due_at=now))

    def feed(self, settling: Settling, group: Sequence[Work]) -> None:
        """Tell the breakers what came of these calls, in the transaction that settles them, and before that."""
        self._heard, self.blamed = {}, {}
        by_slot: dict[str, list[tuple[Work, Answer | None]]] = {}
        for work in group:
            answer, slot = self._answer(work), self._slot(work.key)
            news = answer is not None and (not answer.good or slot in self._known)
            if news or work.probe:
                by_slot.setdefault(slot, []).append((work, answer))
        for slot in sorted(by_slot):
            self._feed_one(settling, slot, by_slot[slot])

    def _feed_one(self, settling: Settling, slot: str, told: list[tuple[Work, Answer | None]]) -> None:
        guards, name, now = settling.tx.guards, self._name(slot), settling.now
        before = guards.lock(name)
        after = brk.after(before, self._rule, [answer for _, answer in told if answer is not None], now)
        probes = sum(1 for work, _ in told if work.probe) + self._not_made[slot]
        if probes:
            guards.return_probes(name, (self.duty.member, self.duty.epoch), probes)
        guards.save(name, after)
        if slot and is_clean(after, now):
            guards.forget(name, after)
        self._heard[slot] = after
        if after.state is State.OPEN and self._rule.when_open == "pause":
            bad = [work for work, answer in told if answer is not None and not answer.good and work.lane is not None]
            self.blamed.update((work, self._seconds(after, now)) for work in bad)

    def fed(self, group: Sequence[Work], now: float) -> None:
        """That was committed."""
        for work in group:
            work.probe = False
        for slot, breaker in self._heard.items():
            self._not_made.pop(slot, None)
            self._understand(slot, breaker, now)
        self._heard, self.blamed = {}, {}
        self._streak = 0

    def _understand(self, slot: str, breaker: Breaker, now: float) -> None:
        """The breaker of a key stands like this."""
        was = self._known.get(slot, PRISTINE).state
        if is_clean(breaker, now):
            self._known.pop(slot, None)
        else:
            self._known[slot] = breaker
            if policy.fades(breaker, now):
                self._sweep_at = min(self._sweep_at, self._monotonic() + SWEEP_EVERY)
        if breaker.state is was:
            return
        for work in [one for one in self._passes.copy() if self._slot(one.key) == slot]:  # for another state
            self._give_up_pass(work)
        if self.duty.share.has(slot):
            self.duty.engine.signals.tell([self._signal(breaker, slot)])

    def _signal(self, breaker: Breaker, slot: str) -> sig.Signal:
        mine, name = self.duty.subscription.name, self.name
        match breaker.state:
            case State.OPEN:
                return sig.BreakerOpened(mine, name, breaker.until - breaker.since, slot)
            case State.PROBING:
                return sig.BreakerProbing(mine, name, slot)
        return sig.BreakerClosed(mine, name, slot)
