"""Whether a subscription runs, as a table.

It halts by itself and recovers by itself; it is paused and resumed by an operator. The operator's
word is the stronger one: nothing that heals by itself may start what somebody has stopped.
"""

from __future__ import annotations

from enum import StrEnum

from redrive.policy.machine import step

HALTED = "halted: "  # a supervisor puts this before the reason why a subscription does not run in its process


class State(StrEnum):
    """Whether events are taken in."""

    RUNNING = "running"
    HALTED = "halted"
    PAUSED = "paused"


class Verb(StrEnum):
    """What changes it."""

    HALT = "halt"  # it cannot go on: the store is down, a letter cannot be written, an anchor does not match
    RECOVER = "recover"  # it can again
    PAUSE = "pause"
    RESUME = "resume"


TRANSITIONS: dict[tuple[State, Verb], State] = {
    (State.RUNNING, Verb.HALT): State.HALTED,
    (State.HALTED, Verb.HALT): State.HALTED,  # still, or for another reason now
    (State.HALTED, Verb.RECOVER): State.RUNNING,
    (State.RUNNING, Verb.PAUSE): State.PAUSED,
    (State.HALTED, Verb.PAUSE): State.PAUSED,
    (State.PAUSED, Verb.HALT): State.PAUSED,
    (State.PAUSED, Verb.RECOVER): State.PAUSED,
    (State.PAUSED, Verb.RESUME): State.RUNNING,
}


def next_state(state: State, verb: Verb) -> State:
    """The state of a subscription after `verb`; BugError if that cannot happen.

    >>> next_state(State.HALTED, Verb.RECOVER)
    <State.RUNNING: 'running'>
    """
    return step(TRANSITIONS, state, verb)
