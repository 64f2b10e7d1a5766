"""The tables of states: letters, leases, subscriptions and breakers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import BugError
from redrive.policy import breaker, halting, lease, letters

MACHINES: list[Any] = [letters, lease, halting, breaker]
FIRST: dict[Any, list[str]] = {
    letters: [letters.State.RETRYING, letters.State.DEAD],
    lease: ["free"],
    halting: ["running"],
    breaker: ["closed"],
}


def reachable(machine: Any, start: Any) -> set[Any]:
    seen = {start}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        for (before, _), after in machine.TRANSITIONS.items():
            if before == state and after not in seen:
                seen.add(after)
                waiting.append(after)
    return seen


@pytest.mark.parametrize("machine", MACHINES)
def test_a_step_is_in_the_table_or_a_bug(machine: Any) -> None:
    for state in machine.State:
        for verb in machine.Verb:
            if (state, verb) in machine.TRANSITIONS:
                assert machine.next_state(state, verb) in machine.State
            else:
                with pytest.raises(BugError, match=f"{verb} cannot happen in the state {state}"):
                    machine.next_state(state, verb)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_can_be_reached_and_every_verb_does_something(machine: Any) -> None:
    assert {state for start in FIRST[machine] for state in reachable(machine, start)} == set(machine.State)
    assert {verb for _, verb in machine.TRANSITIONS} == set(machine.Verb)


@pytest.mark.parametrize("state", sorted(letters.OPEN))
@pytest.mark.parametrize("end", [letters.State.APPLIED, letters.State.DISCARDED])
def test_an_open_letter_can_always_be_settled(state: letters.State, end: letters.State) -> None:
    assert end in reachable(letters, state)


@given(st.lists(st.sampled_from(letters.Verb)))
def test_only_reopening_ever_takes_a_letter_out_of_the_settled_states(verbs: list[letters.Verb]) -> None:
    state = letters.State.RETRYING
    for verb in verbs:
        if (state, verb) not in letters.TRANSITIONS:
            continue
        after = letters.next_state(state, verb)
        if state in letters.SETTLED and after in letters.OPEN:
            assert verb is letters.Verb.REOPENED
        state = after


def test_step_that_cannot_happen_names_those_that_can() -> None:
    with pytest.raises(BugError, match="cannot happen in the state applied, only superseded; please report"):
        letters.next_state(letters.State.APPLIED, letters.Verb.REPLAYED)


def test_a_replay_starts_from_the_dead_only() -> None:
    assert [state for state, verb in letters.TRANSITIONS if verb is letters.Verb.REPLAYED] == [letters.State.DEAD]


def test_only_an_attempt_applies_buries_or_retries_and_only_a_retrying_letter_has_attempts() -> None:
    by_attempt = {letters.Verb.APPLIED, letters.Verb.BURIED, letters.Verb.RETRIED, letters.Verb.IGNORED}
    assert {state for state, verb in letters.TRANSITIONS if verb in by_attempt} == {letters.State.RETRYING}


def test_what_was_applied_is_never_opened_again() -> None:
    assert not reachable(letters, letters.State.APPLIED) & letters.OPEN


def test_a_discard_is_taken_back_by_an_operator_or_not_at_all() -> None:
    leaving = [verb for state, verb in letters.TRANSITIONS if state is letters.State.DISCARDED]
    assert leaving == [letters.Verb.REOPENED, letters.Verb.SUPERSEDED]  # both are deeds of an operator


def test_a_superseded_letter_stays_so() -> None:
    assert reachable(letters, letters.State.SUPERSEDED) == {letters.State.SUPERSEDED}


def test_nothing_but_the_operator_ends_a_pause() -> None:
    leaving = [
        verb
        for (state, verb), after in halting.TRANSITIONS.items()
        if state is halting.State.PAUSED and after is not halting.State.PAUSED
    ]
    assert leaving == [halting.Verb.RESUME]


def test_a_held_lease_cannot_be_taken() -> None:
    assert (lease.State.HELD, lease.Verb.TAKE) not in lease.TRANSITIONS
