"""Strides: events of a projection that share a savepoint, and how many of them should.

A savepoint costs as much as one call or two; a failure costs the calls before it in its stride, which are made again.
With one failure in n events the sum of both is least at about the square root of 3n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

from redrive.context import Tx
from redrive.runner.call import attempt_rows
from redrive.store.port import StoreTx
from redrive.store.sql import Row
from redrive.types import EventTypes

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
    function: Callable[..., Any],
    rows: Sequence[Row],
    types: EventTypes,
    tx: StoreTx,
    user: Tx,
    stride: int,
    late: Callable[[], bool],
    look: Callable[[BaseException], None],
) -> tuple[int, BaseException | None]:
    """Stride after stride until one event raises or it is late: how many rows stay, and what the next one raised.

    `look` sees each error before anything is undone, and may raise.
    """
    done = 0
    while done < len(rows):
        run = rows[done : done + stride]
        tx.savepoint()
        good, error = attempt_rows(function, run, types, user, _never)
        found = error
        while error is not None:  # what succeeded once may fail the second time
            look(error)
            tx.undo()
            run, found = run[:good], error
            good, error = attempt_rows(function, run, types, user, _never)
        tx.keep()
        done += len(run)
        if found is not None or late():
            return done, found
    return done, None


def _never() -> bool:
    return False
