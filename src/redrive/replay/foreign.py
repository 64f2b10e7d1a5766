"""Triggers, functions and views of the user that can write to redrive's own tables.

The check of a function's statements does not see such writes, so `redrive verify` and `redrive doctor` name these.
"""

from __future__ import annotations

from redrive.store.port import Store, StoreTx

SHOWN_MAX = 5  # named; the first ones say enough


def foreign_writers(store: Store) -> list[str]:
    """Return the kind and name of each of them, such as "trigger on_letter on letters"."""
    with store.reading() as tx:
        return foreign_writers_in(tx)


def foreign_writers_in(tx: StoreTx) -> list[str]:
    """Return the same from a snapshot of the caller's."""
    return [f"{kind} {name}" for kind, name in tx.sql.all("foreign_writers")]


def told(writers: list[str]) -> str:
    """Name the first of them in a sentence."""
    more = f" and {len(writers) - SHOWN_MAX} more" if len(writers) > SHOWN_MAX else ""
    return f"{', '.join(writers[:SHOWN_MAX])}{more} can write to redrive's own tables, which no check sees"
