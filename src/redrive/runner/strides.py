"""Strides: events of a projection that share a savepoint, and how many of them should.

A savepoint costs as much as one call or two; a failure costs the calls before it in its stride, which are made again.
With one failure in n events the sum of both is least at about the square root of 3n. Where the store can take back a
single call, a failure costs nothing of the kind, and what follows goes on before the answers are known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import isqrt
from typing import Any, Generic, Protocol, TypeVar

from redrive.runner.call import Begin
from redrive.store.port import Function, StoreTx

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

STRIDE_MIN = 4  # fewer, and a savepoint around each event would be simpler
STRIDE_MAX = 32  # more saves next to nothing, and what a slow function does is not to be done again: bench/stride.py
WARY_AFTER_FAILURE = 100  # batches; where one event failed, others will


class Pace:
    """How long strides are, from how far apart failures were lately: those that made calls be made again."""

    __slots__ = ("_apart", "_held", "_since", "_wary")

    def __init__(self) -> None:
        self._apart = STRIDE_MAX**2
        self._since = 0  # events since the last failure
        self._wary = 0  # batches left to run in strides, because one failed lately
        self._held = 0  # batches left whose statements are held

    @property
    def stride(self) -> int:
        """Events to run behind one savepoint."""
        return max(STRIDE_MIN, min(STRIDE_MAX, isqrt(3 * max(self._apart, self._since))))

    def next_batch(self) -> bool:
        """A batch begins: may it be run without any savepoint?"""
        self._wary -= (wary := self._wary > 0)
        self._held -= self._held > 0
        return not wary

    @property
    def is_calm(self) -> bool:
        """Has nothing failed lately?"""
        return not (self._wary or self._held)

    @property
    def holds(self) -> bool:
        """Are statements held until their call has ended, because one failed lately?"""
        return self._held > 0

    def hold(self) -> None:
        """Where the store can do that: for a while a call that fails is to leave nothing behind."""
        self._held = WARY_AFTER_FAILURE

    def be_wary(self) -> None:
        """No batch without savepoints for a while."""
        self._wary, self._held = WARY_AFTER_FAILURE, 0

    def ran(self, count: int) -> None:
        """So many events went well."""
        self._since += count

    def failed(self) -> None:
        """One failed."""
        self._apart = (3 * self._apart + self._since) // 4  # one pair of neighbours is no pattern yet
        self._since = 0
        self.be_wary()


class Calls(Protocol[T_contra]):
    """Calls of a function for one thing after the other, and who hears how they end."""

    def run(
        self, function: Function, things: Sequence[T_contra], which: range, stride: int, begin: Begin
    ) -> tuple[int, BaseException | None, bool]:
        """How many of `which` went well, what the next one raised, and whether nothing is left of that call."""
        ...

    def look(self, error: BaseException) -> None:
        """See an error before anything is undone; may raise."""
        ...

    def fails(self, thing: T_contra, error: BaseException, function: Function) -> bool:
        """It failed, and nothing is left of it. May those behind it be called?"""
        ...

    def forget(self, thing: T_contra) -> None:
        """Whatever was heard of this one and those behind it: it did not come to that."""
        ...

    def is_late(self) -> bool:
        """Is it time to end?"""
        ...


class OneFailed(Exception):
    """One of many that ran without savepoints failed: which, and what it raised, if that is known."""


class Late(Exception):
    """The statement of an earlier call has failed: what was concluded since is void."""


def attempt_all(tx: StoreTx, function: Function, things: Sequence[Any], calls: Calls[Any]) -> int:
    """Optimism: no savepoint, which spares SQLite a copy of every page. The fate of how many is known.

    A failure that cannot be taken back is raised: all is to be run again.
    """
    section = _Section(tx, function, things, calls, savepoints=False)
    section.run(len(things))
    if tx.answers(late=section.is_clean) is not None:
        raise OneFailed
    if section.error is not None:
        calls.look(section.error)
        raise OneFailed(things[section.ran], section.error)
    return section.ran


def isolate(tx: StoreTx, function: Function, things: Sequence[T], pace: Pace, calls: Calls[T]) -> int:
    """Call a function for each, a savepoint before each stride, until it is late or one must not be passed.

    The fate of how many is known; what failed is undone.
    """
    done, goes_on = 0, True
    while goes_on and done < len(things) and not (done and calls.is_late()):
        rest = things[done:]
        section = _Section(tx, function, rest, calls)
        section.run(pace.stride)
        culprit, error = tx.answers(), section.error
        if culprit is not None:
            start, at, error = *section.place(culprit), None
            calls.forget(rest[at])
        elif error is not None:
            calls.look(error)
            start, at = section.start, section.ran
        else:
            pace.ran(section.ran)
            return done + section.ran
        pace.ran(at)
        pace.failed()
        tx.undo()
        again, found = _again(tx, function, rest[start:at], rest[at : at + 1], error, calls)
        done += start + again
        if found is not None:
            goes_on = calls.fails(things[done], found, tx.checked(function))
            done += 1
    return done


class _Section(Generic[T]):
    """Calls made in a row, stride after stride, without waiting for the answers."""

    def __init__(
        self, tx: StoreTx, function: Function, things: Sequence[T], calls: Calls[T], *, savepoints: bool = True
    ) -> None:
        self._tx, self._things, self._calls, self._savepoints = tx, things, calls, savepoints
        self._callee = tx.pipelined(function)
        self._points: list[tuple[int, int, bool]] = []  # calls made before, first thing behind, that one's retries
        self._is_open = False  # is there a savepoint?
        self.ran = 0
        self.error: BaseException | None = None  # of the next, which was not undone
        self.is_clean = True  # as far as is known, all went well

    @property
    def start(self) -> int:
        """The first thing of the last stride."""
        return self._points[-1][1]

    def place(self, call: int) -> tuple[int, int]:
        """The first thing behind the savepoint before a call, and the one that was called then."""
        made, start, retries = self._points[bisect_right(self._points, call, key=lambda point: point[0]) - 1]
        return start, start if retries else start + call - made

    def run(self, stride: int) -> None:
        """Until one fails that cannot be taken back, or must not be passed, or it is late."""
        calls, things, goes_on = self._calls, self._things, True
        while goes_on and self.ran < len(things) and not (self.ran and calls.is_late()):
            which = range(self.ran, len(things))
            good, error, undone = calls.run(self._callee, things, which, stride, self._begin)
            self.ran += good
            self.is_clean = self.is_clean and error is None
            if error is not None and not undone:
                self.error = error
                return
            self._keep()
            goes_on = error is None or self._fails(error)

    def _begin(self, good: int) -> bool:
        """A savepoint before the next stride, unless it is late."""
        if good and self._calls.is_late():
            return False
        self._keep()
        self._points.append((self._tx.calls, self.ran + good, False))
        if self._savepoints:
            self._tx.savepoint()
            self._is_open = True
        return True

    def _keep(self) -> None:
        if self._is_open:
            self._tx.keep()
            self._is_open = False

    def _fails(self, error: BaseException) -> bool:
        """One was taken back. May those behind it be called?"""
        self._calls.look(error)
        self._points.append((self._tx.calls, self.ran, True))
        try:
            goes_on = self._calls.fails(self._things[self.ran], error, self._callee)
        except Late:
            return False
        self.ran += 1
        return goes_on


def _again(
    tx: StoreTx,
    function: Function,
    before: Sequence[T],
    suspect: Sequence[T],
    found: BaseException | None,
    calls: Calls[T],
) -> tuple[int, BaseException | None]:
    """Those before the one that failed again; then that one, if what it `found` is not known, waiting for answers."""
    while before:  # what succeeded once may fail the second time
        good, error, _ = calls.run(tx.pipelined(function), before, range(len(before)), len(before), _go)
        culprit = tx.answers()
        if culprit is None and error is None:
            break
        if culprit is not None:
            good, error = culprit, None
        elif error is not None:
            calls.look(error)
        tx.undo()
        before, suspect, found = before[:good], before[good : good + 1], error
    tx.keep()
    if found is not None:
        return len(before), found
    tx.savepoint()
    good, found, _ = calls.run(tx.checked(function), suspect, range(1), 1, _go)
    if found is not None:
        calls.look(found)
        tx.undo()
    tx.keep()
    return len(before) + good, found


def _go(good: int) -> bool:
    """One stride, behind a savepoint of the caller's."""
    return True
