"""The life of a letter, as a table.

A letter is open (retrying or dead) or settled (applied, discarded or superseded). Every write
to a letter is one of these steps. None of them deletes it: what is settled stays, and what is open
stays open until somebody or something settles it.
"""

from __future__ import annotations

from enum import StrEnum

from redrive.policy.action import BEHIND_HEAD
from redrive.policy.machine import step


class State(StrEnum):
    """Where a letter stands."""

    RETRYING = "retrying"  # has a due time, or waits behind the head of its lane
    DEAD = "dead"  # attempts are over; an operator decides
    APPLIED = "applied"
    DISCARDED = "discarded"
    SUPERSEDED = "superseded"  # progress was taken back below it: its event comes round again


class Verb(StrEnum):
    """What happens to a letter."""

    RETRIED = "retried"  # an attempt failed, there will be another
    BURIED = "buried"
    APPLIED = "applied"
    IGNORED = "ignored"  # an attempt ended in the verdict Ignore
    REPLAYED = "replayed"  # an operator sends it round once more
    DISCARDED = "discarded"  # by an operator, or by a rule when it would have been buried
    RESOLVED = "resolved"  # an operator did by hand what the function would have done
    EDITED = "edited"
    SUPERSEDED = "superseded"
    REOPENED = "reopened"
    CANCELLED = "cancelled"  # an operator takes a replay back that has not run yet


OPEN = frozenset({State.RETRYING, State.DEAD})
SETTLED = frozenset(State) - OPEN
WAITING = "waiting"  # how a retrying letter is shown that waits behind another of its lane; never stored

TRANSITIONS: dict[tuple[State, Verb], State] = {
    (State.RETRYING, Verb.RETRIED): State.RETRYING,
    (State.RETRYING, Verb.BURIED): State.DEAD,
    (State.RETRYING, Verb.APPLIED): State.APPLIED,
    (State.RETRYING, Verb.IGNORED): State.DISCARDED,  # settled without effects; `resolved_by` tells who asked for that
    (State.RETRYING, Verb.DISCARDED): State.DISCARDED,
    (State.RETRYING, Verb.RESOLVED): State.DISCARDED,  # we applied nothing; `resolved_by` tells that somebody did
    (State.RETRYING, Verb.CANCELLED): State.DEAD,
    (State.RETRYING, Verb.EDITED): State.RETRYING,
    (State.RETRYING, Verb.SUPERSEDED): State.SUPERSEDED,
    # A replay is not an attempt by itself: it makes the letter due, and the loop takes it from there.
    (State.DEAD, Verb.REPLAYED): State.RETRYING,
    (State.DEAD, Verb.DISCARDED): State.DISCARDED,
    (State.DEAD, Verb.RESOLVED): State.DISCARDED,
    (State.DEAD, Verb.EDITED): State.DEAD,
    (State.DEAD, Verb.SUPERSEDED): State.SUPERSEDED,
    # A discard can be taken back, and then goes round like a replay. What was applied cannot: twice is not once.
    (State.DISCARDED, Verb.REOPENED): State.RETRYING,
    # Going back undoes what was applied, so that it can be applied again. A discard is somebody's word and stays,
    # except where that somebody was the function itself: it is asked again.
    (State.APPLIED, Verb.SUPERSEDED): State.SUPERSEDED,
    (State.DISCARDED, Verb.SUPERSEDED): State.SUPERSEDED,
}


def shown_state(state: str, reason: str) -> str:
    """The state as every view names it: a letter that only waits behind another is not being retried.

    >>> shown_state("retrying", "behind_head"), shown_state("retrying", "failing")
    ('waiting', 'retrying')
    """
    return WAITING if state == State.RETRYING and reason == BEHIND_HEAD else state


def next_state(state: State, verb: Verb) -> State:
    """The state of a letter after `verb`; BugError if that cannot happen.

    >>> next_state(State.DEAD, Verb.REPLAYED)
    <State.RETRYING: 'retrying'>
    """
    return step(TRANSITIONS, state, verb)
