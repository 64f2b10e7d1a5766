"""The log facet: append with versions and ids, read in order.

Must be called inside a transaction; commit order is position order because a store lets one
appender commit at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from redrive.event import NewEvent
from redrive.store.append import append_all
from redrive.store.sql import Row, Sql


class Logs:
    """Append to and read from the logs of one store."""

    __slots__ = ("_ids", "_sql")

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._ids: dict[str, int] = {}

    def id_of(self, name: str, *, create: bool = False) -> int:
        """The log's number; 0 for a log that has no events yet and may not be created now."""
        found = self._ids.get(name)
        if found is None:
            if create:
                self._sql.run("log_add", {"name": name})
            found = self._sql.value("log_find", {"name": name}) or 0
            if found:
                self._ids[name] = found
        return found

    def forget(self) -> None:
        """A transaction that may have created a log was rolled back."""
        self._ids.clear()

    def append(self, log_name: str, events: Sequence[NewEvent]) -> tuple[list[Row], bool]:
        """Store events in order and return their rows, and whether one of them was there already."""
        return append_all(self, self._sql, [(log_name, events)])

    def append_derived(self, log_name: str, events: Sequence[NewEvent]) -> None:
        """Emissions of a whole group: one that is stored already is left as it is; versions follow by themselves."""
        log = self.id_of(log_name, create=True)
        rows = [
            (log, e.id, e.type, e.key, e.key, log, e.key, e.schema, e.time_us, e.headers_raw, e.data_raw)
            for e in events
        ]
        self._sql.many("event_emit", rows)

    def after(self, log: int, position: int, limit: int) -> list[Row]:
        """The next rows above a position, in order."""
        return self._sql.all("events_after", (log, position, limit))

    def of_key(self, log: int, key: str, after_version: int, limit: int) -> list[Row]:
        """The events of one key above a version, in order."""
        return self._sql.all("events_of_key", (log, key, after_version, limit))

    def last(self, log: int) -> int:
        """The position of the newest event; 0 if there is none."""
        return int(self._sql.value("log_last", (log,)))

    def last_before(self, log: int, time_us: int) -> int:
        """The position from which on every event is at or after a time."""
        return int(self._sql.value("log_last_before", {"log": log, "time_us": time_us}))

    def anchor(self, log: int, position: int) -> str | None:
        """Id of the last event at or below a position: how progress recognises its log."""
        row = self._sql.one("event_anchor", (log, position))
        return None if row is None else row[1]

    def lag(self, log: int, above: int, limit: int = 1_000_000) -> int:
        """How many events lie above a position, counted up to a limit."""
        return int(self._sql.value("lag_count", {"log": log, "above": above, "limit": limit}))

    def oldest_above(self, log: int, above: int) -> int | None:
        """Time (µs) of the first event above a position."""
        found: int | None = self._sql.value("lag_oldest", {"log": log, "above": above})
        return found

    def counts(self, log: int, above: int, upto: int) -> dict[str, int]:
        """Events per type in a range of positions."""
        return dict(self._sql.all("events_count", {"log": log, "above": above, "upto": upto}))
