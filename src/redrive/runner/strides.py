"""Strides: events of a projection that share a savepoint, and how many of them should.

A savepoint costs as much as one call or two; a failure costs the calls before it in its stride, which are made again.
With one failure in n events the sum of both is least at about the square root of 3n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import TypeVar

from redrive.context import Tx
from redrive.runner.call import attempt_rows
from redrive.store.port import Function, StoreTx
from redrive.store.sql import Row
from redrive.types import EventTypes

T = TypeVar("T")
Run = Callable[
    [Function, Sequence[T]], tuple[int, BaseException | None]
]  # how many went well, what the next one raised

STRIDE_MIN = 4  # fewer, and a savepoint around each event would be simpler
STRIDE_MAX = 32  # more saves next to nothing, and what a slow function does is not to be done again: bench/stride.py


class Pace:
    """How long strides are, from how far apart failures were lately."""

    __slots__ = ("_apart", "_since")

    def __init__(self) -> None:
        self._apart = STRIDE_MAX**2
        self._since = 0  # events since the last failure

    @property
    def stride(self) -> int:
        """Events to run behind one savepoint."""
        return max(STRIDE_MIN, min(STRIDE_MAX, isqrt(3 * max(self._apart, self._since))))

    def ran(self, count: int) -> None:
        """So many events went well."""
        self._since += count

    def failed(self) -> None:
        """One failed."""
        self._apart = (3 * self._apart + self._since) // 4  # one pair of neighbours is no pattern yet
        self._since = 0


def attempt_strides(
    function: Function,
    rows: Sequence[Row],
    types: EventTypes,
    tx: StoreTx,
    user: Tx,
    stride: int,
    late: Callable[[], bool],
    look: Callable[[BaseException], None],
) -> tuple[int, BaseException | None]:
    """Stride after stride until one event raises or it is late: how many rows stay, and what the next one raised."""

    def run(callee: Function, stride: Sequence[Row]) -> tuple[int, BaseException | None]:
        return attempt_rows(callee, stride, types, user, never)

    return isolate(tx, function, rows, stride, run, look, late)


def isolate(
    tx: StoreTx,
    function: Function,
    things: Sequence[T],
    stride: int,
    run: Run[T],
    look: Callable[[BaseException], None],
    late: Callable[[], bool],
) -> tuple[int, BaseException | None]:
    """Call a function for each, a savepoint before each stride: how many stay, and what the next one raised.

    `look` sees each error before anything is undone, and may raise.
    """
    done, found = 0, None
    while done < len(things) and found is None and not (done and late()):
        rest = things[done:]
        ran, error, culprit = _attempt(tx, function, rest, stride, run, late)
        if culprit is not None:
            ran, error = culprit, None
        elif error is not None:
            look(error)
        else:
            return done + ran, None
        start = ran - ran % stride  # what was done in the strides before stays
        tx.undo()
        again, found = _again(tx, function, rest[start:ran], rest[ran : ran + 1], error, run, look)
        done += start + again
    return done, found


def _attempt(
    tx: StoreTx, function: Function, things: Sequence[T], stride: int, run: Run[T], late: Callable[[], bool]
) -> tuple[int, BaseException | None, int | None]:
    """How many went well, what the next one raised, and which one's statement failed, if any did.

    If one failed, it lies behind the last savepoint: nothing that followed its statement was done.
    """
    callee, done, error = tx.pipelined(function), 0, None
    while done < len(things) and error is None and not (done and late()):
        tx.savepoint()
        good, error = run(callee, things[done : done + stride])
        done += good
        if error is None:
            tx.keep()
    return done, error, tx.answers()


def _again(
    tx: StoreTx,
    function: Function,
    before: Sequence[T],
    suspect: Sequence[T],
    found: BaseException | None,
    run: Run[T],
    look: Callable[[BaseException], None],
) -> tuple[int, BaseException | None]:
    """Those before the one that failed again; then that one, if what it `found` is not known, waiting for answers."""
    while before:  # what succeeded once may fail the second time
        good, error = run(tx.pipelined(function), before)
        culprit = tx.answers()
        if culprit is None and error is None:
            break
        if culprit is not None:
            good, error = culprit, None
        elif error is not None:
            look(error)
        tx.undo()
        before, suspect, found = before[:good], before[good : good + 1], error
    tx.keep()
    if found is not None:
        return len(before), found
    tx.savepoint()
    good, found = run(tx.checked(function), suspect)
    if found is not None:
        look(found)
        tx.undo()
    tx.keep()
    return len(before) + good, found


def never() -> bool:
    """It is not late."""
    return False
