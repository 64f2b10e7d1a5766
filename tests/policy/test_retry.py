"""Retry rules: how often and after what delay."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import Ignore, Reject, UsageError
from redrive.policy.retry import ATTEMPTS_MAX, WAIT_MAX_S, Conflicts, Retry, conflicts, no_retry, retry, tuned

dice = st.floats(0.0, 1.0)
attempts = st.integers(1, ATTEMPTS_MAX)


@st.composite
def rules(draw: st.DrawFn) -> Retry:
    wait_max = draw(st.floats(0.0, WAIT_MAX_S))
    wait = draw(st.floats(0.0, wait_max))
    return retry(wait=wait, wait_max=wait_max, factor=draw(st.floats(1.0, 1_000.0)), jitter=draw(st.floats(0.0, 1.0)))


@given(rules(), attempts, dice)
def test_a_delay_is_never_negative_and_never_beyond_wait_max(rule: Retry, attempt: int, dice: float) -> None:
    assert 0.0 <= rule.delay(attempt, dice) <= rule.wait_max


@given(rules(), st.integers(1, ATTEMPTS_MAX - 1))
def test_a_delay_never_shrinks_from_one_attempt_to_the_next(rule: Retry, attempt: int) -> None:
    assert rule.delay(attempt, 0.5) <= rule.delay(attempt + 1, 0.5)


@given(rules(), attempts, dice)
def test_jitter_moves_a_delay_by_no_more_than_its_share(rule: Retry, attempt: int, dice: float) -> None:
    plain = rule.delay(attempt, 0.5)
    assert abs(rule.delay(attempt, dice) - plain) <= plain * rule.jitter + plain * 1e-9  # floats


@given(rules(), attempts, dice, dice)
def test_without_jitter_the_dice_do_not_matter(rule: Retry, attempt: int, one: float, other: float) -> None:
    rule = tuned(rule, jitter=0.0)
    assert rule.delay(attempt, one) == rule.delay(attempt, other)


def test_the_default_delays_are_the_documented_ones() -> None:
    assert [retry(attempts=12).delay(n, 0.5) for n in range(1, 12)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_jitter_spreads_the_herd_to_both_sides() -> None:
    assert retry(jitter=0.1).delay(1, 0.0) == pytest.approx(0.9)
    assert retry(jitter=0.1).delay(1, 1.0) == pytest.approx(1.1)


def test_a_growth_beyond_all_floats_ends_at_wait_max() -> None:
    assert retry(factor=1_000.0).delay(ATTEMPTS_MAX, 0.5) == 300.0
    assert retry(wait=0, factor=1_000.0).delay(ATTEMPTS_MAX, 0.5) == 0.0


def test_a_rule_written_by_hand_and_one_made_with_no_arguments_are_the_same() -> None:
    assert retry() == Retry()
    assert conflicts() == Conflicts()
    assert no_retry.attempts == 1


def test_durations_are_texts_numbers_or_timedeltas() -> None:
    rule = retry(wait="250ms", wait_max=timedelta(hours=1))
    assert (rule.wait, rule.wait_max) == (0.25, 3600.0)


def test_a_rule_is_about_the_types_it_names() -> None:
    rule = retry(types=["payment.*", "refund"])
    assert [rule.covers(name) for name in ("payment.due", "refund", "refund.due")] == [True, True, False]


def test_a_rule_that_names_errors_overrides_what_is_permanent_by_default() -> None:
    assert retry(on=UsageError).allows(UsageError("wrong"))
    assert not retry().allows(UsageError("wrong"))
    assert not retry(on=UsageError).allows(OSError())


def test_an_error_inside_a_group_counts_like_the_error_itself() -> None:
    group = ExceptionGroup("two calls", [ValueError(), ConnectionError()])
    assert retry(on=ConnectionError).allows(group)
    assert retry(never=ValueError).forbids(group)
    assert not retry(on=KeyError).allows(group)


def test_settings_change_the_numbers_of_a_rule_and_not_what_it_is_about() -> None:
    rule = retry(on=OSError, never=FileNotFoundError, types="payment.*")
    other = tuned(rule, attempts=9, wait="2s", wait_max="1h", jitter=0.0)
    assert (other.attempts, other.wait, other.wait_max, other.jitter) == (9, 2.0, 3600.0, 0.0)
    assert (other.on, other.never, other.types) == (rule.on, rule.never, rule.types)
    assert tuned(rule) == rule


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("attempts", 0),
        ("attempts", True),
        ("attempts", 2.5),
        ("attempts", ATTEMPTS_MAX + 1),
        ("wait", "soon"),
        ("wait", -1),
        ("wait", "10m"),  # beyond the default wait_max
        ("wait_max", "3000d"),
        ("factor", 0.5),
        ("factor", float("nan")),
        ("factor", float("inf")),
        ("jitter", 1.5),  # would make negative delays
        ("jitter", "much"),
        ("on", ValueError("an instance")),
        ("on", "ValueError"),
        ("on", ()),
        ("on", Reject),
        ("never", int),
        ("never", (OSError, Ignore)),
        ("types", ()),
        ("types", [""]),
    ],
)
def test_a_rule_that_cannot_work_is_refused_by_the_name_of_its_option(option: str, wrong: object) -> None:
    with pytest.raises(UsageError, match=f"retry: .*{option}"):
        retry(**{option: wrong})  # type: ignore[arg-type]


def test_conflicts_wait_50_100_200_ms_and_never_beyond_a_second() -> None:
    assert [conflicts().delay(n) for n in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert conflicts().delay(10_000) == 1.0


@pytest.mark.parametrize("wrong", [{"times": -1}, {"times": 101}, {"wait": "2s"}, {"wait_max": "x"}])
def test_conflict_options_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="conflicts: "):
        conflicts(**wrong)  # type: ignore[arg-type]
