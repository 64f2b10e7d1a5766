"""The gate before a handler: its breaker and its limits, which all workers share through the store.

The coordinator asks the store for permits, as many as there are works to run; whoever takes a work takes a permit for
it. While the breaker is closed and nothing is limited the gate stands open and costs a look per round. What it
holds back is not called, so that no attempt is spent; the fate of what was called tells the breaker how the
dependency is, in the transaction that settles it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from redrive.observe import signals as sig
from redrive.policy import action as act
from redrive.policy import breaker as brk
from redrive.policy import outcome as out
from redrive.policy.breaker import PRISTINE, Admission, Answer, Breaker, State
from redrive.policy.limiter import Bucket
from redrive.runner.budget import blocked
from redrive.runner.duty import Duty, Work, fence
from redrive.runner.settle import Settling
from redrive.store.port import StoreTx

PROBE_SECONDS_MAX = 300.0  # a probe of an owner whom nobody succeeded is given up after that, or twice its timeout
ASK_MAX = 1_000  # permits asked for at once; what a stop leaves unused is lost to the others


class Permit(NamedTuple):
    """To call the function once."""

    probe: bool


class Gate:
    """What stands between the works of one owner and the dependency they call."""

    def __init__(self, duty: Duty) -> None:
        subscription = duty.subscription
        self.duty, self.rule = duty, subscription.breaker
        self.name = subscription.dependency
        self.breaker = PRISTINE
        self._limit = subscription.limit
        self._permits: deque[Permit] = deque()
        self._told: State = State.CLOSED
        self._fed: Breaker | None = None  # how it stands when the transaction at hand has committed
        self._streak = 0  # calls in a row that blamed the dependency and are not settled yet
        self._unused = 0  # probes that were taken from the store and not made: others may make them
        self.on_change: Callable[[], None] = lambda: None  # called where writing happens
        self._ask_at = self._ramp_until = 0.0  # on the monotonic clock: asking earlier would be in vain

    @property
    def stands_open(self) -> bool:
        """Does it let everything through?"""
        return (
            self._limit is None
            and self.breaker.state is State.CLOSED
            and not (self._streak and self._is_tripping)
            and not (self._ramp_until and self._ramp_until > self._monotonic())
        )

    @property
    def is_shut(self) -> bool:
        """Does it hold back what is ready now?"""
        return not self.stands_open and (self._is_tripping or not self._permits)

    @property
    def watches(self) -> bool:
        """May others, or an operator, know better by now?"""
        return self.is_shut

    @property
    def waits_for_others(self) -> bool:
        """Does what it holds back wait for the dependency, rather than for its turn?"""
        return self.breaker.state is not State.CLOSED and self.is_shut

    # ------------------------------------------------------------ permits

    def pass_one(self, ready: deque[Work]) -> Work:
        """The next work that may be called; IndexError if there is none, or no permit for it. From any thread."""
        if self._streak and self._is_tripping:
            raise IndexError
        permit = _FREE if self.stands_open else self._permits.popleft()
        try:
            work = ready.popleft()
        except IndexError:
            if permit is not _FREE:
                self._permits.appendleft(permit)
            raise
        work.probe = permit.probe
        return work

    def wants(self, ready: int) -> int:
        """How many permits to ask the store for, with so many works ready."""
        if self.stands_open or self._is_tripping or self._monotonic() < self._ask_at:
            return 0
        limit = brk.limit_after(self.breaker, self._limit, self.duty.engine.env.clock.now())
        # Permits that lie here while calls are slow would all be used at once when they are fast again.
        most = ASK_MAX if limit is None else min(ASK_MAX, limit.burst)
        return min(most, ready) - len(self._permits)

    def pause(self) -> float:
        """Seconds until it is worth asking again."""
        return max(0.0, self._ask_at - self._monotonic())

    def ask(self, wanted: int) -> None:
        """Get permits from the store. Runs where writing happens. A power cut that takes it back takes us, too."""
        duty = self.duty
        with duty.engine.store.transaction(durable=False) as tx:
            fence(duty, tx)
            now = duty.engine.env.clock.now()
            self._give_back(tx, self._unused)
            admission = self._admitted(tx, now)
            count, wait = int(min(wanted, admission.room)), admission.wait
            limit = brk.limit_after(admission.breaker, self._limit, now)
            if count and limit is not None:
                taken = tx.guards.take(f"limit {duty.subscription.name}", limit, now, count)
                count, wait = taken.granted, taken.wait
            probing = admission.breaker.state is State.PROBING
            if count and probing:
                tx.guards.take_probes(self.name, (duty.member, duty.epoch), count, now + self._probe_seconds())
        self._unused = 0
        self._learn(admission.breaker, now)
        self._permits.extend([Permit(probing)] * count)
        if not count:
            self._ask_at = self._monotonic() + min(wait, duty.engine.settings.lease)

    def _admitted(self, tx: StoreTx, now: float) -> Admission:
        if self.rule is None:
            return Admission(PRISTINE, math.inf, 0.0)
        found = tx.guards.breaker(self.name)
        if found.state is State.CLOSED:
            return Admission(found, math.inf, 0.0)
        found = tx.guards.lock(self.name)
        admission = brk.admit(found, self.rule, now, tx.guards.probes(self.name, now))
        tx.guards.save(self.name, admission.breaker)
        return admission

    def _probe_seconds(self) -> float:
        timeout = self.duty.subscription.timeout
        return PROBE_SECONDS_MAX if timeout is None else min(PROBE_SECONDS_MAX, 2 * timeout)

    def blocked(self) -> out.Blocked | None:
        """The fate of what is ready, if an open breaker is to bury it; when it has cooled, some of it may be probes."""
        if self.rule is None or self.rule.when_open != "bury":
            return None
        if not brk.is_cooling(self.breaker, self.duty.engine.env.clock.now()):
            return None
        return blocked(act.BREAKER_OPEN, "BreakerOpen", f"the breaker {self.name!r} was open")

    # ------------------------------------------------------------ probes of the sink's own

    @property
    def is_open(self) -> bool:
        """Is the dependency left alone, and may come back by itself?"""
        return self.breaker.state is State.OPEN and not math.isinf(self.breaker.until)

    def may_probe(self, turns: Bucket) -> bool:
        """Is it this worker's turn to ask the sink? Runs where writing happens."""
        with self.duty.engine.store.transaction() as tx:
            fence(self.duty, tx)
            now = self.duty.engine.env.clock.now()
            granted: int = tx.guards.take(f"probe {self.name}", turns, now, 1).granted
        return granted == 1

    def probed(self, failure: out.Failure | None) -> None:
        """What the sink says of itself: nothing, if it is well. Runs where writing happens."""
        assert self.rule is not None
        with self.duty.engine.store.transaction() as tx:
            fence(self.duty, tx)
            now = self.duty.engine.env.clock.now()
            breaker = brk.after_probe(tx.guards.lock(self.name), self.rule, failure is None, now)
            tx.guards.save(self.name, breaker)
        said = failure or out.NO_FAILURE
        asked = sig.Probed(self.duty.subscription.name, self.name, failure is None, said.error_type, said.message)
        self.duty.engine.signals.tell([asked])
        self._ask_at = 0.0
        self._learn(breaker, now)

    # ------------------------------------------------------------ answers

    @property
    def _is_tripping(self) -> bool:
        """Has what was called since the last settle been enough to open it? Nobody waits for the commit to find out."""
        if self.rule is None or not self._streak:
            return False
        breaker = self.breaker
        return breaker.state is State.PROBING or breaker.failures + self._streak >= self.rule.failures

    def called(self, work: Work) -> bool:
        """A call came to an end; is that worth settling at once? From any thread."""
        if work.outcome is out.APPLIED and not (self._streak or work.probe):  # the ordinary case, quickly
            return False
        if self.rule is None or work.echo or (answer := self._answer(work)) is None:
            return False
        self._streak = 0 if answer.good else self._streak + 1
        return self._is_tripping or work.probe

    def look(self, tx: StoreTx) -> None:
        """What others have learnt of the dependency."""
        if self.rule is not None:
            found = tx.guards.breaker(self.name)
            if found.state is not self.breaker.state:
                self._ask_at = 0.0
            self._learn(found, self.duty.engine.env.clock.now())

    def feed(self, settling: Settling, group: Sequence[Work]) -> None:
        """Tell the breaker what came of these calls, in the transaction that settles them."""
        self._fed = None
        if self.rule is None:
            return
        if self.breaker.failures == 0 and not any(work.outcome is not out.APPLIED or work.probe for work in group):
            return  # the ordinary case, quickly: a success says nothing new to a breaker that counts nothing
        probes = sum(1 for work in group if work.probe)
        # A list that was not taken is one call that failed, however many events are in it.
        answers = [answer for work in group if not work.echo and (answer := self._answer(work)) is not None]
        if not probes and self.breaker.failures == 0 and all(answer.good for answer in answers):
            return  # nor does an error that blames somebody else
        tx = settling.tx
        before = tx.guards.lock(self.name)
        after = brk.after(before, self.rule, answers, settling.now)
        if after.state is not before.state:
            self._void_permits()
        self._give_back(tx, probes + self._unused)
        tx.guards.save(self.name, after)
        self._fed = after

    def fed(self, group: Sequence[Work], now: float) -> None:
        """That was committed."""
        breaker = self._fed
        for work in group:
            work.probe = False
        self._streak = 0
        if breaker is not None:
            self._unused = 0
            if breaker.state is State.PROBING:
                self._ask_at = 0.0
            self._learn(breaker, now)

    def _answer(self, work: Work) -> Answer | None:
        """What the outcome of a call says about the dependency; most errors of a function say nothing."""
        assert self.rule is not None
        if work.outcome is out.APPLIED and not work.follow:  # the ordinary case, quickly
            return _GOOD[work.probe]
        match work.outcome:
            case out.Applied() | out.Rejected() | out.Ignored() if not work.follow:
                return Answer(True, work.probe)
            case out.Failed(error=error) | out.Postponed(error=BaseException() as error):
                return Answer(False, work.probe) if self.rule.counts(error) else None
            case _:
                return None

    def _learn(self, breaker: Breaker, now: float) -> None:
        """The breaker stands like this: permits that were got before it changed are void."""
        self.breaker = breaker
        left = brk.ramp_left(breaker, now)
        self._ramp_until = self._monotonic() + left if left else 0.0
        if breaker.state is self._told:
            return
        self._told = breaker.state
        self._void_permits()
        self._ask_at = 0.0
        name, mine = self.name, self.duty.subscription.name
        told: dict[State, sig.Signal] = {
            State.OPEN: sig.BreakerOpened(mine, name, breaker.until - breaker.since),
            State.PROBING: sig.BreakerProbing(mine, name),
            State.CLOSED: sig.BreakerClosed(mine, name),
        }
        self.duty.engine.signals.tell([told[breaker.state]])
        self.on_change()

    def _void_permits(self) -> None:
        """They were for another state. One by one: who calls may be taking one at this moment, in another thread."""
        while self._permits:
            try:
                self._unused += self._permits.popleft().probe
            except IndexError:
                return

    def _give_back(self, tx: StoreTx, probes: int) -> None:
        if probes:
            tx.guards.return_probes(self.name, (self.duty.member, self.duty.epoch), probes)

    def _monotonic(self) -> float:
        return self.duty.engine.env.clock.monotonic()


_FREE = Permit(probe=False)
_GOOD = (Answer(True, False), Answer(True, True))
