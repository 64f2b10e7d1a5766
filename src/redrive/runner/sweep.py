"""Sweeps: a projection's events called one after the other, and what is to be done about those that failed.

The fates are decided here and written by whoever swept, when it is known that everything before them went well.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

from redrive.context import Tx
from redrive.event import Event, from_row
from redrive.policy import action as act
from redrive.policy.action import Action
from redrive.runner.at_once import try_at_once
from redrive.runner.batch import Batch
from redrive.runner.call import Begin, attempt_each, attempt_rows, is_plain
from redrive.runner.caller import Caller
from redrive.runner.duty import Work
from redrive.store.port import Function, Holding, StoreTx
from redrive.store.sql import Row

T = TypeVar("T")

_POSITION = itemgetter(0)


class Sweep(Generic[T]):
    """Calls for one thing after the other, as strides want them."""

    def __init__(self, caller: Caller, tx: StoreTx, user: Tx, batch: Batch, is_late: Callable[[], bool]) -> None:
        self._caller, self._tx, self._user, self._batch, self.is_late = caller, tx, user, batch, is_late
        self.look = caller.unless_the_world
        self.failed: list[tuple[Work, Action]] = []  # in order

    def fails(self, thing: T, error: BaseException, function: Function) -> bool:
        """Decide, after the attempts that do not have to wait. Nobody passes one whose lane may have to queue."""
        caller, tx, user = self._caller, self._tx, self._user
        work = self._work(thing)
        work.outcome = caller.outcome(work, error)
        retry = lambda work: caller.retry(tx, user, work, function)  # noqa: E731
        action = try_at_once(caller.duty, work, retry, self.is_late, tx)
        self.failed.append((work, action))
        return caller.duty.subscription.order == "none" and not isinstance(action, act.UNWRITTEN)

    def forget(self, thing: T) -> None:
        """What was decided about this one and those behind it is void."""
        position = self._work(thing).position
        self.failed = [(work, action) for work, action in self.failed if work.position < position]

    @abstractmethod
    def _work(self, thing: T) -> Work: ...


class Rows(Sweep[Row]):
    """Rows of which none has to queue: an event is made when it is called."""

    def __init__(
        self,
        caller: Caller,
        tx: StoreTx,
        user: Tx,
        batch: Batch,
        is_late: Callable[[], bool],
        ends: Callable[[], bool],
    ) -> None:
        """`ends`: is it so late that a run ends in the middle?"""
        super().__init__(caller, tx, user, batch, is_late)
        self._ends = ends
        self._aside: list[tuple[Row, BaseException, Sequence[Any] | None]] = []
        # Where a statement is a round trip, attempts are made among the others, which nobody waits for.
        self._puts_aside = caller.duty.subscription.order == "none" and not tx.sql.is_far

    def run(
        self, function: Function, rows: Sequence[Row], which: range, stride: int, begin: Begin
    ) -> tuple[int, BaseException | None, bool]:
        """Call for each row."""
        found = None
        if known := [at for at in self._batch.failed if rows[which[0]][0] <= at <= rows[which[-1]][0]]:
            first = min(known)  # this attempt was made, and counts
            found = self._batch.failed[first]
            which = range(which.start, bisect_left(rows, first, key=_POSITION))
        self._caller.begin()
        types = self._caller.duty.engine.types
        good, error = attempt_rows(function, rows, which, types, self._user, self._ends, stride, begin)
        if error is None and good == len(which) and found is not None:
            return good, found, True
        return good, error, error is not None and self._tx.takes_back(error)

    def fails(self, row: Row, error: BaseException, function: Function) -> bool:
        """Nothing waits for it: what is to be done about it can wait for the others."""
        if self._puts_aside and is_plain(error):
            self._aside.append((row, error, None if self._tx.hold is None else self._tx.hold.put_off()))
            return True
        return super().fails(row, error, function)

    def forget(self, row: Row) -> None:
        """What was decided about this one and those behind it is void."""
        self._aside = [one for one in self._aside if one[0][0] < row[0]]
        super().forget(row)

    def end(self, is_late: Callable[[], bool], user: Tx) -> None:
        """Decide about those that were put aside, one after the other: code that ran a moment ago runs fast."""
        if self._aside:
            self.is_late, self._user = is_late, user
            function, hold = self._tx.checked(self._caller.callee(self._tx)), self._tx.hold
            held = user if hold is None else self._caller.user(hold)
            for row, error, asked in self._aside:
                if hold is None or asked is None:  # it has failed for sure
                    super().fails(row, error, function)
                else:
                    self._try_late(row, error, function, hold, held, asked)
            self.failed.sort(key=lambda failed: failed[0].position)

    def _try_late(
        self, row: Row, error: BaseException, function: Function, hold: Holding, held: Tx, asked: Sequence[Any]
    ) -> None:
        """Its first attempt is made now: in no order with the others, it raises what it raised among them.

        Unless a statement before that does not go well: then the function must hear of it, and may do something else.
        """
        caller, tx, user, work = self._caller, self._tx, self._user, self._work(row)
        goes_well = hold.goes_well(asked)

        def retry(work: Work) -> bool:
            if goes_well and caller.repeats(hold, held, work, asked):
                return False
            tx.savepoint()
            is_applied = caller.retry(tx, user, work, function)
            tx.keep()
            return is_applied

        if goes_well:
            work.outcome = caller.outcome(work, error)
        elif retry(work):
            self.failed.append((work, act.COMMIT))
            return
        self.failed.append((work, try_at_once(caller.duty, work, retry, self.is_late)))

    def _work(self, row: Row) -> Work:
        return self._caller.duty.work(from_row(row, self._caller.duty.engine.types))


class Events(Sweep[Event[Any]]):
    """Events that were made before, to see which have to queue."""

    _again = False

    def run(
        self, function: Function, events: Sequence[Event[Any]], which: range, stride: int, begin: Begin
    ) -> tuple[int, BaseException | None, bool]:
        """Call for each event."""
        if self._again:
            for at in which:  # the function must not see its own changes
                events[at].forget()
        self._again = True
        self._caller.begin()
        good, error = attempt_each(function, events, which, self._user, stride, begin)
        return good, error, error is not None and self._tx.takes_back(error)

    def _work(self, event: Event[Any]) -> Work:
        return self._batch.alone or self._caller.duty.work(event)
