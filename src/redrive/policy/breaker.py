"""The circuit breaker of a dependency: when to leave it alone, and how to find out that it is well again.

Closed lets everything through and counts errors that blame the dependency. Enough of them in a row open it: nothing
is sent, and no attempt is spent on what waits. After the cooldown it is probed by a few calls at a time; when
enough of them went well it closes, the first that fails opens it again. All workers share it through the store, so
that a dependency that has just come back meets `probes` calls and not `probes` calls per worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, NamedTuple

from msgspec import Struct

from redrive.errors import UsageError
from redrive.options import named_options
from redrive.policy.classify import blames_a_dependency, leaves
from redrive.policy.limiter import Bucket
from redrive.policy.machine import step
from redrive.policy.retry import Duration, Errors, count_of, errors_of, seconds_of

FAILURES_MAX = PROBES_MAX = 10_000
COOLDOWN_MAX_S = 86_400.0  # a dependency that is left alone for longer is not coming back by itself


# Who has just come back is not drowned: for a while after the breaker closed by itself, the rate of calls grows from
# little to what the limit, or the backlog, would have it do at once.
RAMP_SECONDS = 30.0
RAMP_START = 10.0  # calls a second
RAMP_DOUBLES = 3.0  # seconds


class State(StrEnum):
    """What a breaker does with calls."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Verb(StrEnum):
    """What happens to a breaker."""

    TRIP = "trip"  # too many errors in a row
    COOL = "cool"  # it was open for long enough
    RELAPSE = "relapse"  # a probe failed
    HEAL = "heal"  # enough probes went well
    OPEN = "open"  # by hand
    CLOSE = "close"  # by hand


TRANSITIONS: dict[tuple[State, Verb], State] = {
    (State.CLOSED, Verb.TRIP): State.OPEN,
    (State.OPEN, Verb.COOL): State.PROBING,
    (State.PROBING, Verb.RELAPSE): State.OPEN,
    (State.PROBING, Verb.HEAL): State.CLOSED,
    (State.CLOSED, Verb.OPEN): State.OPEN,
    (State.OPEN, Verb.OPEN): State.OPEN,
    (State.PROBING, Verb.OPEN): State.OPEN,
    (State.OPEN, Verb.CLOSE): State.CLOSED,
    (State.PROBING, Verb.CLOSE): State.CLOSED,
    (State.CLOSED, Verb.CLOSE): State.CLOSED,
}


def next_state(state: State, verb: Verb) -> State:
    """The state of a breaker after `verb`; BugError if that cannot happen."""
    return step(TRANSITIONS, state, verb)


WhenOpen = Literal["pause", "bury"]
Per = Literal["key"]


class Rule(Struct, frozen=True):
    """What a program says about a breaker; made by `breaker()`, which checks it."""

    name: str | None = None  # None: the subscription's own
    failures: int = 5
    cooldown: float = 60.0
    probes: int = 3
    on: tuple[type[BaseException], ...] | None = None  # None: whatever blames the dependency by itself
    when_open: WhenOpen = "pause"
    per: Per | None = None  # one for each key, rather than one for all

    @property
    def pace(self) -> tuple[int, float, int]:
        """What all who share it have to agree on; which errors count, and what waits, is each one's own."""
        return self.failures, self.cooldown, self.probes

    def counts(self, error: BaseException) -> bool:
        """Does this error speak against the dependency, rather than against the event or the code?"""
        if self.on is None:
            return blames_a_dependency(error)
        return any(isinstance(one, self.on) for one in leaves(error))


class Breaker(NamedTuple):
    """A breaker as it is stored."""

    state: State = State.CLOSED
    failures: int = 0  # in a row, while closed
    successes: int = 0  # of probes, while probing
    since: float = 0.0  # when it came into this state
    until: float = 0.0  # open: when it may be probed; math.inf: when somebody closes it by hand


PRISTINE = Breaker()


class Answer(NamedTuple):
    """What one call says about the dependency."""

    good: bool
    probe: bool  # was it let through as a probe? Others were under way before it opened, and come too late to count


class Admission(NamedTuple):
    """How much may go through now."""

    breaker: Breaker
    room: float  # calls; math.inf when it is closed
    wait: float  # seconds after which to ask again, if there is no room; math.inf: when something happens


def admit(breaker: Breaker, rule: Rule, now: float, in_flight: int) -> Admission:
    """Whether calls may go through, given so many probes in flight in all workers."""
    match breaker.state:
        case State.CLOSED:
            return Admission(breaker, math.inf, 0.0)
        case State.OPEN:
            breaker = _rebased(breaker, rule, now)
            if now < breaker.until:
                return Admission(breaker, 0, breaker.until - now)
            breaker = Breaker(next_state(breaker.state, Verb.COOL), since=now)
    return Admission(breaker, max(0, rule.probes - in_flight), math.inf)


def is_cooling(breaker: Breaker, now: float) -> bool:
    """Is it open, and asking the store whether calls may go through would be in vain?"""
    forced = math.isinf(breaker.until)
    return breaker.state is State.OPEN and (forced or breaker.since <= now < breaker.until)


def after(breaker: Breaker, rule: Rule, answers: Iterable[Answer], now: float) -> Breaker:
    """The breaker after what came back, in that order."""
    for answer in answers:
        breaker = _after_one(breaker, rule, answer, now)
    return breaker


def after_probe(breaker: Breaker, rule: Rule, good: bool, now: float) -> Breaker:
    """The breaker after the sink itself was asked: if it is well events may probe it, if not the cooldown starts over.

    It takes events that arrive to close it: who answers a question may still be unable to work.
    """
    if breaker.state is not State.OPEN or math.isinf(breaker.until):
        return breaker
    if good:
        return Breaker(next_state(breaker.state, Verb.COOL), since=now)
    return breaker._replace(since=min(breaker.since, now), until=now + rule.cooldown)


def ramp_left(breaker: Breaker, now: float) -> float:
    """Seconds for which the rate still grows; none where somebody closed it by hand."""
    grown_for = now - breaker.since
    ramps = breaker.state is State.CLOSED and breaker.since > 0 and 0 <= grown_for < RAMP_SECONDS
    return RAMP_SECONDS - grown_for if ramps else 0.0


def limit_after(breaker: Breaker, limit: Bucket | None, now: float) -> Bucket | None:
    """The limit that holds now: the declared one, or while a dependency recovers a lower one that grows."""
    left = ramp_left(breaker, now)
    if not left:
        return limit
    rate = RAMP_START * 2.0 ** ((RAMP_SECONDS - left) / RAMP_DOUBLES)
    return limit if limit is not None and limit.rate <= rate else Bucket(rate, max(1, math.ceil(rate / 10)))


def forced_open(breaker: Breaker, now: float) -> Breaker:
    """Opened by hand: until it is closed by hand."""
    return Breaker(next_state(breaker.state, Verb.OPEN), since=now, until=math.inf)


def forced_closed(breaker: Breaker) -> Breaker:
    """Closed by hand: it counts from nought."""
    return Breaker(next_state(breaker.state, Verb.CLOSE))


def _after_one(breaker: Breaker, rule: Rule, answer: Answer, now: float) -> Breaker:
    match breaker.state:
        case State.CLOSED if answer.good:
            return breaker if breaker.failures == 0 else breaker._replace(failures=0)
        case State.CLOSED:
            failures = breaker.failures + 1
            return (
                breaker._replace(failures=failures)
                if failures < rule.failures
                else _open(breaker, rule, Verb.TRIP, now)
            )
        case State.PROBING if answer.probe and answer.good:
            successes = breaker.successes + 1
            if successes < rule.probes:
                return breaker._replace(successes=successes)
            return Breaker(next_state(breaker.state, Verb.HEAL), since=now)
        case State.PROBING if answer.probe:
            return _open(breaker, rule, Verb.RELAPSE, now)
        case _:
            return breaker


def _open(breaker: Breaker, rule: Rule, verb: Verb, now: float) -> Breaker:
    return Breaker(next_state(breaker.state, verb), since=now, until=now + rule.cooldown)


def _rebased(breaker: Breaker, rule: Rule, now: float) -> Breaker:
    """Open since a time that is yet to come: the clock was set back, and the cooldown starts over, once."""
    if math.isinf(breaker.until) or now >= breaker.since:
        return breaker
    delay = min(breaker.until - breaker.since, rule.cooldown)
    return breaker._replace(since=now, until=now + delay)


@named_options("breaker")
def breaker(
    name: str | None = None,
    *,
    failures: int = 5,
    cooldown: Duration = "60s",
    probes: int = 3,
    on: Errors | None = None,
    when_open: WhenOpen = "pause",
    per: Per | None = None,
) -> Rule:
    """Leave a dependency alone after so many errors in a row, and come back carefully.

    >>> breaker("stripe", failures=3).failures
    3

    Subscriptions that name the same breaker share it. `per="key"`: each key has one of its own.
    """
    if name is not None and (
        not isinstance(name, str) or not name.strip() or len(name) > 200 or not name.isprintable()
    ):
        raise UsageError(f'breaker: {name!r} is no name; a short text such as "stripe" is')
    if per not in (None, "key"):
        raise UsageError(f'breaker: per is "key" or left out, not {per!r}')
    if when_open not in ("pause", "bury"):
        raise UsageError(f'breaker: when_open is "pause" or "bury", not {when_open!r}')
    pause = seconds_of("breaker: cooldown", cooldown)
    if not 0 < pause <= COOLDOWN_MAX_S:
        raise UsageError(f"breaker: cooldown={cooldown!r}; give it from a moment up to a day")
    return Rule(
        name,
        count_of("breaker: failures", failures, least=1, most=FAILURES_MAX),
        pause,
        count_of("breaker: probes", probes, least=1, most=PROBES_MAX),
        None if on is None else errors_of("breaker: on", on),
        when_open,
        per,
    )
