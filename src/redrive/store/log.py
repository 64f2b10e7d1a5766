"""The log facet: append with versions and ids, read in order.

Must be called inside a transaction; commit order is position order because a store lets one
appender commit at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.event import WITHDRAWN, Event, NewEvent, events_of
from redrive.store.append import append_all
from redrive.store.emit import emit_far, emit_near
from redrive.store.scheduled import taken_back, waiting_row
from redrive.store.spans import Spans
from redrive.store.sql import Row, Sql
from redrive.store.versions import Versions

if TYPE_CHECKING:
    from redrive.types import EventTypes

T = TypeVar("T")

LOOK_EVERY = 32  # events between two looks at how much they are


class Logs:
    """Append to and read from the logs of one store."""

    __slots__ = ("_created", "_ids", "_sql", "dense", "reach", "spans", "versions")

    def __init__(self, sql: Sql, spans: Spans | None = None) -> None:
        self._sql = sql
        self._ids: dict[str, int] = {}
        self._created: set[str] = set()  # by a transaction that may still be rolled back
        self.spans = spans or Spans(sql)
        self.dense: set[int] = set()  # logs that filled most of the table where they were read last
        self.reach: dict[int, int] = {}  # by log, how many events are not too much to be read at once
        self.versions: dict[int, Versions] = defaultdict(partial(Versions, self.spans))  # of the logs appended to

    def id_of(self, name: str, *, create: bool = False) -> int:
        """The log's number; 0 for a log that has no events yet and may not be created now."""
        found = self._ids.get(name)
        if found is None:
            found = self._sql.value("log_find", {"name": name}) or 0
            if create and not found:
                self._created.add(name)
                self._sql.run("log_add", {"name": name})  # nothing, if somebody else was faster
                found = self._sql.value("log_find", {"name": name}) or 0
            if found:
                self._ids[name] = found
        return found

    def ended(self, *, committed: bool) -> None:
        """A transaction is over, or was taken back in part: then what it created is gone.

        Where asking costs next to nothing, nothing is believed after that.
        """
        for name in () if committed else list(self._created if self._sql.is_far else self._ids):
            self._ids.pop(name, None)
        if not committed:
            self.versions.clear()
        self._created.clear()

    def append(self, log_name: str, events: Sequence[NewEvent]) -> tuple[list[Row], bool]:
        """Store events in order and return their rows, and whether one of them was there already."""
        return append_all(self, self._sql, [(log_name, events)])

    def append_derived(self, log_name: str, events: Sequence[NewEvent]) -> None:
        """Emissions of a whole group: one that is stored already is left as it is; versions follow by themselves."""
        log = self.id_of(log_name, create=True)
        self._sql.claim((log,))
        if any(e.due is not None for e in events):
            events = self._schedule(log, log_name, events)
        if events:
            emit = emit_far if self._sql.is_far else emit_near
            self.spans.passed(emit(self._sql, log, events, self.versions[log]))

    def _schedule(self, log: int, log_name: str, events: Sequence[NewEvent]) -> list[NewEvent]:
        """Schedule what is to come later, take back what is not to come, and return the others."""
        for is_taken_back, some in groupby([e for e in events if e.due is not None], lambda e: e.due is WITHDRAWN):
            if is_taken_back:
                for event in some:
                    taken_back(self._sql, log, log_name, event)
            else:
                self._sql.many("scheduled_emit", [waiting_row(log, event) for event in some])
        return [e for e in events if e.due is None]

    def after(self, log: int, position: int, limit: int) -> list[Row]:
        """The next rows above a position, in order."""
        return self._after(log, position, limit, list, itemgetter(0), lambda: False)

    def _after(
        self,
        log: int,
        position: int,
        limit: int,
        make: Callable[[Iterable[Row]], list[T]],
        at: Callable[[T], int],
        is_full: Callable[[], bool],
    ) -> list[T]:
        """Where a log fills most of the table, its rows are read as they lie there: the index would cost a fifth."""
        made: list[T] = []
        near = position + 2 * limit
        if log in self.dense:
            made = make(self._sql.each("events_near", (log, position, near, limit)))
            if len(made) == limit or is_full():
                return made
            self.dense.discard(log)
        made += make(self._sql.each("events_after", (log, at(made[-1]) if made else position, limit - len(made))))
        if len(made) == limit and at(made[-1]) <= near:
            self.dense.add(log)
        return made

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


def some_after(
    logs: Logs, log: int, position: int, limit: int, types: EventTypes, bytes_max: int
) -> tuple[list[Event[Any]], bool]:
    """What `after` finds, as events, and whether there may be more. Fewer, if there is so much data in these."""
    made = _Within(types, bytes_max)
    events = logs._after(log, position, limit, made, attrgetter("position"), made.is_full)
    return events, len(events) == limit or made.is_full()


class _Within:
    """Makes events, each when its row is read (thousands of rows keep the collector busy), until there is enough."""

    def __init__(self, types: EventTypes, bytes_max: int) -> None:
        self._types, self._left = types, bytes_max

    def is_full(self) -> bool:
        return self._left <= 0

    def __call__(self, rows: Iterable[Row]) -> list[Event[Any]]:
        events, left = list[Event[Any]](), iter(rows)
        while not self.is_full() and (some := events_of(islice(left, LOOK_EVERY), self._types)):
            events += some
            self._left -= sum([len(event.data_raw) for event in some])
        return events
