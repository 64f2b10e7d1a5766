"""The breaker: no schedule admits more probes than allowed, and only what blames the dependency opens it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import UsageError
from redrive.policy import breaker as brk
from redrive.policy.breaker import PRISTINE, Answer, Breaker, Rule, State, breaker
from redrive.policy.limiter import Bucket

RULES = st.builds(Rule, failures=st.integers(1, 4), cooldown=st.floats(0.5, 20), probes=st.integers(1, 4))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0, 30)),
        st.tuples(st.just("jump"), st.floats(-100, 100)),
        st.tuples(st.just("ask"), st.integers(1, 6)),
        st.tuples(st.just("answer"), st.booleans()),
        st.tuples(st.just("probe"), st.booleans()),
    ),
    max_size=80,
)


@given(RULES, STEPS)
def test_no_schedule_has_more_probes_under_way_than_allowed(rule: Rule, steps: list[tuple[str, float]]) -> None:
    """Calls that were let through end in any order, at any time, whatever happens to the clock meanwhile."""
    now, found = 1000.0, PRISTINE
    under_way: list[bool] = []  # is it a probe?
    for verb, amount in steps:
        if verb in ("wait", "jump"):
            now += amount
        elif verb == "ask":
            admission = brk.admit(found, rule, now, sum(under_way))
            found = admission.breaker
            under_way += [found.state is State.PROBING] * int(min(amount, admission.room))
        elif verb == "probe":
            found = brk.after_probe(found, rule, bool(amount), now)
        elif under_way:
            found = brk.after(found, rule, [Answer(bool(amount), under_way.pop(0))], now)
        assert sum(under_way) <= rule.probes


@given(RULES, st.lists(st.booleans(), max_size=30))
def test_it_opens_after_exactly_so_many_errors_in_a_row(rule: Rule, answers: list[bool]) -> None:
    found, row = PRISTINE, 0
    for good in answers:
        found = brk.after(found, rule, [Answer(good, probe=False)], 7.0)
        row = 0 if good else row + 1
        assert (found.state is State.OPEN) == (row >= rule.failures)
        if found.state is State.OPEN:
            assert found.until == 7.0 + rule.cooldown
            return


@given(RULES, st.floats(0, 100))
def test_while_open_nothing_goes_through_and_the_wait_is_what_is_left(rule: Rule, later: float) -> None:
    tripped = Breaker(State.OPEN, since=50.0, until=50.0 + rule.cooldown)
    admission = brk.admit(tripped, rule, 50.0 + later, 0)
    if 50.0 + later < tripped.until:
        assert (admission.room, admission.breaker) == (0, tripped)
        assert admission.wait == pytest.approx(tripped.until - 50.0 - later)
    else:
        assert (admission.room, admission.breaker.state) == (rule.probes, State.PROBING)


def test_a_clock_set_back_makes_nobody_wait_longer_than_the_cooldown_however_often_it_is_asked() -> None:
    found, now = Breaker(State.OPEN, since=10_000.0, until=10_060.0), 100.0
    while (admission := brk.admit(found, Rule(), now, 0)).room == 0:
        assert admission.wait == pytest.approx(160.0 - now)
        found, now = admission.breaker, now + 15.0
    assert now == 160.0 and admission.breaker.state is State.PROBING


def test_what_a_person_opened_stays_open_whatever_the_clock_does() -> None:
    forced = brk.forced_open(PRISTINE, 10_000.0)
    assert brk.admit(forced, Rule(), 100.0, 0).breaker == forced
    assert brk.is_cooling(forced, 100.0) and brk.is_cooling(forced, 1e9)


def test_late_answers_of_calls_from_before_it_opened_change_nothing() -> None:
    late = [Answer(True, probe=False), Answer(False, probe=False)]
    for state in (State.OPEN, State.PROBING):
        found = Breaker(state, since=1.0, until=61.0)
        assert brk.after(found, Rule(), late, 5.0) == found


def test_probes_close_it_and_the_first_bad_one_opens_it_again() -> None:
    rule, probing = Rule(probes=2), Breaker(State.PROBING, since=1.0)
    good, bad = Answer(True, probe=True), Answer(False, probe=True)
    assert brk.after(probing, rule, [good, good], 9.0) == Breaker(State.CLOSED, since=9.0)
    assert brk.after(probing, rule, [good, bad], 9.0) == Breaker(State.OPEN, since=9.0, until=9.0 + rule.cooldown)


def test_what_a_person_opened_only_a_person_closes() -> None:
    forced = brk.forced_open(PRISTINE, 5.0)
    assert brk.admit(forced, Rule(), 1e9, 0).room == 0
    assert brk.after_probe(forced, Rule(), True, 1e9) == forced
    assert brk.forced_closed(forced) == PRISTINE


@given(st.floats(0, 60))
def test_the_rate_after_a_recovery_grows_up_to_the_limit(later: float) -> None:
    healed, limit = Breaker(State.CLOSED, since=100.0), Bucket(40.0, 2)
    now = brk.limit_after(healed, limit, 100.0 + later)
    assert now is not None
    assert now.rate == pytest.approx(min(40.0, 10.0 * 2 ** (later / 3)))
    free = brk.limit_after(healed, None, 100.0 + later)
    assert (free is None) == (later >= 30)


def test_answer_of_the_sink_itself_lets_events_probe_it_or_begins_the_cooldown_again() -> None:
    rule, opened = Rule(cooldown=10.0), Breaker(State.OPEN, since=100.0, until=110.0)
    assert brk.after_probe(opened, rule, True, 105.0) == Breaker(State.PROBING, since=105.0)
    assert brk.after_probe(opened, rule, False, 105.0) == Breaker(State.OPEN, since=100.0, until=115.0)
    for left_alone in (PRISTINE, Breaker(State.OPEN, since=100.0, until=math.inf)):
        assert brk.after_probe(left_alone, rule, True, 105.0) == left_alone


def test_breaker_is_for_all_keys_or_for_each() -> None:
    with pytest.raises(UsageError, match="or left out, not 'tenant'"):
        breaker(per="tenant")  # type: ignore[arg-type]


def test_by_hand_it_is_closed_at_once() -> None:
    assert brk.ramp_left(brk.forced_closed(Breaker(State.OPEN, since=5.0, until=math.inf)), 6.0) == 0


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (TimeoutError(), True), (ConnectionResetError(), True), (OSError("unreachable"), True),
        (FileNotFoundError(), False), (PermissionError(), False), (KeyError("x"), False), (ValueError(), False),
        (ExceptionGroup("several", [ValueError(), TimeoutError()]), True),
        (type("ServerDisconnectedError", (Exception,), {})(), True),
        (type("HTTPStatusError", (Exception,), {"status": 503})(), True),
        (type("HTTPStatusError", (Exception,), {"status": 429})(), True),
        (type("HTTPStatusError", (Exception,), {"status": 404})(), False),
    ],
)  # fmt: skip
def test_only_what_blames_the_dependency_counts(error: BaseException, counts: bool) -> None:
    assert Rule().counts(error) is counts
    assert Rule(on=(KeyError,)).counts(error) is isinstance(error, KeyError)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"name": 3}, {"failures": 0}, {"failures": True}, {"cooldown": "0s"}, {"cooldown": "2d"},
        {"probes": 0}, {"when_open": "drop"}, {"on": "errors"},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        breaker(**wrong)  # type: ignore[arg-type]
