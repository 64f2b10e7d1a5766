"""Connections that are lost while functions or their statements run: counted per subscription, as deaths are.

`policy/losses.py` says what a loss means. The first one is remembered here, in memory; after the second one with the
same events these run alone, behind a mark; a loss while alone is charged in the transaction that takes the lease again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redrive.errors import ConnectionLost, StoreError, Unreachable
from redrive.policy.losses import Loss, Verdict, verdict

if TYPE_CHECKING:
    from redrive.policy.lanes import Head
    from redrive.runner.duty import Duty
    from redrive.store.port import StoreTx

log = logging.getLogger("redrive")


@dataclass(slots=True)
class Losses:
    """What one process remembers of them, by member."""

    unjudged: dict[int, Loss] = field(default_factory=dict)  # until the lease is taken again
    remembered: dict[int, Loss] = field(default_factory=dict)
    suspected: dict[int, frozenset[int]] = field(default_factory=dict)  # positions of events that are to run alone

    def note(self, member: int, error: StoreError) -> None:
        """A loop has ended with this error, or its lease could not be taken again."""
        if isinstance(error, ConnectionLost):
            self.unjudged[member] = Loss(error.code, error.server, error.positions, error.alone)
        elif isinstance(error, Unreachable):  # the server or the network is down: no event has to do with it
            self.unjudged.pop(member, None)

    def has(self, member: int) -> bool:
        """Has a connection been lost that an event of this subscription may have ended?"""
        return member in self.remembered

    def judge(self, member: int, server: float | None) -> Verdict:
        """Return what the last loss means; `server`: when the server was started that answers now."""
        loss, former = self.unjudged.get(member), self.remembered.get(member)
        if loss is None:
            return Verdict.EXCUSE
        found = verdict(loss, former, server)
        if found == Verdict.ISOLATE and former is not None:
            self.suspected[member] = loss.positions & former.positions
            log.warning(
                "the connection to the store was lost twice with the same events; they run alone from here on"
                " (positions %d to %d)", min(self.suspected[member]), max(self.suspected[member])
            )  # fmt: skip
        return found

    def judged(self, member: int, found: Verdict) -> None:
        """The judgement is committed."""
        loss = self.unjudged.pop(member, None)
        if loss is not None and found in (Verdict.REMEMBER, Verdict.ISOLATE):
            self.remembered[member] = loss

    def horizon(self, member: int, progress: int) -> int:
        """Return the last position that is to run alone, above this progress; 0 if there is none."""
        return max((one for one in self.suspected.get(member, ()) if one > progress), default=0)

    def letters(self, member: int, heads: Sequence[tuple[str | None, Head, int]]) -> set[int]:
        """Return the letters among these that are to run alone; ask once, when the lease is taken."""
        positions = self.suspected.pop(member, frozenset())
        return {head.letter for _, head, _ in heads if head.position in positions}


def charge(duty: Duty, tx: StoreTx, *, is_ours: bool) -> Verdict:
    """Judge the last loss and charge the events that ran alone, in the transaction that takes the lease.

    `is_ours`: the former owner was this process, so that no death is to be charged.
    """
    losses, env = duty.engine.losses, duty.engine.env
    found = losses.judge(duty.member, tx.server) if is_ours else Verdict.EXCUSE
    lost = found == Verdict.CHARGE
    if is_ours and not lost:
        tx.keyed.excuse(duty.member)
    tx.keyed.forget_settled(duty.member, duty.id, duty.window.position)
    duty.charges = tx.keyed.charge(duty.member, env.boot, lost=lost)
    duty.horizon = losses.horizon(duty.member, duty.window.position)
    return found


@contextmanager
def at_risk(works: Sequence[Any], *, alone: bool) -> Iterator[None]:
    """Name the events whose functions or statements run in a transaction, should its connection be lost."""
    try:
        yield
    except ConnectionLost as lost:
        lost.positions, lost.alone = frozenset(one.position for one in works if _has_statements(one)), alone
        raise


def _has_statements(one: Any) -> bool:
    """A handler's work may have asked for none; events and letters of a projection are called in the transaction."""
    effects: Any = getattr(one, "effects", _PROJECTED)
    return effects is _PROJECTED or (effects is not None and bool(effects.statements))


_PROJECTED = object()
