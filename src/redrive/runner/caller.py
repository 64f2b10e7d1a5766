"""A projection's function: called, its outcome told, its emissions made and taken back. Runs where writing happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redrive.context import SAME_KEY, Ended, Escalate, Opened, Tx
from redrive.errors import StoreError, UsageError
from redrive.event import Event
from redrive.policy import outcome as out
from redrive.policy.outcome import Outcome
from redrive.runner.call import Done, attempt, describe, is_plain, outcome_of
from redrive.runner.duty import Duty, Work, check_edit
from redrive.runner.settle import Settling
from redrive.runner.strides import Late
from redrive.store.port import Function, Holding, StoreTx
from redrive.store.scheduled import take_back


class Caller:
    """Calls one subscription's function."""

    def __init__(self, duty: Duty) -> None:
        self.duty = duty
        self.reruns: dict[int, int] = {}  # by position: runs that ended by a conflict of versions
        self.settling: Settling | None = None  # what emissions belong to; None: no transaction of ours is open
        self.is_strict = False  # a commit was refused: which event broke the constraint is to be found
        self.is_escalating = False  # an emission asked for the durable connection
        self._emitted: Event[Any] | None = None  # the event of the last emission in this run, and its number
        self._ordinal = 0
        function, arguments = duty.subscription.function, duty.subscription.arguments
        self.function: Callable[..., Any] = Done(function if arguments == 2 else lambda event, tx: function(event))
        self._for_one: Function = self.function
        if duty.subscription.batch:
            self._for_one = lambda event, tx: self.function([event], tx)
        self.for_one: Function = self._for_one
        self.is_apart = False  # a list has ended the transaction: each is called by itself, until it is committed

    def begin(self) -> None:
        """Emissions are counted from here on."""
        self._emitted = None

    def callee(self, tx: StoreTx) -> Function:
        """The function for one event, as it is to be called now."""
        return tx.strict(self.for_one) if self.is_strict else self.for_one

    def learn_ended(self, ended: Ended) -> bool:
        """A call has ended the transaction, which begins again: that attempt is made, and counts. False: it was known.

        One of those that are made at once is left to the letter: it is made again, where it is the first.
        """
        subject, known = ended.subject, self.duty.ended
        if isinstance(subject, list):
            is_new, self.is_apart = not self.is_apart, True
            return is_new
        found = None if ended.is_retry else (ended.error, ended.trace)
        is_new = subject.position not in known or (known[subject.position] is None and found is not None)
        known[subject.position] = found
        self.for_one = self._recall
        return is_new

    def forget_ended(self) -> None:
        """It is committed, or something else is wrong."""
        self.duty.ended, self.for_one, self.is_apart = {}, self._for_one, False

    def _recall(self, event: Event[Any], tx: Tx) -> None:
        """What a call raised that ended the transaction; all others are made."""
        if (found := self.duty.ended.get(event.position)) is not None:
            error, trace = found
            raise error.with_traceback(trace)
        self._for_one(event, tx)

    def user(self, tx: Opened) -> Tx:
        """What the function is handed."""
        return Tx(tx, self._emit, self._cancel)

    def lent(self, tx: StoreTx) -> Tx:
        """The same, to calls that follow in this transaction: redrive's own tables are closed to them."""
        tx.points.begin()
        return self.user(tx)

    def call(self, tx: StoreTx, user: Tx, work: Work) -> bool:
        """One call, behind a savepoint of the caller's; its outcome is in the work."""
        check_edit(self.duty, work)
        if work.outcome is not None:
            return False  # no key, or its crashes are over
        assert work.event is not None
        user.event, self._emitted = work.event, None
        function = self.callee(tx)
        error = _attempt(tx.pipelined(function), work.event, user)
        if tx.answers() is not None:  # once more, so that the function hears of it where it happens
            tx.undo()
            self._emitted = None
            error = _attempt(tx.checked(function), work.event, user)
        work.outcome = out.APPLIED if error is None else self.outcome(work, error)
        return error is None

    def retry(self, tx: StoreTx, user: Tx, work: Work, function: Function) -> bool:
        """One more call among others, of a function that the store has prepared; nothing is left of one that fails."""
        assert work.event is not None
        user.event, self._emitted = work.event, None
        try:
            error = _attempt(function, work.event, user)
        except Ended as ended:
            ended.is_retry = True
            raise
        if error is None:
            work.outcome = out.APPLIED
            return True
        is_undone = tx.takes_back(error)
        if not is_undone and tx.answers() is not None:
            raise Late
        work.outcome = self.outcome(work, error)
        if not is_undone:
            tx.undo()
        return False

    def repeats(self, hold: Holding, held: Tx, work: Work, asked: Sequence[Any]) -> bool:
        """One more call, which asked for what would go well: does it raise once more, after the same? Its outcome then.

        Nothing of it is left, whatever it did.
        """
        assert work.event is not None
        held.event, self._emitted = work.event, None
        hold.begin(held, is_trial=True)
        error = _attempt(self.for_one, work.event, held)
        if not hold.has_repeated(asked) or error is None:
            return False
        work.outcome = self.outcome(work, error)
        return True

    def outcome(self, work: Work, error: BaseException) -> Outcome:
        """What an error means; what is nobody's fault here is raised."""
        engine = self.duty.engine
        limit = engine.settings.error_text_max
        outcome: Outcome
        if is_plain(error):
            self.unless_the_world(error)
            outcome = out.Failed(error, describe(error, limit))
        else:
            if isinstance(error, (SystemExit, KeyboardInterrupt)):
                engine.request_stop(f"{self.duty.subscription.name} raised {type(error).__name__}")
            self.unless_the_world(error)
            outcome = outcome_of(error, _never, reruns=self.reruns.get(work.position, 0), limit=limit)
        if self.duty.subscription.on_error is None:  # nobody will look at it again; it holds our frames, which hold it
            error.__traceback__ = None
        return outcome

    def unless_the_world(self, error: BaseException) -> None:
        """SQLite may have ended the transaction, savepoints and all: nothing of it can be kept."""
        if self.duty.engine.store.is_the_world(error):
            raise StoreError(f"{self.duty.subscription.name}: {error}") from error

    def escalate_if_swallowed(self) -> None:
        """A function that catches everything caught our own signal, too: its emission is still to be made."""
        if self.is_escalating:
            raise Escalate

    def _emit(self, event: Event[Any], log: Any, type: Any, data: Any, key: Any, **how: Any) -> str:
        duty, settling = self.duty, self._durably()
        if duty.subscription.batch and duty.share.partitions > 1:
            # Its id would come of the list it was made for, and after a rebuild lists are cut in other places.
            raise UsageError("emit in a batch=True projection needs partitions=1: else a rebuild would emit it again")
        if key is SAME_KEY and duty.subscription.batch:
            raise UsageError("emit in a batch=True projection needs key=: a list of events has no key of its own")
        chosen = duty.work(event).key if key is SAME_KEY else key
        self._ordinal = self._ordinal + 1 if self._emitted is event else 0
        self._emitted = event
        emission = duty.emitter.make(event, self._ordinal, log, type, data, key=chosen, **how)
        settling.emit(event, emission)
        return emission.event.id

    def _cancel(self, event: Event[Any], log: Any, id: str) -> bool:
        name, settling = self.duty.emitter.named(log, "cancel"), self._durably()
        return take_back(settling.tx, name, id, quiet=settling.is_quiet(event))

    def _durably(self) -> Settling:
        """What others may see is synced: if this transaction is not, the function runs again in one that is."""
        if self.settling is None:
            raise UsageError("this tx is over: emit and cancel belong to the call that was handed it")
        if not self.duty.durable:
            self.is_escalating = True
            raise Escalate
        return self.settling


def _attempt(function: Function, event: Event[Any], user: Tx) -> BaseException | None:
    """One that is called again must not see its own changes: nor when the whole transaction runs again."""
    event.forget()  # what others have changed
    try:
        return attempt(function, event, user)
    finally:
        event.forget()


def _never(_: BaseException) -> bool:
    return False
