"""A projection's transaction that has to begin again, because it was learnt in the middle how it has to be made.

A constraint that is checked at the end was broken; an emission wants a durable connection; a call has ended the
transaction. Functions touch nothing but the transaction, so nothing is left of the former one, and what is known by
now is done otherwise. Each time something is learnt, so that it ends.
"""

from __future__ import annotations

from collections.abc import Callable

from redrive.context import Again, Ended, Escalate
from redrive.errors import CommitRefused, StoreError, TransactionEnded
from redrive.runner.alone import AGAIN_SECONDS, NotAlone
from redrive.runner.batch import Batch, Turn
from redrive.runner.caller import Caller
from redrive.runner.open_letters import FarBehind
from redrive.runner.strides import Pace


def run_with_care(caller: Caller, pace: Pace, run: Callable[[], None], turn: Turn, batch: Batch | None = None) -> None:
    """One of many broke a constraint that is checked at the end: once more, looking after each of them.

    Operators changed very many letters: read these without the write lock, and come back.
    """
    try:
        _run(caller, run, turn, batch)
        return
    except NotAlone:
        turn.rerun_after = AGAIN_SECONDS
        return
    except FarBehind:
        caller.settling = None
        with caller.duty.engine.store.reading() as tx:
            caller.duty.refresh(tx)
        turn.forget()
        turn.more = True
        return
    except CommitRefused:
        caller.is_strict = True
        pace.be_wary()
    turn.forget()
    try:
        _run(caller, run, turn, batch)
    finally:
        caller.is_strict = False


def _run(caller: Caller, run: Callable[[], None], turn: Turn, batch: Batch | None) -> None:
    try:
        run()
        return
    except (Again, TransactionEnded) as error:
        reason: BaseException | None = error
    try:
        # Out here: what a function raises now must not seem to be caused by our own signal.
        while reason is not None:
            _learn(caller, reason, batch)
            turn.forget()
            reason = _attempt(run)
    finally:
        caller.forget_ended()


def _attempt(run: Callable[[], None]) -> BaseException | None:
    try:
        run()
    except (Again, TransactionEnded) as error:
        return error
    return None


def _learn(caller: Caller, reason: BaseException, batch: Batch | None) -> None:
    if isinstance(reason, Escalate):  # durably, and so from now on
        caller.duty.durable, caller.is_escalating = True, False
    if not isinstance(reason, Ended):  # else the store has learnt that it has to look who it is
        return
    if not caller.learn_ended(reason):
        raise StoreError(f"{caller.duty.subscription.name}: {reason.error}") from reason.error
    if batch is not None and caller.duty.ended:
        batch.cut(max(caller.duty.ended))
