"""What is to be done about an event: what `decide` returns and `settle` performs.

Each action is one transaction, or deliberately none (`Rerun`, `Defer`, `Halt` write nothing
about the event). There is no action that drops an event without a trace: `Discard` names the
rule that asked for it, so that it can be counted and audited.
"""

from __future__ import annotations

from msgspec import Struct

from redrive.policy.outcome import Failure

# Why a letter exists. Stored, shown and filtered by: these words are part of the format.
FAILING = "failing"  # an attempt failed and there are more to come
REJECTED = "rejected"  # the function raised Reject
UNDECODABLE = "undecodable"  # the bytes do not fit the type
BAD_KEY = "bad_key"  # no usable key, so a lane of its own
ATTEMPTS_EXHAUSTED = "attempts_exhausted"  # every attempt the rule allowed has failed
PERMANENT = "permanent"  # an error that trying again cannot cure
CRASHED_WORKER = "crashed_worker"  # the process died with it, alone, too often
CRASHED_CONNECTION = "crashed_connection"  # the connection to the store was lost with it, alone, too often
BREAKER_OPEN = "breaker_open"  # not called: its dependency is not well; dead with `when_open="bury"`
RATE_LIMITED = "rate_limited"  # not called yet: its key had reached the limit
RETRY_LIMITED = "retry_limited"  # not tried again: the retry budget was spent, and `retry_budget_over = "bury"`
ID_COLLISION = "id_collision"  # a broker gave two different messages under one id
LOST_AT_SOURCE = "lost_at_source"  # a broker deleted it before it was read
HELD = "held"  # not called: an operator holds its key
BEHIND_HEAD = "behind_head"  # waits for an earlier letter of its lane; nothing is wrong with it

REASONS = (
    FAILING, REJECTED, UNDECODABLE, BAD_KEY, ATTEMPTS_EXHAUSTED, PERMANENT, CRASHED_WORKER, CRASHED_CONNECTION,
    BREAKER_OPEN, RATE_LIMITED, RETRY_LIMITED, ID_COLLISION, LOST_AT_SOURCE, HELD, BEHIND_HEAD,
)  # fmt: skip


class Commit(Struct, frozen=True):
    """Apply the effects and move the progress."""


class Park(Struct, frozen=True, gc=False):
    """Make it a retrying letter. The delay is kept beside the due time so that a clock set back can be repaired."""

    due_at: float
    delay: float
    failure: Failure
    reason: str = FAILING
    spent: bool = True  # did it cost an attempt? Not if it was not called, or if its key's breaker takes the blame


class Bury(Struct, frozen=True, gc=False):
    """Make it a dead letter."""

    reason: str
    failure: Failure
    broken_rule: str = ""  # a keep or discard rule that could not answer, so the letter was kept; worth a signal


class Ignore(Struct, frozen=True):
    """Move the progress, drop the effects, count it as ignored."""

    reason: str


class Discard(Struct, frozen=True):
    """It would have been buried for `reason`, but `rule` says that nobody wants such letters."""

    reason: str
    rule: str
    failure: Failure


class Rerun(Struct, frozen=True):
    """Roll back, wait, and call again on fresh state; no attempt is spent."""

    wait: float


class Defer(Struct, frozen=True):
    """Write nothing: the attempt is given back and the event runs again some other time."""


class Halt(Struct, frozen=True):
    """Write nothing and stop this subscription until the store can be written again."""

    reason: str


Action = Commit | Park | Bury | Ignore | Discard | Rerun | Defer | Halt

UNWRITTEN = (Rerun, Defer, Halt)  # what writes nothing about the event: it will run again

COMMIT = Commit()
DEFER = Defer()
