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
        return attempt_rows(callee, stride, types, user, _never)

    done = 0
    while done < len(rows):
        ran, found = isolate(tx, function, rows[done : done + stride], run, look)
        done += ran
        if found is not None or late():
            return done, found
    return done, None


def isolate(
    tx: StoreTx,
    function: Function,
    things: Sequence[T],
    run: Callable[[Function, Sequence[T]], tuple[int, BaseException | None]],
    look: Callable[[BaseException], None],
) -> tuple[int, BaseException | None]:
    """Call a function for each, behind savepoints: how many stay, and what the next one raised.

    `look` sees each error before anything is undone, and may raise.
    """
    done, found = 0, None
    while done < len(things) and found is None:
        ran, found = _isolate(tx, function, things[done:], run, look)
        done += ran
    return done, found


def _isolate(
    tx: StoreTx,
    function: Function,
    things: Sequence[T],
    run: Callable[[Function, Sequence[T]], tuple[int, BaseException | None]],
    look: Callable[[BaseException], None],
) -> tuple[int, BaseException | None]:
    """The same, up to one whose statement failed and was answered late: that one runs again, and waits for answers."""
    suspects, found = things[:0], None
    tx.savepoint()
    while True:  # what succeeded once may fail the second time
        good, error = run(tx.pipelined(function), things)
        culprit = tx.answers()
        if culprit is not None:
            good, found, suspects = culprit, None, things[culprit : culprit + 1]
        elif error is not None:
            look(error)
            found, suspects = error, things[:0]
        else:
            break
        tx.undo()
        things = things[:good]
    tx.keep()
    if not suspects:
        return len(things), found
    tx.savepoint()
    good, found = run(tx.checked(function), suspects)
    if found is not None:
        look(found)
        tx.undo()
    tx.keep()
    return len(things) + good, found


def _never() -> bool:
    return False
