"""The one decision of the engine: an outcome becomes an action.

Pure: `now` and `dice` come from the caller. It must never lose an event (every branch ends in an
action that keeps or names it) and must never charge an event for what is not its fault (a
stop, a store that is down, a conflict that a re-run can cure).
"""

from __future__ import annotations

from typing import assert_never

from msgspec import Struct, field

from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.action import Action
from redrive.policy.fingerprint import fingerprint
from redrive.policy.outcome import NO_FAILURE, Failure, Outcome
from redrive.policy.retry import Conflicts, Retry
from redrive.policy.rules import Candidate, Drop, Rules


class Policy(Struct, frozen=True):
    """All that a subscription says about failure."""

    retry: tuple[Retry, ...] = (Retry(),)
    conflicts: Conflicts = field(default_factory=Conflicts)
    letters: Rules = field(default_factory=Rules)
    crash_charges_max: int = 3  # one death may be the deploy, two a coincidence; the third time it is the event


class Call(Struct, frozen=True, gc=False):
    """The circumstances of one call, so that the branches below read as sentences."""

    attempt: int  # the number of this attempt; the first is 1
    policy: Policy
    now: float
    dice: float
    event_type: str
    replay: bool
    letter: object
    shut_for: float | None


def decide(
    outcome: Outcome,
    *,
    attempt: int,
    policy: Policy,
    now: float,
    dice: float,
    event_type: str,
    replay: bool = False,
    letterlike: object = None,
    shut_for: float | None = None,
) -> Action:
    """What to do about an event, given what came of its attempt number `attempt`.

    >>> decide(out.Applied(), attempt=1, policy=Policy(), now=0.0, dice=0.5, event_type="order.placed")
    Commit()

    `replay` means: this one attempt and then dead again, whatever the rules would allow. `shut_for`: what failed has
    left the breaker of its key open for so many seconds. There the breaker says when to come back, and pays for it.
    """
    return decided(outcome, Call(attempt, policy, now, dice, event_type, replay, letterlike, shut_for))


def decided(outcome: Outcome, call: Call) -> Action:
    """The same for circumstances that are one value already: a burst of failures asks for many decisions."""
    if isinstance(outcome, out.Applied):
        return act.COMMIT
    if isinstance(outcome, out.Failed):  # of what remains, nearly always
        return _after_error(outcome.error, outcome.failure, call)
    match outcome:
        case out.Ignored(reason):
            return act.Ignore(reason)
        case out.Rejected(failure):
            return _bury(act.REJECTED, failure, call)
        case out.Unreadable(failure, reason):
            return _bury(reason, failure, call)
        case out.Unkeyed(failure):
            return _bury(act.BAD_KEY, failure, call)
        case out.Postponed(failure, after):
            return _try_again(_rule_for_type(call), failure, call, after)
        case out.Conflicted(_, _, reruns) if reruns < call.policy.conflicts.times:
            return act.Rerun(call.policy.conflicts.delay(reruns))
        case out.Conflicted(error, failure):
            return _after_error(error, failure, call)
        case out.Crashed(charges) if charges < call.policy.crash_charges_max:
            return act.Rerun(0.0)
        case out.Crashed(charges, lost) if lost == charges:
            return _bury(act.CRASHED_CONNECTION, _lost(lost), call)
        case out.Crashed(charges, lost):
            return _bury(act.CRASHED_WORKER, _died(charges - lost, lost), call)
        case out.Blocked(reason, failure):
            return _bury(reason, failure, call)
        case out.Held(reason, seconds):
            return act.Park(call.now + seconds, seconds, NO_FAILURE, reason, spent=False)
        case out.Stopped():
            return act.DEFER
        case out.StoreDown(error):
            return act.Halt(_why(error))
    assert_never(outcome)


def _after_error(error: BaseException, failure: Failure, call: Call) -> Action:
    """The first rule that speaks about the error decides; if none does, trying again is pointless."""
    for rule in call.policy.retry:
        if not rule.covers(call.event_type):
            continue
        if rule.never and rule.forbids(error):  # asked before `allows`: never beats on
            break
        if rule.allows(error):
            return _try_again(rule, failure, call)
    return _bury(act.PERMANENT, failure, call)


def _rule_for_type(call: Call) -> Retry:
    """Whose attempts a `RetryLater` spends: the first rule for this type of event, whatever errors it names.

    The verdict has said that trying again is worth it; a rule only says how often. With no rule for the
    type the default one bounds it, so that no event postpones itself for ever.
    """
    return next((rule for rule in call.policy.retry if rule.covers(call.event_type)), Retry())


def _try_again(rule: Retry, failure: Failure, call: Call, after: float | None = None) -> Action:
    if call.shut_for is not None and not call.replay:
        pause = max(call.shut_for, after or 0.0)  # who said when to come back is not asked earlier
        return act.Park(call.now + pause, pause, failure, spent=False)
    if call.replay or call.attempt >= rule.attempts:
        return _bury(act.ATTEMPTS_EXHAUSTED, failure, call)
    # The function knows better than the rule when to come back: its time is taken as it is.
    delay = rule.delay(call.attempt, call.dice) if after is None else max(0.0, after)
    return act.Park(call.now + delay, delay, failure)


def _bury(reason: str, failure: Failure, call: Call) -> Action:
    if call.replay or not call.policy.letters:
        # No rules: all are kept. Or somebody chose to keep this letter and holds it in hand: a discard rule written for
        # fresh failures must not take it away because one replay failed.
        return act.Bury(reason, failure)
    letter = call.letter
    if isinstance(letter, Candidate):
        letter = letter.buried_for(reason, failure, call.attempt)
    match call.policy.letters.judge(call.event_type, letter):
        case Drop(rule):
            return act.Discard(reason, rule, failure)
        case kept:
            return act.Bury(reason, failure, kept.broken_rule)


def _died(deaths: int, lost: int) -> Failure:
    also = f", and lost its connection {lost} times," if lost else ""
    message = (
        f"the process died {deaths} times{also} while this event ran alone; look for os._exit, a segfault or the OOM "
        "killer"
    )
    return Failure("WorkerDied", message, "", fingerprint("WorkerDied", [], message))


def _lost(times: int) -> Failure:
    message = (
        f"the connection to the store was lost {times} times while this event ran alone; look for "
        "pg_terminate_backend, a crash of the server, or a function that takes longer than "
        "idle_in_transaction_session_timeout or transaction_timeout"
    )
    return Failure("ConnectionLost", message, "", fingerprint("ConnectionLost", [], message))


def _why(error: BaseException) -> str:
    """The kind of error and its text, read as data: an exception's own `__str__` may raise."""
    kind = type(error).__name__
    match error.args:
        case (str() as text, *_) if text:
            return f"the store cannot be written ({kind}: {text})"
        case _:
            return f"the store cannot be written ({kind})"
