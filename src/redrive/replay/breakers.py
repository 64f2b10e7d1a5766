"""Breakers as an operator sees them: how each stands, and opening or closing one by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from redrive.errors import UsageError
from redrive.policy.breaker import Breaker, forced_closed, forced_open
from redrive.replay.deed import Operator, need_reason


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
            return [_status(name, one, tx.guards.probes(name, now)) for name, one in tx.guards.breakers().items()]

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
        with self._operator.store.transaction() as tx:
            known = tx.guards.breakers()
            if name not in known:
                raise UsageError(f"there is no breaker {name!r}; there are: {', '.join(known) or 'none'}")
            before = tx.guards.lock(name)
            after = change(before)
            if before.state is after.state and is_so(before.until):
                return False
            tx.guards.save(name, after)
            details = {"was": str(before.state), "failures": before.failures}
            self._operator.audit(tx, f"breaker {action}", "", f"breaker {name}", reason, details)
        self._operator.tell(f"breaker {action}", "", f"breaker {name}")
        return True


def _status(name: str, breaker: Breaker, probes: int) -> BreakerStatus:
    by_hand = math.isinf(breaker.until)
    until = breaker.until if breaker.state == "open" and not by_hand else None
    return BreakerStatus(
        name, str(breaker.state), breaker.failures, breaker.successes, breaker.since or None, until, by_hand, probes
    )
