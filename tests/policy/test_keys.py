"""Breakers and limits of single keys: nobody goes who may not, nobody waits for ever, and nothing clean is kept."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from redrive.policy import action as act
from redrive.policy import breaker as brk
from redrive.policy import outcome as out
from redrive.policy.breaker import PRISTINE, RAMP_SECONDS, Admission, Answer, Breaker, Rule, State
from redrive.policy.decide import Policy, decide
from redrive.policy.keys import Go, Hold, bounds, fades, is_clean, lets_all, name_of, shut_for, verdicts, waits_here
from redrive.policy.limiter import FULL, Bucket, Taken
from redrive.policy.outcome import Failure
from redrive.policy.retry import Retry

RULES = st.builds(Rule, failures=st.integers(1, 4), cooldown=st.floats(0.5, 3600), probes=st.integers(1, 4))
NOW = 1_000_000.0
BREAKERS = st.builds(
    Breaker,
    state=st.sampled_from(State),
    failures=st.integers(0, 3),
    since=st.one_of(st.just(0.0), st.floats(NOW - 100, NOW)),
    until=st.one_of(st.just(0.0), st.just(math.inf), st.floats(NOW - 100, NOW + 3600)),
)
FAILURE = Failure("TimeoutError", "it took too long", "", "f")


@given(RULES, BREAKERS, st.integers(0, 5), st.integers(1, 20), st.one_of(st.none(), st.floats(0.1, 100)))
def test_as_many_go_as_breaker_and_limit_let_and_all_others_come_back(
    rule: Rule, breaker: Breaker, in_flight: int, count: int, rate: float | None
) -> None:
    admission = brk.admit(breaker, rule, NOW, in_flight)
    wanted = int(min(count, admission.room))
    taken = Bucket(rate, 1).take(FULL, NOW, wanted) if rate and wanted else None
    found = verdicts(count, admission, taken, rule)
    going = [one for one in found if isinstance(one, Go)]
    assert len(found) == count
    assert len(going) <= admission.room
    assert taken is None or len(going) <= taken.granted
    assert found[: len(going)] == going, "who came first goes first"
    for one in found[len(going) :]:
        assert isinstance(one, Hold)
        assert 0 <= one.seconds <= max(rule.cooldown, 1 / (rate or 1), brk.COOLDOWN_MAX_S)
    if admission.breaker.state is State.PROBING:
        assert len(going) + in_flight <= max(rule.probes, in_flight)
        assert all(one.probe for one in going)
    else:
        assert not any(one.probe for one in going)


@given(RULES, st.lists(st.tuples(st.booleans(), st.floats(0, 40)), max_size=40))
def test_no_story_of_one_key_ends_in_waiting_for_ever_or_leaves_a_row(
    rule: Rule, story: list[tuple[bool, float]]
) -> None:
    """One call at a time, as in a lane; then the key is well, and clean again after so many calls and the growth."""
    now, breaker = NOW, PRISTINE
    calls = [*story, *[(True, rule.cooldown)] * (rule.probes + 2)]
    for good, passed in calls:
        admission = brk.admit(breaker, rule, now, 0)
        if not admission.room:
            now += shut_for(admission, rule)
            admission = brk.admit(breaker, rule, now, 0)
        assert admission.room >= 1, "who waits as long as it was told is let through"
        probe = admission.breaker.state is State.PROBING
        breaker = brk.after(admission.breaker, rule, [Answer(good, probe)], now)
        now += passed
    assert breaker.state is State.CLOSED
    assert is_clean(breaker, now + RAMP_SECONDS)
    assert is_clean(breaker, now) or fades(breaker, now)


@given(BREAKERS)
def test_what_is_clean_is_like_what_never_was(breaker: Breaker) -> None:
    if is_clean(breaker, NOW):
        assert lets_all(breaker, NOW)
        assert brk.after(breaker, Rule(failures=2), [Answer(False, False)], NOW).failures == 1
        assert brk.limit_after(breaker, None, NOW) is None
    assert is_clean(PRISTINE, NOW)
    assert not (fades(breaker, NOW) and is_clean(breaker, NOW))


def test_who_is_left_alone_by_hand_is_looked_at_after_the_cooldown_and_probes_of_others_soon() -> None:
    rule = Rule(cooldown=60.0, probes=1)
    opened = brk.forced_open(PRISTINE, NOW)
    assert shut_for(brk.admit(opened, rule, NOW, 0), rule) == 60.0
    assert shut_for(Admission(Breaker(State.PROBING), 0, math.inf), rule) == 1.0
    assert shut_for(Admission(Breaker(State.PROBING), 0, math.inf), Rule(cooldown=0.2)) == 0.2


def test_a_limit_tells_the_reason_and_the_time() -> None:
    admission = Admission(PRISTINE, math.inf, 0.0)
    found = verdicts(3, admission, Taken(1, NOW, 0.25), Rule())
    assert found == [Go(False), Hold(act.RATE_LIMITED, 0.25), Hold(act.RATE_LIMITED, 0.25)]


@given(st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5))
def test_names_lie_between_the_bounds_in_the_order_of_bytes(name: str, key: str) -> None:
    low, high = bounds(name_of(name, None))
    assert low < name_of(name, key) < high
    assert not low < name < high


def test_memory_is_left_to_others_from_the_middle_on() -> None:
    assert [waits_here(held, 100) for held in (0, 50, 51, 100)] == [True, True, False, False]


# ---------------------------------------------------------------- decisions


@given(st.integers(1, 50), st.integers(1, 50), st.floats(0, 3600), st.floats(0, 1))
def test_what_the_key_is_blamed_for_is_never_the_last_attempt(
    attempt: int, attempts: int, seconds: float, dice: float
) -> None:
    policy = Policy(retry=(Retry(attempts=attempts),))
    failed = out.Failed(TimeoutError(), FAILURE)
    action = decide(
        failed, attempt=attempt, policy=policy, now=NOW, dice=dice, event_type="order.placed", shut_for=seconds
    )
    assert action == act.Park(NOW + seconds, seconds, FAILURE, act.FAILING, spent=False)
    again = decide(
        failed, attempt=attempt, policy=policy, now=NOW, dice=dice, event_type="x", shut_for=seconds, replay=True
    )
    assert again == act.Bury(act.ATTEMPTS_EXHAUSTED, FAILURE), "a replay is one attempt"


@given(st.sampled_from([act.BREAKER_OPEN, act.RATE_LIMITED]), st.floats(0, 3600))
def test_what_was_not_called_waits_without_an_attempt(reason: str, seconds: float) -> None:
    action = decide(out.Held(reason, seconds), attempt=1, policy=Policy(), now=NOW, dice=0.5, event_type="x")
    assert isinstance(action, act.Park)
    assert (action.due_at, action.reason, action.spent, action.failure) == (
        NOW + seconds,
        reason,
        False,
        out.NO_FAILURE,
    )


def test_an_error_that_trying_again_cannot_cure_is_the_events_own() -> None:
    given_up = decide(
        out.Failed(ValueError("no"), FAILURE), attempt=1, policy=Policy(retry=(Retry(never=(ValueError,)),)), now=NOW,
        dice=0.5, event_type="x", shut_for=60.0,
    )  # fmt: skip
    assert given_up == act.Bury(act.PERMANENT, FAILURE)
