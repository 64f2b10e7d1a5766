"""How far each partition of a broker has landed, and which of its messages are in the log already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from redrive.codec import to_json
from redrive.store.port import StoreTx
from redrive.store.sql import Row, Sql


def positions(sql: Sql, subscription: int) -> dict[int, str]:
    """By partition, the last message that has landed."""
    return dict(sql.all("landed_all", {"subscription": subscription}))


def move(sql: Sql, subscription: int, to: Mapping[int, str]) -> None:
    """These have landed, in the transaction that holds their events."""
    sql.many("landed_put", [(subscription, partition, position) for partition, position in to.items()])


def known(sql: Sql, log: int, ids: Sequence[str]) -> dict[str, Row]:
    """Those of these ids that the log holds, with their type, key, schema and data."""
    if not ids:
        return {}
    rows: Iterable[Row] = sql.all("events_known", {"log": log, "ids": to_json([*ids]).decode()})
    return {row[0]: row[1:] for row in rows}


def has_imports(tx: StoreTx, log: str) -> bool:
    """Does the log hold events that a broker has not given to this store, and may give to it yet?"""
    return tx.books.get(f"imported {log}") is not None


def note_imports(tx: StoreTx, log: str) -> None:
    """From here on it does."""
    tx.books.set(f"imported {log}", 1)
