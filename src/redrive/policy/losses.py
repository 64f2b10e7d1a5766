"""Lost connections: what one means for the events of its transaction.

One event whose SQL ends its own connection would otherwise stop its subscription for ever. A restart of the server, a
network that is down and a lost answer to a COMMIT say nothing about an event. So only a connection that was lost while
a function or its statements ran counts, only if the same server answers afterwards, and only an event that ran alone
is charged.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

# What the server says when a statement may have ended the connection: pg_terminate_backend, a timeout of the session or
# of the transaction, an internal error. After a crash of the backend it says nothing at all.
_OWN_CODES = {"", "57P01", "25P03", "25P04", "XX000"}


class Loss(Struct, frozen=True):
    """One lost connection, as it was seen."""

    code: str  # the SQLSTATE that the server gave; "" if it gave none
    server: float | None  # when the server of the lost connection was started; None: unknown
    positions: frozenset[int]  # of the events whose functions or statements ran in the transaction; empty: none did
    alone: bool = False  # did they run behind a mark?


class Verdict(StrEnum):
    """What a loss leads to."""

    EXCUSE = "excuse"  # no event has to do with it
    REMEMBER = "remember"  # one may have; a second loss with the same events will tell
    ISOLATE = "isolate"  # the second one: they run alone from here on
    CHARGE = "charge"  # the event ran alone


def verdict(loss: Loss, former: Loss | None, server: float | None) -> Verdict:
    """Return what to do about `loss`, after `former`, now that the server that was started at `server` answers.

    >>> verdict(Loss("57P01", 1.0, frozenset({7}), alone=True), None, 1.0)
    <Verdict.CHARGE: 'charge'>
    >>> verdict(Loss("57P01", 1.0, frozenset({7}), alone=True), None, 2.0)
    <Verdict.EXCUSE: 'excuse'>
    """
    was_restarted = loss.server is None or server != loss.server
    if not loss.positions or loss.code not in _OWN_CODES or was_restarted:
        return Verdict.EXCUSE
    if loss.alone:
        return Verdict.CHARGE
    return Verdict.ISOLATE if former is not None and loss.positions & former.positions else Verdict.REMEMBER
