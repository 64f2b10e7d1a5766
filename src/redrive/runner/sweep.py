"""Sweeps: a projection's events called one after the other, and what is to be done about those that failed.

The fates are decided here and written by whoever swept, when it is known that everything before them went well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from redrive.context import Tx
from redrive.event import Event
from redrive.policy import action as act
from redrive.policy.action import Action
from redrive.runner.at_once import try_at_once
from redrive.runner.batch import Batch
from redrive.runner.call import Begin, Passes, attempt_each, is_plain
from redrive.runner.caller import Caller
from redrive.runner.duty import Work
from redrive.store.port import Function, Holding, StoreTx

_POSITION = attrgetter("position")


class Sweep:
    """Calls for one event after the other, as strides want them."""

    def __init__(self, caller: Caller, tx: StoreTx, user: Tx, batch: Batch, is_late: Callable[[], bool]) -> None:
        self._caller, self._tx, self._user, self._batch, self.is_late = caller, tx, user, batch, is_late
        self._ends: Callable[[], bool] = _never  # is it so late that a run ends in the middle?
        self.look = caller.unless_the_world
        self.failed: list[tuple[Work, Action]] = []  # in order

    def run(
        self, function: Function, events: Sequence[Event[Any]], which: range, stride: int, begin: Begin
    ) -> tuple[int, BaseException | None, bool]:
        """Call for each event."""
        self._caller.begin()
        user, passes = self._user, self._passes()
        good, error = attempt_each(function, events, which, user, self._ends, stride, begin, passes)
        return good, error, error is not None and self._is_undone(error)

    def _passes(self) -> Passes | None:
        """Who hears of those that failed, and may have it go on. Not kept: it holds us, and we hold the batch."""
        return None

    def _is_undone(self, error: BaseException) -> bool:
        return self._tx.takes_back(error)

    def fails(self, event: Event[Any], error: BaseException, function: Function) -> bool:
        """Decide, after the attempts that do not have to wait. Nobody passes one whose lane may have to queue."""
        caller, tx, user = self._caller, self._tx, self._user
        work = self._batch.alone or caller.duty.work(event)
        work.outcome = caller.outcome(work, error)
        retry = lambda work: caller.retry(tx, user, work, function)  # noqa: E731
        action = try_at_once(caller.duty, work, retry, self.is_late, tx)
        self.failed.append((work, action))
        return caller.duty.subscription.order == "none" and not isinstance(action, act.UNWRITTEN)

    def forget(self, event: Event[Any]) -> None:
        """What was decided about this one and those behind it is void."""
        self.failed = [(work, action) for work, action in self.failed if work.position < event.position]


class Flow(Sweep):
    """Events of which none has to queue."""

    def __init__(
        self,
        caller: Caller,
        tx: StoreTx,
        user: Tx,
        batch: Batch,
        is_late: Callable[[], bool],
        ends: Callable[[], bool] | None,
    ) -> None:
        """`ends`: is it so late that a run ends in the middle? None: a stride never does."""
        super().__init__(caller, tx, user, batch, is_late)
        self._ends = ends or _never
        self._aside: list[tuple[Event[Any], BaseException, Sequence[Any] | None]] = []
        # Where a statement is a round trip, attempts are made among the others, which nobody waits for.
        self._puts_aside = caller.duty.subscription.order == "none" and not tx.sql.is_far
        self._stays: BaseException | None = None  # of a call of which something is left

    def run(
        self, function: Function, events: Sequence[Event[Any]], which: range, stride: int, begin: Begin
    ) -> tuple[int, BaseException | None, bool]:
        """Call for each event, but for one whose attempt was made."""
        found, known = None, self._batch.failed
        if known and (among := [at for at in known if events[which[0]].position <= at <= events[which[-1]].position]):
            first = min(among)  # it counts
            found = self._batch.found(first)
            which = range(which.start, bisect_left(events, first, key=_POSITION))
        good, error, is_undone = super().run(function, events, which, stride, begin)
        if error is None and good == len(which) and found is not None:
            return good, found, True
        return good, error, is_undone

    def _passes(self) -> Passes | None:
        return self._put_aside if self._puts_aside else None

    def _put_aside(self, event: Event[Any], error: BaseException) -> bool:
        """Nothing waits for it: what is to be done about it can wait for the others. False: not of this one."""
        if not is_plain(error):
            return False
        self.look(error)
        if not self._tx.takes_back(error):
            self._stays = error
            return False
        self._aside.append((event, error, None if self._tx.hold is None else self._tx.hold.put_off()))
        return True

    def _is_undone(self, error: BaseException) -> bool:
        return error is not self._stays and super()._is_undone(error)

    def fails(self, event: Event[Any], error: BaseException, function: Function) -> bool:
        """The same of one whose attempt was made before."""
        if self._puts_aside and is_plain(error):
            self._aside.append((event, error, None))
            return True
        return super().fails(event, error, function)

    def end(self, is_late: Callable[[], bool], user: Tx) -> None:
        """Decide about those that were put aside, one after the other: code that ran a moment ago runs fast."""
        if self._aside:
            self.is_late, self._user = is_late, user
            function, hold = self._tx.checked(self._caller.callee(self._tx)), self._tx.hold
            held = user if hold is None else self._caller.user(hold)
            for event, error, asked in self._aside:
                if hold is None or asked is None:  # it has failed for sure
                    super().fails(event, error, function)
                else:
                    self._try_late(event, error, function, hold, held, asked)
            self.failed.sort(key=lambda failed: failed[0].position)

    def _try_late(
        self, event: Event[Any], error: BaseException, function: Function, hold: Holding, held: Tx, asked: Sequence[Any]
    ) -> None:
        """Its first attempt is made now: in no order with the others, it raises what it raised among them.

        Unless a statement before that does not go well: then the function must hear of it, and may do something else.
        """
        caller, tx, user = self._caller, self._tx, self._user
        work = caller.duty.work(event)
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


def _never() -> bool:
    """A stride is not ended in the middle."""
    return False
