"""The decision, held against what it promises for any outcome, any rules and any circumstances."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from redrive.errors import StoreBusy, UsageError, VersionConflict
from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.action import Action
from redrive.policy.decide import Policy, decide
from redrive.policy.outcome import Failure, Outcome
from redrive.policy.retry import Retry, conflicts, no_retry, retry
from redrive.policy.rules import Candidate, Rules, rules

FAILURE = Failure("ValueError", "no", "Traceback…", "0123456789ab")
ERRORS = [OSError, ConnectionError, FileNotFoundError, ValueError, KeyError, LookupError, UsageError]
TYPES = ["order.placed", "order.paid", "payment.due"]


def raising(letter: Any) -> bool:
    raise RuntimeError("the rule itself is broken")


errors = st.sampled_from(ERRORS).map(lambda kind: kind("boom"))
some_errors = st.lists(st.sampled_from(ERRORS), min_size=1, max_size=3)
types = st.sampled_from(TYPES)
some_types = st.none() | st.lists(st.sampled_from([*TYPES, "order.*", "payment.*", "*"]), min_size=1, max_size=2)
retries = st.builds(
    retry,
    attempts=st.integers(1, 6),
    wait=st.floats(0.0, 10.0),
    wait_max=st.floats(10.0, 100.0),
    jitter=st.floats(0.0, 1.0),
    on=st.none() | some_errors,
    never=st.none() | some_errors,
    types=some_types,
)
letter_rules = st.builds(
    rules,
    discard=st.lists(st.sampled_from(["order.*", "payment.due", raising]), max_size=2),
    keep=st.lists(st.sampled_from(["order.paid", "payment.*"]), max_size=1),
    keep_if=st.sampled_from([None, raising, lambda letter: True, lambda letter: False]),
)
policies = st.builds(
    Policy,
    retry=st.lists(retries, max_size=4).map(tuple),
    conflicts=st.builds(conflicts, times=st.integers(0, 5)),
    letters=letter_rules,
)

failed = st.builds(out.Failed, errors, st.just(FAILURE))
postponed = st.builds(out.Postponed, st.just(FAILURE), st.none() | st.floats(0.0, 1e6))
hopeless: st.SearchStrategy[Outcome] = st.sampled_from(
    [out.Rejected(FAILURE), out.Unreadable(FAILURE), out.Unkeyed(FAILURE), out.Crashed(3), out.Crashed(7)]
)
exhausted_conflicts = st.builds(out.Conflicted, errors, st.just(FAILURE), st.just(1_000))
failures: st.SearchStrategy[Outcome] = failed | postponed | hopeless | exhausted_conflicts
blameless: st.SearchStrategy[Outcome] = st.sampled_from([out.STOPPED, out.StoreDown(StoreBusy("locked"))])
outcomes: st.SearchStrategy[Outcome] = (
    failures
    | blameless
    | st.just(out.APPLIED)
    | st.builds(out.Ignored, st.text(max_size=5))
    | st.builds(out.Conflicted, errors, st.just(FAILURE), st.integers(0, 6))
    | st.builds(out.Crashed, st.integers(1, 5))
)
circumstances = st.fixed_dictionaries(
    {
        "attempt": st.integers(1, 8),
        "now": st.floats(0.0, 4e9),
        "dice": st.floats(0.0, 1.0),
        "event_type": types,
        "replay": st.booleans(),
    }
)

PLAIN: dict[str, Any] = {"attempt": 1, "now": 100.0, "dice": 0.5, "event_type": "order.placed"}


def told(outcome: Outcome, *retry_rules: Retry, letters: Rules | None = None, **other: Any) -> Action:
    policy = Policy(retry=retry_rules or (retry(),), letters=letters or Rules())
    return decide(outcome, policy=policy, **{**PLAIN, **other})


# ---- what holds for everything


@given(outcomes, policies, circumstances)
def test_the_same_question_has_the_same_answer(outcome: Outcome, policy: Policy, call: dict[str, Any]) -> None:
    assert decide(outcome, policy=policy, **call) == decide(outcome, policy=policy, **call)


@given(outcomes, policies, circumstances)
def test_only_a_success_is_committed_and_every_success_is(
    outcome: Outcome, policy: Policy, call: dict[str, Any]
) -> None:
    action = decide(outcome, policy=policy, **call)
    assert isinstance(action, act.Commit) == isinstance(outcome, out.Applied)


@given(outcomes, policies, circumstances)
def test_a_parked_event_is_due_after_its_delay_and_keeps_its_error(
    outcome: Outcome, policy: Policy, call: dict[str, Any]
) -> None:
    match decide(outcome, policy=policy, **call):
        case act.Park(due_at, delay, failure):
            assert due_at == call["now"] + delay
            assert delay >= 0.0
            assert failure == FAILURE


@given(failed, policies, circumstances)
def test_the_delay_after_an_error_stays_within_wait_max(outcome: Outcome, policy: Policy, call: dict[str, Any]) -> None:
    match decide(outcome, policy=policy, **call):
        case act.Park(delay=delay):
            assert delay <= max(rule.wait_max for rule in policy.retry)


@given(blameless, policies, circumstances)
def test_a_stop_and_a_store_that_is_down_never_spend_an_attempt(
    outcome: Outcome, policy: Policy, call: dict[str, Any]
) -> None:
    action = decide(outcome, policy=policy, **call)
    match outcome:
        case out.Stopped():
            assert action == act.Defer()
        case out.StoreDown():
            assert action == act.Halt("the store cannot be written (StoreBusy: locked)")


# ---- attempts


@given(policies, types, st.lists(failures, min_size=7, max_size=7), st.floats(0.0, 1.0))
def test_whatever_fails_is_parked_at_most_attempts_minus_one_times_and_then_buried_or_discarded(
    policy: Policy, event_type: str, trouble: list[Outcome], dice: float
) -> None:
    # RetryLater with no rule for the type is bounded by the default rule.
    attempts_max = max([rule.attempts for rule in policy.retry if rule.covers(event_type)], default=Retry().attempts)
    for attempt, outcome in enumerate(trouble, start=1):
        action = decide(outcome, attempt=attempt, policy=policy, now=0.0, dice=dice, event_type=event_type)
        if not isinstance(action, act.Park):
            break
        assert attempt < attempts_max
    else:
        pytest.fail("it never ended")
    assert isinstance(action, act.Bury | act.Discard)


@given(st.integers(1, 50), errors.filter(lambda error: not isinstance(error, UsageError)))
def test_attempts_counts_the_first_call(attempts: int, error: Exception) -> None:
    rule = retry(attempts=attempts)
    actions = [told(out.Failed(error, FAILURE), rule, attempt=n) for n in range(1, attempts + 1)]
    assert all(isinstance(action, act.Park) for action in actions[:-1])
    assert actions[-1] == act.Bury(act.ATTEMPTS_EXHAUSTED, FAILURE)


@given(failures, policies, circumstances)
def test_a_replay_is_buried_after_exactly_one_failure_and_no_rule_discards_it(
    outcome: Outcome, policy: Policy, call: dict[str, Any]
) -> None:
    call["replay"] = True
    assert isinstance(decide(outcome, policy=policy, **call), act.Bury)


@given(failures, policies, circumstances)
def test_a_replay_is_buried_for_the_same_reason_as_a_last_attempt(
    outcome: Outcome, policy: Policy, call: dict[str, Any]
) -> None:
    last = decide(outcome, policy=policy, **{**call, "attempt": 1_000, "replay": False})
    again = decide(outcome, policy=policy, **{**call, "replay": True})
    assert isinstance(last, act.Bury | act.Discard)
    assert isinstance(again, act.Bury)
    assert last.reason == again.reason


# ---- rules


def speaks(rule: Retry, event_type: str, error: BaseException) -> bool:
    return rule.covers(event_type) and (rule.forbids(error) or rule.allows(error))


@given(failed, policies, circumstances)
def test_the_first_rule_that_speaks_about_the_error_decides_alone(
    outcome: out.Failed, policy: Policy, call: dict[str, Any]
) -> None:
    speaking = [rule for rule in policy.retry if speaks(rule, call["event_type"], outcome.error)]
    alone = replace(policy, retry=tuple(speaking[:1]))
    assert decide(outcome, policy=policy, **call) == decide(outcome, policy=alone, **call)


@given(failed, circumstances)
def test_an_error_no_rule_speaks_about_is_permanent(outcome: out.Failed, call: dict[str, Any]) -> None:
    action = decide(outcome, policy=Policy(retry=()), **call)
    assert action == act.Bury(act.PERMANENT, FAILURE)


@given(st.sampled_from(ERRORS), retries, st.lists(retries, max_size=2), circumstances)
def test_never_beats_on(kind: type[Exception], rule: Retry, others: list[Retry], call: dict[str, Any]) -> None:
    assume(rule.covers(call["event_type"]))
    both = replace(rule, on=(kind,), never=(kind,))
    action = decide(out.Failed(kind("boom"), FAILURE), policy=Policy(retry=(both, *others)), **call)
    assert action == act.Bury(act.PERMANENT, FAILURE)


@given(policies, circumstances)
def test_verdicts_beat_rules(policy: Policy, call: dict[str, Any]) -> None:
    keep_all = replace(policy, letters=Rules())
    assert decide(out.Rejected(FAILURE), policy=keep_all, **call) == act.Bury(act.REJECTED, FAILURE)
    assert decide(out.Ignored("old"), policy=policy, **call) == act.Ignore("old")


@given(some_errors, some_errors, st.floats(0.0, 1e6))
def test_retry_later_is_heard_whatever_errors_the_rule_names(
    on: list[type[Exception]], never: list[type[Exception]], after: float
) -> None:
    action = told(out.Postponed(FAILURE, after), retry(attempts=2, on=on, never=never))
    assert action == act.Park(100.0 + after, after, FAILURE)


def test_retry_later_without_a_time_waits_as_long_as_the_rule_says() -> None:
    assert told(out.Postponed(FAILURE, None), retry(wait="7s", wait_max="1m", jitter=0)) == act.Park(
        107.0, 7.0, FAILURE
    )


def test_retry_later_spends_attempts_so_it_ends() -> None:
    postponed = out.Postponed(FAILURE, 1.0)
    assert told(postponed, retry(attempts=3), attempt=3) == act.Bury(act.ATTEMPTS_EXHAUSTED, FAILURE)
    assert told(postponed, no_retry) == act.Bury(act.ATTEMPTS_EXHAUSTED, FAILURE)


def test_retry_later_spends_the_attempts_of_the_rule_for_its_type_or_else_of_the_default_rule() -> None:
    postponed, other = out.Postponed(FAILURE, 1.0), retry(attempts=9, types="other")
    assert isinstance(told(postponed, other, retry(attempts=3), attempt=2), act.Park)
    assert isinstance(told(postponed, other, retry(attempts=3), attempt=3), act.Bury)
    assert isinstance(told(postponed, other, attempt=4), act.Park)
    assert isinstance(told(postponed, other, attempt=5), act.Bury)


def test_a_rule_for_a_type_speaks_only_about_that_type() -> None:
    rules_by_type = (retry(attempts=1, types="payment.*"), retry(attempts=2))
    failed = out.Failed(OSError(), FAILURE)
    assert isinstance(told(failed, *rules_by_type, event_type="payment.due"), act.Bury)
    assert isinstance(told(failed, *rules_by_type, event_type="order.placed"), act.Park)


def test_a_later_rule_that_names_a_permanent_error_is_not_hidden_by_an_earlier_general_one() -> None:
    failed = out.Failed(UsageError("wrong"), FAILURE)
    assert told(failed, retry()) == act.Bury(act.PERMANENT, FAILURE)
    assert isinstance(told(failed, retry(), retry(on=UsageError)), act.Park)


# ---- the reasons


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (out.Rejected(FAILURE), act.REJECTED),
        (out.Unreadable(FAILURE), act.UNDECODABLE),
        (out.Unkeyed(FAILURE), act.BAD_KEY),
        (out.Failed(UsageError(""), FAILURE), act.PERMANENT),
    ],
)
def test_what_trying_again_cannot_cure_is_buried_at_once(outcome: Outcome, reason: str) -> None:
    assert told(outcome) == act.Bury(reason, FAILURE)


# ---- conflicts and crashes


def test_a_conflict_is_rerun_after_50_100_and_200_ms_and_only_then_spends_an_attempt() -> None:
    conflict = VersionConflict("orders", "k", 1, 2)
    actions = [told(out.Conflicted(conflict, FAILURE, reruns)) for reruns in range(4)]
    assert actions[:3] == [act.Rerun(0.05), act.Rerun(0.1), act.Rerun(0.2)]
    assert actions[3] == told(out.Failed(conflict, FAILURE))


@given(errors, policies, circumstances)
def test_a_conflict_that_reruns_do_not_cure_is_an_error_like_any_other(
    error: Exception, policy: Policy, call: dict[str, Any]
) -> None:
    conflicted = out.Conflicted(error, FAILURE, policy.conflicts.times)
    assert decide(conflicted, policy=policy, **call) == decide(out.Failed(error, FAILURE), policy=policy, **call)


def test_reruns_can_be_switched_off() -> None:
    action = decide(out.Conflicted(OSError(), FAILURE, 0), policy=Policy(conflicts=conflicts(times=0)), **PLAIN)
    assert isinstance(action, act.Park)


@pytest.mark.parametrize(
    ("charges", "lost", "reason", "said"),
    [
        (3, 3, act.CRASHED_CONNECTION, "was lost 3 times"),
        (3, 1, act.CRASHED_WORKER, "died 2 times, and lost its connection 1 times,"),
        (3, 0, act.CRASHED_WORKER, "died 3 times while"),
    ],
)
def test_reason_of_a_crash_says_what_was_lost(charges: int, lost: int, reason: str, said: str) -> None:
    action = decide(out.Crashed(charges, lost), policy=Policy(), **PLAIN)
    assert isinstance(action, act.Bury)
    assert action.reason == reason
    assert said in action.failure.message


@given(policies, circumstances, st.integers(1, 10), st.integers(1, 10))
def test_an_event_is_buried_for_crashes_only_when_its_charges_are_full(
    policy: Policy, call: dict[str, Any], charges: int, charges_max: int
) -> None:
    policy = replace(policy, crash_charges_max=charges_max, letters=Rules())
    action = decide(out.Crashed(charges), policy=policy, **call)
    if charges < charges_max:
        assert action == act.Rerun(0.0)
    else:
        assert isinstance(action, act.Bury)
        assert action.reason == act.CRASHED_WORKER
        assert f"{charges} times" in action.failure.message


# ---- keep and discard


@given(outcomes, policies, circumstances)
def test_nothing_is_discarded_but_what_a_rule_matches(outcome: Outcome, policy: Policy, call: dict[str, Any]) -> None:
    match decide(outcome, policy=policy, **call):
        case act.Discard(_, rule):
            event_type = call["event_type"]
            assert not call["replay"]
            if rule.startswith("discard "):
                pattern = rule.removeprefix("discard ")
                assert pattern in policy.letters.discard
                assert event_type == pattern or event_type.startswith(pattern.removesuffix("*"))
            else:
                assert rule.startswith("keep_if ")
                assert policy.letters.keep_if is not None
                assert policy.letters.keep_if(None) is False


@given(failures, policies, circumstances)
def test_rules_change_only_whether_a_letter_is_kept_and_never_why(
    outcome: Outcome, policy: Policy, call: dict[str, Any]
) -> None:
    kept = decide(outcome, policy=replace(policy, letters=Rules()), **call)
    judged = decide(outcome, policy=policy, **call)
    match judged:
        case act.Discard(reason, _, failure) | act.Bury(reason, failure):
            assert kept == act.Bury(reason, failure)
        case _:
            assert judged == kept


def test_a_keep_if_that_raises_keeps_the_letter_and_names_the_rule() -> None:
    action = told(out.Rejected(FAILURE), letters=rules(keep_if=raising))
    assert action == act.Bury(act.REJECTED, FAILURE, "keep_if raising: raised RuntimeError")


def test_a_rule_sees_the_letter_as_it_would_be_written() -> None:
    seen: list[Candidate] = []

    def look(letter: Candidate) -> bool:
        seen.append(letter)
        return False

    candidate = Candidate("charge", {"cents": 5})
    action = told(out.Rejected(FAILURE), letters=rules(keep_if=look), letterlike=candidate, attempt=3)
    assert isinstance(action, act.Discard)
    assert seen == [Candidate("charge", {"cents": 5}, attempts=3, reason=act.REJECTED, failure=FAILURE)]


def test_a_retry_is_not_asked_about() -> None:
    assert isinstance(told(out.Failed(OSError(), FAILURE), letters=rules(discard="*")), act.Park)


def test_an_error_whose_text_cannot_be_had_still_halts() -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert told(out.StoreDown(Nasty(object()))) == act.Halt("the store cannot be written (Nasty)")
