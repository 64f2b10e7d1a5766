"""A projection's turn in the transaction in which its log grows: one commit for a message and its effect.

Only a turn like nearly all: nothing is parked, was slow or has failed lately, nothing is emitted. Whatever turns out
otherwise is left to a transaction of its own, behind that of who lands. Nothing in memory changes before the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from redrive.context import Again, Escalate
from redrive.failpoints import hit
from redrive.runner.batch import Batch, Turn, batch_of
from redrive.runner.call import attempt_each
from redrive.runner.duty import JOINED_MAX
from redrive.runner.handed import Landed
from redrive.runner.project import Projector
from redrive.runner.settle import Settling
from redrive.runner.standing import Apart
from redrive.store.port import StoreTx


def join(projector: Projector, tx: StoreTx, landed: Landed) -> Callable[[], Turn] | None:
    """Take a turn with what lands in this transaction. What is to be called after the commit; None: nothing was done.

    Whatever it raises, nothing of the transaction may be committed.
    """
    batch = _batch(projector, landed) if _is_calm(projector) else None
    if batch is None:
        return None
    duty, caller = projector.duty, projector.caller
    hit("batch.read")
    started = duty.engine.env.clock.monotonic()
    settling = caller.settling = Settling(tx, duty, gathers=True)
    hit("batch.fenced")
    try:
        if settling.paused or settling.stale:
            return None
        _call(projector, tx, batch)
        hit("batch.called")
        caller.escalate_if_swallowed()
    except Escalate as error:  # what is emitted must be durable, and what lands need not be
        duty.durable, caller.is_escalating = True, False
        raise Apart from error
    except Again as error:  # who ended the transaction is found out where each is called by itself
        raise Apart from error
    finally:
        caller.settling = None  # nobody is called any more
    ran = len(batch.events)
    settling.commit_events(ran, batch.events[-1])
    settling.finish(batch.last, (event.position for event in batch.events))
    hit("batch.before_commit")
    return partial(projector.committed, settling, batch, Turn(), ran, started)


def _call(projector: Projector, tx: StoreTx, batch: Batch) -> None:
    """The function, for each of a few events: there is nothing to undo but everything."""
    caller, events = projector.caller, batch.events
    caller.begin()
    function, whole = tx.pipelined(caller.callee(tx)), range(len(events))
    ran, error = attempt_each(function, events, whole, caller.lent(tx), _never, len(events), _go)
    if error is not None:
        caller.unless_the_world(error)
        projector.tried[events[ran].id] = error
        raise Apart from error
    if tx.answers() is not None:
        raise Apart


def _is_calm(projector: Projector) -> bool:
    """Would a turn be as nearly all are?"""
    duty, subscription = projector.duty, projector.duty.subscription
    waits = duty.lanes or duty.lanes.next_due() is not None or duty.controls or duty.paused or duty.holds
    is_odd = duty.durable or duty.edits or duty.unsure or subscription.key_by or subscription.batch
    return not (waits or is_odd or projector.untold or projector.is_slow) and projector.pace.is_calm


def _batch(projector: Projector, landed: Landed) -> Batch | None:
    """All that has landed, if that is what comes next, and little."""
    duty, (above, events) = projector.duty, landed
    is_next = duty.log_id and above <= duty.window.position < events[0].position
    if not is_next or len(events) > JOINED_MAX:
        return None
    batch = batch_of(duty, events, full=False)
    return batch if batch.events else None


def _never() -> bool:
    """They are few: it is not late before they are over."""
    return False


def _go(good: int) -> bool:
    """One stride, without a savepoint."""
    return True
