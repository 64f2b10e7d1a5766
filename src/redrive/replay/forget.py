"""Forgetting letters: what pruning deletes of them, so that the counters and the ledger still say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator

from redrive.store.port import StoreTx


def forget_history(tx: StoreTx, ids: list[int]) -> None:
    """Letters stay, their attempts and all but the last of their journal go."""
    chosen = {"ids": json.dumps(ids)}
    tx.sql.run("prune_attempts", chosen)
    tx.sql.run("prune_journal_but_last", chosen)


def delete_letters(tx: StoreTx, subscription: int, ids: list[int], *, applied: int) -> None:
    """Letters go with everything about them; those that were applied are counted as if they had never been letters."""
    chosen = {"ids": json.dumps(ids)}
    tx.sql.many("prune_count", _groups(tx, subscription, chosen))
    tx.sql.run("prune_counts_empty", {"subscription": subscription})
    tx.sql.run("prune_attempts", chosen)
    tx.sql.run("prune_journal", chosen)
    tx.sql.run("prune_letters", chosen)
    if applied:
        tx.sql.run("prune_applied_add", {"subscription": subscription, "applied": applied})


def _groups(tx: StoreTx, subscription: int, chosen: dict[str, str]) -> Iterator[tuple[object, ...]]:
    for *group, count in tx.sql.all("prune_groups", chosen):
        yield (count, subscription, *group)
