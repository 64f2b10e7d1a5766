"""Breakers as an operator sees them: how each stands, and opening or closing one by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from redrive.errors import EventError, UsageError
from redrive.event import check_key
from redrive.policy.breaker import PRISTINE, Breaker, State, forced_closed, forced_open
from redrive.replay.deed import Operator, need_reason

SHOWN_MAX = 20  # names in an error; with one for each key there may be thousands


@dataclass(frozen=True, slots=True)
class BreakerStatus:
    """One breaker at one moment. Times are seconds since 1970; `until` is None where only a person ends it."""

    name: str
    state: str
    failures: int
    successes: int
    since: float | None
    until: float | None
    by_hand: bool
    probes: int  # under way in all workers


class BreakerDesk:
    """All breakers of one store."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def list(self) -> list[BreakerStatus]:
        """How every breaker stands, by name."""
        with self._operator.store.reading() as tx:
            now = self._operator.now()
            return [
                _status(name, one, 0 if one.state is State.CLOSED else tx.guards.probes(name, now))
                for name, one in tx.guards.breakers().items()
            ]

    def open(self, name: str, reason: str) -> bool:
        """Call the dependency no more until `close`; False if somebody had opened it by hand already."""
        now = self._operator.now()
        return self._force("open", name, reason, lambda breaker: forced_open(breaker, now), math.isinf)

    def close(self, name: str, reason: str) -> bool:
        """Let everything through again, and count from nought; False if it was closed already."""
        return self._force("close", name, reason, forced_closed, lambda until: until == 0)

    def _force(
        self, action: str, name: str, reason: str, change: Callable[[Breaker], Breaker], is_so: Callable[[float], bool]
    ) -> bool:
        need_reason(f"breaker {action}", reason)
        with self._operator.transaction() as tx:
            known = tx.guards.breakers()
            if name not in known:
                _check_key(name, known)
            before = tx.guards.lock(name)
            after = change(before)
            if before.state is after.state and is_so(before.until):
                after = before
            tx.guards.save(name, after)
            if after == PRISTINE and _names_of(name, known):  # a key's: one that is closed and clean has no row
                tx.guards.forget(name, after)
            if after == before:
                return False
            details = {"was": str(before.state), "failures": before.failures}
            self._operator.audit(tx, f"breaker {action}", "", f"breaker {name}", reason, details)
        self._operator.tell(f"breaker {action}", "", f"breaker {name}")
        return True


def _names_of(name: str, known: Iterable[str]) -> list[str]:
    """The names, of those that keys have breakers under, that this one may belong to."""
    return [one for one in known if one.endswith("/") and name.startswith(one) and name != one]


def _check_key(name: str, known: Iterable[str]) -> None:
    """A key whose breaker is closed and clean has no row, and may have one opened."""
    names = _names_of(name, known)
    if not names:
        some = ", ".join(itertools.islice(known, SHOWN_MAX))
        raise UsageError(f"there is no breaker {name!r}; there are: {some or 'none'}")
    try:
        check_key(name[len(names[-1]) :])
    except EventError as error:
        raise UsageError(f"there is no breaker {name!r}: {error}") from None


def _status(name: str, breaker: Breaker, probes: int) -> BreakerStatus:
    by_hand = math.isinf(breaker.until)
    until = breaker.until if breaker.state == "open" and not by_hand else None
    return BreakerStatus(
        name, str(breaker.state), breaker.failures, breaker.successes, breaker.since or None, until, by_hand, probes
    )
