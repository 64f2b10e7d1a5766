"""Automatic replay as decisions: what goes first, how fast it grows, where it stops, and that it always ends."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import redrive
from redrive.errors import UsageError
from redrive.policy.action import REASONS
from redrive.policy.auto_replay import AutoReplay, auto_replay, settled_for, tuned_replay
from redrive.policy.healing import (
    IN_FLIGHT_MAX,
    MAY_PASS,
    Ask,
    Cause,
    DeadLetter,
    End,
    Ending,
    Run,
    Seen,
    Wait,
    look,
    next_letters,
    next_time,
    pace,
    step,
    why_not,
)

LETTERS = st.lists(
    st.builds(
        DeadLetter,
        letter=st.integers(1, 10_000),
        position=st.integers(1, 10_000),
        lane=st.none() | st.sampled_from("abc"),
        reason=st.sampled_from(REASONS),
        dependency=st.none() | st.sampled_from(["bank", "crm"]),
        replays=st.integers(0, 5),
        died_at=st.floats(0, 1e6),
        rev=st.integers(0, 9),
    ),
    unique_by=lambda letter: letter.position,
    max_size=30,
)
COUNTS = st.integers(0, 200)
RULES = st.builds(AutoReplay, rate=st.floats(0.01, 1_000), batch=st.integers(1, 50), times=st.integers(1, 5))


@given(LETTERS, st.integers(0, 40))
def test_the_oldest_go_first_and_one_of_a_lane(letters: list[DeadLetter], room: int) -> None:
    chosen = next_letters(letters, room)
    positions = [letter.position for letter in chosen]
    lanes = [letter.lane for letter in chosen if letter.lane is not None]
    assert positions == sorted(positions)
    assert len(chosen) <= room
    assert len(lanes) == len(set(lanes))
    for left in set(letters) - set(chosen):  # it is younger than all that go, or one of its lane goes before it
        before = [letter for letter in chosen if letter.position < left.position]
        assert len(before) == room or left.lane in {letter.lane for letter in before} - {None}


@given(st.sampled_from(REASONS), st.integers(0, 5), st.floats(0, 1e6), RULES)
def test_only_what_may_pass_goes_and_never_too_often_or_too_late(
    reason: str, replays: int, died_at: float, rule: AutoReplay
) -> None:
    letter, now = DeadLetter(1, 1, "a", reason, "bank", replays, died_at, 0), 1e6
    may = why_not(rule, letter, now, None) == ""
    young = now - died_at <= (rule.max_age or math.inf)
    assert may == (reason in MAY_PASS and replays < rule.times and young)
    assert why_not(rule, letter, now, "crm")
    assert (why_not(rule, letter, now, "bank") == "") == may


def test_letters_without_a_lane_go_side_by_side() -> None:
    made = [DeadLetter(n, n, lane, "failing", None, 0, 0.0, 0) for n, lane in enumerate([None, "a", None, "a", None])]
    assert [one.letter for one in next_letters(made, 9)] == [0, 1, 2, 4]


@pytest.mark.parametrize("cron", ["", "* * * *", "0 0 30 2 *", "often", 5])
def test_line_that_is_never_due_is_refused(cron: Any) -> None:
    with pytest.raises(UsageError, match="is no line of five fields that is ever due"):
        auto_replay(cron)
    if cron:
        with pytest.raises(UsageError, match="is no line of five fields that is ever due"):
            tuned_replay("mail", None, {"cron": cron}, has_breaker=True)


def test_rule_that_could_never_start_is_refused() -> None:
    with pytest.raises(UsageError, match="on_recovery is True or False, not 1"):
        auto_replay(on_recovery=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="waits for a breaker to close"):
        settled_for("mail", auto_replay("* * * * *", on_recovery=True), has_breaker=False)
    for option in ("times", "batch"):
        with pytest.raises(UsageError, match=option):
            auto_replay("* * * * *", **{option: 0})  # type: ignore[arg-type]


def test_who_waits_behind_another_and_who_had_its_turn_are_left_alone() -> None:
    letter = DeadLetter(1, 1, "a", "attempts_exhausted", None, 0, 0.0, 0, operation=7)
    assert why_not(AutoReplay(), letter, 1.0, None, first=8) == ""
    assert "dead again" in why_not(AutoReplay(), letter, 1.0, None, first=7)
    assert "behind" in why_not(AutoReplay(), letter._replace(is_head=False), 1.0, None)


def test_what_does_not_pass_by_itself_is_never_replayed() -> None:
    never = set(REASONS) - MAY_PASS
    lives = {"behind_head", "failing", "held", "rate_limited"}  # nothing dies of these
    assert {
        "rejected",
        "undecodable",
        "id_collision",
        "lost_at_source",
        "bad_key",
        "permanent",
        "crashed_worker",
        "crashed_connection",
        *lives,
    } == never


@given(RULES, COUNTS, COUNTS, COUNTS, COUNTS)
def test_more_go_at_a_time_only_after_some_went_well(
    rule: AutoReplay, applied: int, failed: int, waiting: int, left: int
) -> None:
    found = step(rule, Run(applied, failed, waiting, left, cancelled=False, relapsed=False))
    match found:
        case Ask(room, bucket):
            assert 0 < room <= left
            assert waiting + room <= min(IN_FLIGHT_MAX, 1 + max(0, applied - failed))
            assert bucket.rate <= rule.rate
            assert applied > failed or bucket.rate <= 1.0
        case Wait():
            assert waiting
        case End(how):
            assert (how, waiting, left) == (Ending.DONE, 0, 0)


@given(RULES, COUNTS, COUNTS, COUNTS, COUNTS, st.booleans())
def test_nothing_is_asked_for_after_a_relapse_or_a_cancel(
    rule: AutoReplay, applied: int, failed: int, waiting: int, left: int, cancelled: bool
) -> None:
    found = step(rule, Run(applied, failed, waiting, left, cancelled=cancelled, relapsed=not cancelled))
    assert found == End(Ending.CANCELLED if cancelled else Ending.RELAPSE)


@given(RULES, st.integers(0, 10_000), st.integers(0, 10_000))
def test_the_rate_grows_and_is_never_more_than_it_may_be(rule: AutoReplay, one: int, other: int) -> None:
    less, more = pace(rule, min(one, other)), pace(rule, max(one, other))
    assert less.rate <= more.rate <= rule.rate
    assert pace(rule, 10**9).rate == rule.rate


@given(RULES, st.lists(st.sampled_from(["applied", "failed", "relapse"]), min_size=1, max_size=60), st.randoms())
def test_a_run_replays_each_once_in_order_and_ends(rule: AutoReplay, fates: list[str], dice: object) -> None:
    """A model of the executor: letters come to an end in any order, and nothing follows a relapse."""
    left = [DeadLetter(n, n, f"{n}", "attempts_exhausted", None, 0, 0.0, 0) for n in range(1, len(fates) + 1)]
    waiting: list[int] = []
    asked: list[int] = []
    results: list[str] = []
    for _ in range(10 * len(fates)):
        relapsed = "relapse" in results
        applied = results.count("applied")
        run = Run(applied, len(results) - applied, len(waiting), len(left), cancelled=False, relapsed=relapsed)
        match step(rule, run):
            case Ask(room, _):
                assert not relapsed
                chosen = next_letters(left, room)
                left = [letter for letter in left if letter not in chosen]
                waiting += [letter.letter for letter in chosen]
                asked += [letter.letter for letter in chosen]
            case Wait():
                done = waiting.pop(dice.randrange(len(waiting)))  # type: ignore[attr-defined]
                results.append(fates[done - 1])
            case End(how):
                assert how is (Ending.RELAPSE if relapsed else Ending.DONE)
                assert relapsed or not (left or waiting)
                break
    else:
        raise AssertionError("it does not end")
    assert asked == list(range(1, len(asked) + 1))


# ------------------------------------------------------------ when

RULE = AutoReplay("*/10 * * * *", on_recovery=True)


def test_a_time_is_answered_once() -> None:
    seen, cause = look(RULE, Seen(599.0, 0), 600.0, 0, is_well=True)
    assert (cause, seen.cron_at) == (Cause.CRON, 600.0)
    assert look(RULE, seen, 1_199.0, 0, is_well=True)[1] is None
    assert look(RULE, seen, 1_200.0, 0, is_well=True)[1] is Cause.CRON


def test_many_missed_times_are_one() -> None:
    seen, cause = look(RULE, Seen(0.0, 0), 86_401.0, 0, is_well=True)
    assert cause is Cause.CRON
    assert look(RULE, seen, 86_402.0, 0, is_well=True)[1] is None


def test_a_recovery_is_answered_once_and_the_time_that_came_with_it_after_it() -> None:
    seen, cause = look(RULE, Seen(0.0, 3), 600.0, 4, is_well=True)
    assert (cause, seen.recoveries) == (Cause.RECOVERY, 4)
    seen, cause = look(RULE, seen, 600.0, 4, is_well=True)
    assert cause is Cause.CRON
    assert look(RULE, seen, 601.0, 4, is_well=True) == (seen, None)


def test_nothing_begins_while_the_dependency_is_not_well() -> None:
    seen, cause = look(RULE, Seen(0.0, 3), 600.0, 4, is_well=False)
    assert (cause, seen.recoveries, seen.cron_at) == (None, 3, 600.0)
    assert look(RULE, seen, 601.0, 4, is_well=True)[1] is Cause.RECOVERY


def test_who_does_not_wait_for_recoveries_is_told_of_none() -> None:
    assert look(replace(RULE, on_recovery=False), Seen(0.0, 3), 1.0, 4, is_well=True)[1] is None


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_whatever_a_clock_did_the_next_time_is_near(then: float, now: float) -> None:
    seen, _ = look(RULE, Seen(then, 0), now, 0, is_well=True)
    assert seen.cron_at <= now
    due_at = next_time(RULE, seen.cron_at)
    assert due_at is not None and due_at - now <= 600.0


def test_a_store_that_was_copied_counts_recoveries_from_nought() -> None:
    seen, cause = look(RULE, Seen(0.0, 9), 1.0, 0, is_well=True)
    assert (cause, seen.recoveries) == (None, 0)


# ------------------------------------------------------------ saying it


def test_on_recovery_is_decided_by_whether_there_is_a_breaker() -> None:
    cron = auto_replay("* * * * *")
    assert [settled_for("x", cron, has_breaker=one).on_recovery for one in (True, False)] == [True, False]  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="cron line"):
        settled_for("x", auto_replay(), has_breaker=False)


def test_settings_switch_it_off_and_on() -> None:
    rule = settled_for("x", auto_replay("* * * * *"), has_breaker=False)
    assert tuned_replay("x", rule, {}, has_breaker=False) is rule
    assert tuned_replay("x", rule, {"enabled": False, "times": 2}, has_breaker=False) is None
    assert tuned_replay("x", rule, {"times": 2}, has_breaker=False) == replace(given_rule(rule), times=2)
    assert tuned_replay("x", None, {"enabled": True}, has_breaker=True) == AutoReplay(on_recovery=True)


def given_rule(rule: AutoReplay | None) -> AutoReplay:
    assert rule is not None
    return rule


def test_the_reasons_that_may_pass_are_those_of_the_statement() -> None:
    queries = (Path(redrive.__file__).parent / "store" / "queries.sql").read_text(encoding="utf-8")
    statement = queries.split("-- name: letters_to_heal")[1].split("-- name:")[0]
    assert {reason for reason in REASONS if f"'{reason}'" in statement} == MAY_PASS
