"""Draws docs/state-machines.md from the tables in redrive.policy, and the decisions by making them.

    python scripts/draw_state_machines.py            write the page
    python scripts/draw_state_machines.py --check    exit 1 if the page is not current

Nothing about the machines is written here but the sentences beside the words: a step that is on the
page is in the table, and the action in a row is what `decide()` answered.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from redrive.errors import StoreBusy, UsageError, VersionConflict
from redrive.policy import action as act
from redrive.policy import breaker, halting, lease, letters
from redrive.policy import outcome as out
from redrive.policy.action import Action
from redrive.policy.decide import Policy, decide
from redrive.policy.outcome import Failure, Outcome
from redrive.policy.retry import retry
from redrive.policy.rules import rules
from redrive.units import show_duration

PAGE = Path(__file__).parent.parent / "docs" / "state-machines.md"

Table = Mapping[tuple[Any, Any], StrEnum]

LETTER_WORDS: dict[letters.Verb, str] = {
    letters.Verb.RETRIED: "an attempt failed and another is allowed; it has a new due time",
    letters.Verb.BURIED: "an attempt failed and no other is allowed",
    letters.Verb.APPLIED: "an attempt succeeded; its effects are in the same transaction",
    letters.Verb.IGNORED: "an attempt raised `Ignore`; no effects, counted as ignored",
    letters.Verb.REPLAYED: "an operator sends it round once more; due at once, one attempt",
    letters.Verb.DISCARDED: "an operator or a discard rule gives it up; counted and audited",
    letters.Verb.RESOLVED: "an operator did by hand what the function would have done",
    letters.Verb.EDITED: "an operator changed the data; the old version is kept",
    letters.Verb.SUPERSEDED: "a seek back, a reset or a rebuild brings its event round again",
    letters.Verb.REOPENED: "an operator takes a discard back; only on an idle lane, one attempt, audited",
    letters.Verb.CANCELLED: "an operator takes a replay back that has not run yet; it is dead as before",
}

LEASE_WORDS: dict[lease.Verb, str] = {
    lease.Verb.TAKE: "a worker becomes the owner; the epoch grows and fences the last one",
    lease.Verb.RENEW: "the owner goes on; possible after the end too if nobody came",
    lease.Verb.RELEASE: "the owner stops gracefully and hands over at once",
    lease.Verb.LAPSE: "its time ran out, or its owner is known to be dead",
}

HALTING_WORDS: dict[halting.Verb, str] = {
    halting.Verb.HALT: "it cannot go on, and says why",
    halting.Verb.RECOVER: "it can go on again, by itself",
    halting.Verb.PAUSE: "an operator stops it",
    halting.Verb.RESUME: "an operator lets it go on",
}

BREAKER_WORDS: dict[breaker.Verb, str] = {
    breaker.Verb.TRIP: "so many calls in a row blamed the dependency; nothing is called, no attempt is spent",
    breaker.Verb.COOL: "the cooldown is over, or the sink says that it is well; a few calls at a time find out",
    breaker.Verb.RELAPSE: "a probe failed; the cooldown starts over",
    breaker.Verb.HEAL: "enough probes went well; from here on the rate grows",
    breaker.Verb.OPEN: "an operator opens it; it stays open until an operator closes it",
    breaker.Verb.CLOSE: "an operator closes it; everything goes through at once",
}

FAILURE = Failure("", "", "", "")
RULE = retry(attempts=5, wait="1s", wait_max="5m", jitter=0)
ERROR = out.Failed(ConnectionError(), FAILURE)
DEFAULT = Policy(retry=(RULE,))
DISCARDING = Policy(retry=(RULE,), letters=rules(discard="health.*"))
NAMING = Policy(retry=(retry(on=UsageError, jitter=0),))

# One line each: what happened, the outcome, and what is not as in PLAIN.
PLAIN: dict[str, Any] = {"attempt": 1, "policy": DEFAULT, "now": 0.0, "dice": 0.5, "event_type": "health.ping"}
DECISIONS: list[tuple[str, Outcome, dict[str, Any]]] = [
    ("the function returned", out.APPLIED, {}),
    ("it raised `Ignore`", out.Ignored("…"), {}),
    ("it raised `Reject`", out.Rejected(FAILURE), {}),
    ('it raised `RetryLater("10m")`', out.Postponed(FAILURE, 600.0), {}),
    ("it raised `RetryLater()`", out.Postponed(FAILURE, None), {}),
    ("it raised `RetryLater` on the last attempt", out.Postponed(FAILURE, 600.0), {"attempt": 5}),
    ("the bytes do not fit the type", out.Unreadable(FAILURE), {}),
    ("`key_by` gave no key", out.Unkeyed(FAILURE), {}),
    ("it raised something transient, first attempt", ERROR, {}),
    ("the same, fourth attempt", ERROR, {"attempt": 4}),
    ("the same, last attempt", ERROR, {"attempt": 5}),
    ("the same, in a replay", ERROR, {"replay": True}),
    ("the same, last attempt, a discard rule matches", ERROR, {"attempt": 5, "policy": DISCARDING}),
    ("the same, in a replay, a discard rule matches", ERROR, {"replay": True, "policy": DISCARDING}),
    ("it raised something permanent", out.Failed(UsageError(), FAILURE), {}),
    ("the same, but a rule names it in `on=`", out.Failed(UsageError(), FAILURE), {"policy": NAMING}),
    ("no rule speaks about the error", ERROR, {"policy": NAMING}),
    *(
        (f"version conflict, re-runs so far: {n}", out.Conflicted(VersionConflict("", "", 0, 0), FAILURE, n), {})
        for n in range(4)
    ),
    ("the process died with it alone, twice", out.Crashed(2), {}),
    ("the process died with it alone, three times", out.Crashed(3), {}),
    ("its connection was lost while alone, three times", out.Crashed(3, 3), {}),
    ("a breaker was open and is told to bury", out.Blocked(act.BREAKER_OPEN, FAILURE), {}),
    ("the breaker of its key is open for 1m", out.Held(act.BREAKER_OPEN, 60.0), {}),
    ("its key has reached the limit for 2s", out.Held(act.RATE_LIMITED, 2.0), {}),
    (
        "its last attempt left the breaker of its key open for 1m",
        out.Failed(TimeoutError(), FAILURE),
        {"attempt": 5, "shut_for": 60.0},
    ),
    ("no retry budget was left and the settings say bury", out.Blocked(act.RETRY_LIMITED, FAILURE), {}),
    ("the worker was told to stop", out.STOPPED, {}),
    ("the store is down", out.StoreDown(StoreBusy("database is locked")), {}),
]


def page() -> str:
    """The whole page as text."""
    return "\n".join(
        [
            "# State machines",
            "",
            "<!-- Drawn by scripts/draw_state_machines.py from src/redrive/policy/. Do not edit: run the script. -->",
            "",
            "Drawn from the tables that the engine itself uses. A step that is not in a table cannot happen: asking",
            "for it is a bug, and stops the subscription before anything is written.",
            "",
            *_machine(
                "A letter",
                "A letter holds one event out of the flow. *Open* is retrying or dead; the other states are settled.",
                letters.TRANSITIONS,
                LETTER_WORDS,
                starts={
                    letters.State.RETRYING: "parked",
                    letters.State.DEAD: "buried",
                    letters.State.DISCARDED: "discarded",
                },
            ),
            *_machine(
                "A lease",
                "Who works on a subscription. Two owners are kept apart by the epoch, not by the clock.",
                lease.TRANSITIONS,
                LEASE_WORDS,
                starts={lease.State.FREE: "registered"},
            ),
            *_machine(
                "A subscription",
                "It halts and recovers by itself; it is paused and resumed by an operator, whose word is stronger.",
                halting.TRANSITIONS,
                HALTING_WORDS,
                starts={halting.State.RUNNING: "started"},
            ),
            *_machine(
                "A breaker",
                "What keeps a dependency from being called while it is not well. All workers share it.",
                breaker.TRANSITIONS,
                BREAKER_WORDS,
                starts={breaker.State.CLOSED: "declared"},
            ),
            *_decisions(),
        ]
    )


def _machine(title: str, about: str, table: Table, words: Mapping[Any, str], starts: Mapping[Any, str]) -> list[str]:
    edges: dict[tuple[str, str], list[str]] = {}
    for (before, verb), after in table.items():
        edges.setdefault((before, after), []).append(verb)  # one arrow for all verbs between two states
    drawn = [f"    {before} --> {after} : {', '.join(verbs)}" for (before, after), verbs in edges.items()]
    rows = [(f"`{before}`", f"**{verb}**", f"`{after}`", words[verb]) for (before, verb), after in table.items()]
    return [
        f"## {title}",
        "",
        about,
        "",
        "```mermaid",
        "stateDiagram-v2",
        *(f"    [*] --> {state} : {verb}" for state, verb in starts.items()),
        *drawn,
        "```",
        "",
        *_table(("from", "verb", "to", "meaning"), rows),
        "",
    ]


def _decisions() -> list[str]:
    rows = [
        (words, f"`{type(outcome).__name__}`", _said(decide(outcome, **{**PLAIN, **given})))
        for words, outcome, given in DECISIONS
    ]
    return [
        "## From outcome to action",
        "",
        'What `decide()` answers, asked with `retry(attempts=5, wait="1s", wait_max="5m", jitter=0)` and no',
        "other rules unless the row says so.",
        "",
        *_table(("what happened", "outcome", "action"), rows),
        "",
    ]


def _said(action: Action) -> str:
    match action:
        case act.Commit():
            return "**Commit**: effects and progress"
        case act.Park(delay=delay, spent=spent):
            return f"**Park**: retrying letter, due in {show_duration(delay)}{'' if spent else ', no attempt spent'}"
        case act.Bury(reason=reason):
            return f"**Bury**: dead letter, `{reason}`"
        case act.Ignore():
            return "**Ignore**: progress only, counted"
        case act.Discard(reason, rule):
            return f"**Discard**: not kept although `{reason}`; counted and audited under `{rule}`"
        case act.Rerun(wait):
            return f"**Rerun**: {f'again in {show_duration(wait)}' if wait else 'again at once'}, no attempt spent"
        case act.Defer():
            return "**Defer**: nothing written, the attempt is given back"
        case act.Halt(reason):
            return f"**Halt**: nothing written; “{reason}”"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def main(arguments: Sequence[str]) -> int:
    """Write the page, or with --check compare it."""
    if "--check" in arguments:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()
        sys.stdout.write(f"{PAGE}: {'current' if current else 'not current; run scripts/draw_state_machines.py'}\n")
        return 0 if current else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
