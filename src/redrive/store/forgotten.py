"""Deleting a subscription: every table that holds rows of it, in the order in which they go.

A test compares this list with the columns of the schema, so that a new table cannot be missed.
"""

from __future__ import annotations

from redrive.store.identity import keep_identity
from redrive.store.port import StoreTx, Subscribed

# Letters go after the tables that refer to them. The audit and the receipts of operations stay.
TABLES = (
    "attempts", "edits", "journal", "letters", "letter_counts", "causes", "lanes", "changes", "holds", "controls",
    "inflight", "probes", "done_chunks", "filters", "ranges", "tables", "state", "landed", "progress", "subscriptions",
)  # fmt: skip


def count_rows(tx: StoreTx, subscription: int) -> dict[str, int]:
    """The rows of a subscription by table, without the tables that have none."""
    counts: dict[str, int] = dict(tx.sql.all("forget_counts", {"subscription": subscription}))
    return {table: counts[table] for table in TABLES if counts[table]}


def delete_rows(tx: StoreTx, row: Subscribed) -> dict[str, int]:
    """Delete a subscription; the number of rows by table. Its identity stays: no other one may pass for it."""
    keep_identity(tx, row)
    values = {"subscription": row.id}
    tx.sql.run("forget_operation_letters", values)
    tx.sql.run("forget_meta", values)
    deleted = {table: tx.sql.run(f"forget_{table}", values) for table in TABLES}
    return {table: count for table, count in deleted.items() if count}
