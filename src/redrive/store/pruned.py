"""What is known of events that were pruned: how far a log was cleared, and how many fates went with its events.

The ledger counts events in the log and fates in the books. Where an operator has deleted both, these numbers
stand in for them, so that the account still adds up to the last event.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from redrive.errors import UsageError
from redrive.store.port import StoreTx, Subscribed


@dataclass(frozen=True, slots=True)
class Pruned:
    """Of one subscription: events it asked for that are gone, and how many of them had been discarded."""

    upto: int = 0
    settled: int = 0
    discarded: int = 0


def pruned_of(tx: StoreTx, subscription: int, started_from: int) -> Pruned:
    """What the ledger that begins above `started_from` has to add."""
    text = tx.books.get(f"pruned {subscription}")
    found = Pruned() if text is None else Pruned(**json.loads(text))
    return found if found.upto > started_from else Pruned()


def keep_pruned(tx: StoreTx, subscription: int, pruned: Pruned) -> None:
    """Write it down, in the transaction that deletes the events."""
    tx.books.set(f"pruned {subscription}", json.dumps(asdict(pruned)))


def pruned_upto(tx: StoreTx, log: int) -> int:
    """Below this position the log is no longer whole; 0 if it never was pruned."""
    return int(tx.books.get(f"pruned log {log}") or 0)


def keep_pruned_upto(tx: StoreTx, log: int, position: int) -> None:
    """The same for the log as a whole."""
    tx.books.set(f"pruned log {log}", position)


def check_whole(tx: StoreTx, row: Subscribed, start: int) -> None:
    """Refuse to read a log again from where it is no longer whole."""
    upto = pruned_upto(tx, tx.logs.id_of(row.source))
    if start < upto:
        raise UsageError(
            f"{row.name!r} would begin above position {start}, but log {row.source!r} was pruned up to position "
            f"{upto}: what it built of those events cannot be built again"
        )
