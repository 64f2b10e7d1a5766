"""The name that idempotency keys and emission ids are made of: it outlives a rename of the function."""

from __future__ import annotations

from redrive.store.port import StoreTx, Subscribed


def identity(tx: StoreTx, row: Subscribed) -> str:
    """What the outside world knows the subscription by: its first name."""
    kept = tx.books.get(_place(row))
    return row.name if kept is None else str(kept)


def keep_identity(tx: StoreTx, row: Subscribed) -> None:
    """The subscription is about to be renamed: retries must not look like new calls to the outside."""
    tx.books.set(_place(row), identity(tx, row))


def choose_identity(tx: StoreTx, row: Subscribed) -> None:
    """A new subscription must not pass for one that had its name before and was renamed."""
    if tx.sql.value("identity_taken", {"identity": row.name}) is not None:
        tx.books.set(_place(row), f"{row.name}~{row.id}")


def _place(row: Subscribed) -> str:
    return f"identity:{row.id}"
