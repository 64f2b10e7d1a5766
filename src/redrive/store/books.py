"""The books: audit with a hash chain, controls for the owner, small named values."""

from __future__ import annotations

import json
from typing import Any

from redrive.store.sql import BOOKS, Row, Sql


def chain(previous: str, fields: tuple[Any, ...]) -> str:
    """The hash of an audit row: of its fields and of the row before."""
    text = json.dumps([previous, *fields], ensure_ascii=True, separators=(",", ":"))
    from hashlib import sha256  # only who audits needs it

    return sha256(text.encode()).hexdigest()


class Books:
    """Who did what and why; what operators ask of the owner."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def audit(
        self, now: float, who: str, action: str, subscription: str, target: str, reason: str, details: dict[str, Any]
    ) -> int:
        """Write an audit row in the transaction of the deed; returns its number."""
        now = float(now)  # as it is read back: 5 and 5.0 have different hashes
        self._sql.claim((BOOKS,))
        previous = self._sql.value("audit_last") or ""
        text = json.dumps(details, sort_keys=True)
        values = {
            "now": now, "who": who, "action": action, "subscription": subscription, "target": target, "reason": reason,
            "details": text, "hash": chain(previous, (now, who, action, subscription, target, reason, text)),
        }  # fmt: skip
        row = self._sql.one("audit_add", values)
        assert row is not None
        return int(row[0])

    def audited(self, after: int = 0, limit: int = 1000) -> list[Row]:
        """Audit rows by number."""
        return self._sql.all("audit_all", {"after": after, "limit": limit})

    def ask(self, subscription: int, verb: str, letter: int, rev: int, who: str, reason: str, now: float) -> None:
        """Leave a control for the owner; it names its target and revision."""
        values = {
            "subscription": subscription, "verb": verb, "letter": letter, "rev": rev, "who": who, "reason": reason,
            "now": now,
        }  # fmt: skip
        self._sql.run("control_add", values)

    def asked(self, subscription: int) -> list[Row]:
        """Open controls: (id, verb, letter, rev, who, reason)."""
        return self._sql.all("control_all", {"subscription": subscription})

    def answered(self, control: int) -> None:
        """Consume a control in the transaction that performs it."""
        self._sql.run("control_drop", {"id": control})

    def get(self, name: str) -> Any:
        """A named value of the store."""
        return self._sql.value("meta_get", {"name": name})

    def set(self, name: str, value: Any) -> None:
        """Set a named value of the store."""
        self._sql.run("meta_set", {"name": name, "value": value})

    def drop(self, name: str) -> None:
        """Forget a named value of the store."""
        self._sql.run("meta_drop", {"name": name})
