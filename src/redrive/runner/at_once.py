"""Attempts that do not have to wait: made where the first one failed, in its transaction.

A transaction for each of them would cost more than the calls and find nothing changed. None is lost and none counted
twice: they are written with the event's fate, or the whole transaction is not, and the event is taken in anew.
"""

from __future__ import annotations

from collections.abc import Callable

from redrive.policy import action as act
from redrive.policy import outcome as out
from redrive.policy.action import Action
from redrive.runner.duty import Duty, Tried, Work
from redrive.runner.settle import decision
from redrive.store.port import StoreTx


def try_at_once(
    duty: Duty, work: Work, call: Callable[[Work], bool], late: Callable[[], bool], tx: StoreTx | None = None
) -> Action:
    """What is to be done about a failed event, after those of its attempts that do not have to wait.

    `call` undoes what it did if that fails, to a savepoint of its own or of this `tx`. When it is late, or the next
    attempt is not to count, that one is left to the letter.
    """
    action = decision(duty, work)
    if work.position in duty.ended:  # it ends the transaction, and with it whatever is in there
        return action
    if tx is not None and _is_due(work, action):
        tx.savepoint()
    else:
        tx = None
    while isinstance(action, act.Park) and _is_due(work, action) and not late():
        assert work.event is not None and work.outcome is not None
        tried = Tried(work.attempt, action, work.outcome)
        work.attempt, work.outcome = work.attempt + 1, None
        following = act.COMMIT if call(work) else decision(duty, work)
        if isinstance(following, act.UNWRITTEN):
            work.attempt, work.outcome = tried.attempt, tried.outcome
            break
        work.earlier, action = (*work.earlier, tried), following
    if tx is not None:
        tx.keep()
    return action


def _is_due(work: Work, action: Action) -> bool:
    """After a crash each attempt is made alone; and a verdict asks for some other time, however soon."""
    is_soon = isinstance(action, act.Park) and action.delay == 0.0
    return is_soon and isinstance(work.outcome, out.Failed) and not work.alone
