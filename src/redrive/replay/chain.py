"""The audit's hash chain: does every row fit the one before it, and is none missing?

Each row's hash is made of its fields and of the hash before it, so that a changed, removed or inserted row shows.
What is cut off at the end shows too: the store remembers the highest number it ever gave.
"""

from __future__ import annotations

from dataclasses import dataclass

from redrive.store.books import chain
from redrive.store.port import Store
from redrive.store.sql import Row

PAGE = 5000  # rows read at a time


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """What the chain says; `first_wrong` is the first row that does not fit, None if all do."""

    rows: int
    first_wrong: int | None = None
    message: str = ""

    @property
    def sound(self) -> bool:
        """Is it whole?"""
        return self.first_wrong is None


def verify_audit(store: Store) -> AuditVerdict:
    """Walk the chain from its first row to the first that does not fit."""
    last, hashed = 0, ""
    with store.reading() as tx:
        while page := tx.books.audited(last, PAGE):
            for row in page:
                if row[0] != last + 1:
                    return AuditVerdict(last, last + 1, f"row {last + 1} is missing; the next is {row[0]}")
                if not _fits(row, hashed):
                    return AuditVerdict(last, row[0], f"row {row[0]} was changed, or belongs to another chain")
                last, hashed = row[0], row[-1]
        highest = tx.sql.value("audit_highest") or 0
    if highest != last:
        return AuditVerdict(last, last + 1, f"it ends with row {last}, but rows up to {highest} were written")
    return AuditVerdict(last)


def _fits(row: Row, before: str) -> bool:
    try:
        return bool(chain(before, tuple(row[1:-1])) == row[-1])
    except TypeError:  # bytes where a text was: nobody but somebody else wrote that
        return False
