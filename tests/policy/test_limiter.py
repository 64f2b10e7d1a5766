"""A bucket never grants more than its rate, never keeps anybody waiting for nothing, and forgives a clock set back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import UsageError
from redrive.policy.limiter import FULL, Bucket, bucket, paced

NOW = 1_800_000_000.0  # where a float is exact to a quarter of a microsecond

buckets = st.builds(
    Bucket, rate=st.floats(0.01, 10_000, allow_nan=False, allow_infinity=False), burst=st.integers(1, 5_000)
)
pauses = st.lists(st.tuples(st.floats(0, 30, allow_nan=False), st.integers(0, 3_000)), min_size=1, max_size=40)


@given(buckets, pauses)
def test_in_any_span_of_time_no_more_is_granted_than_the_rate_and_one_burst(
    limit: Bucket, asked: list[tuple[float, int]]
) -> None:
    state, now, grants = FULL, NOW, []
    for pause, wanted in asked:
        now += pause
        granted, state, _ = limit.take(state, now, wanted)
        grants.append((now, granted))
    for first, (since, _) in enumerate(grants):
        total = 0
        for until, granted in grants[first:]:
            total += granted
            assert total <= limit.burst + (until - since) * limit.rate * 1.001 + 0.1


@given(buckets, pauses)
def test_who_waits_as_long_as_told_is_granted_one_and_never_gets_more_than_wanted(
    limit: Bucket, asked: list[tuple[float, int]]
) -> None:
    state, now = FULL, NOW
    for pause, wanted in asked:
        now += pause
        granted, state, wait = limit.take(state, now, wanted)
        assert 0 <= granted <= wanted
        assert (
            (wait == 0.0) if granted == wanted else (0.0 <= wait <= 1.01 / limit.rate + 1e-6)
        )  # one that was nearly there is paid for in full
        if granted < wanted:
            now += wait
            again, state, _ = limit.take(state, now, 1)
            assert again == 1


@given(buckets, st.integers(1, 200))
def test_over_a_long_time_the_whole_rate_can_be_had(limit: Bucket, turns: int) -> None:
    """Asking greedily and waiting as told, nothing is lost: the rate is a limit and also a promise."""
    state, now, total = FULL, NOW, 0
    for _ in range(turns):
        granted, state, wait = limit.take(state, now, limit.burst + 1)
        total += granted
        now += wait
    assert total + 1 >= limit.burst + (now - NOW) * limit.rate * 0.99 - 1


@given(buckets, st.floats(-1e6, 0), st.integers(0, 5_000))
def test_a_clock_set_back_costs_at_most_the_time_of_filling_an_empty_bucket(
    limit: Bucket, jump: float, taken: int
) -> None:
    _, state, _ = limit.take(FULL, NOW, taken)
    now = NOW + jump
    _, state, wait = limit.take(state, now, 1)
    assert wait <= 1 / limit.rate + 1e-6
    granted, _, _ = limit.take(state, now + limit.burst / limit.rate + 1e-3, limit.burst)
    assert granted == limit.burst


@given(buckets, st.integers(1, 100))
def test_what_is_given_back_can_be_taken_again_and_no_more(limit: Bucket, count: int) -> None:
    granted, state, _ = limit.take(FULL, NOW, count)
    state = limit.give_back(state, NOW, granted)
    again, _, _ = limit.take(state, NOW, limit.burst + 5)
    assert again == limit.burst


def test_pace_saves_up_a_tenth_of_a_second_and_at_least_one() -> None:
    assert [paced(limit).burst for limit in ("1/s", "10/s", "11/s", "500/s")] == [1, 1, 2, 50]


def test_what_is_given_back_after_the_clock_was_set_back_counts() -> None:
    limit = Bucket(1.0, 2)
    taken = limit.take(FULL, 1000.0, 2)
    assert limit.take(limit.give_back(taken.state, 10.0), 10.0, 2).granted == 1


def test_refusing_costs_nothing() -> None:
    limit = Bucket(rate=10.0, burst=1)
    _, state, _ = limit.take(FULL, NOW, 1)
    for _ in range(1_000):
        granted, state, _ = limit.take(state, NOW, 1)
        assert granted == 0
    assert limit.take(state, NOW + 0.1, 1).granted == 1


def test_a_limit_is_written_as_a_rate_and_saves_up_one_second() -> None:
    assert bucket("100/s") == Bucket(100.0, 100)
    assert bucket("30/m") == Bucket(0.5, 1)
    assert bucket("100/s", burst=5) == Bucket(100.0, 5)


@pytest.mark.parametrize("wrong", ["100", "fast", "0/s"])
def test_a_limit_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match='"100/s"'):
        bucket(wrong)


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (float("inf"), 1), (1.0, 0)])
def test_a_bucket_that_lets_nothing_through_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(UsageError, match="lets nothing through"):
        Bucket(rate, burst)
