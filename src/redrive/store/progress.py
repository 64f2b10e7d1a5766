"""The progress facet: definition, fence, lease, prefix and what is done above it of subscriptions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from redrive.clock import Clock, SystemClock
from redrive.errors import BugError, Fenced
from redrive.store.done import Done
from redrive.store.port import ProgressRow, Subscribed
from redrive.store.sql import Row, Sql


class Progress:
    """How far each subscription got, and who may move it."""

    __slots__ = ("_sql", "done")

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self.done = Done(sql)

    # ------------------------------------------------------------ definitions

    def find(self, name: str) -> Subscribed | None:
        """A subscription by name."""
        row = self._sql.one("subscription_find", {"name": name})
        return None if row is None else Subscribed(*row)

    def all(self) -> list[Subscribed]:
        """Every subscription the store knows."""
        return [Subscribed(*row) for row in self._sql.all("subscription_all")]

    def add(self, subscription: tuple[str, str, str, str], position: int, anchor: str | None, now: float) -> Subscribed:
        """Create (name, kind, source, ordering), starting above a position."""
        name, kind, source, ordering = subscription
        row = self._sql.one(
            "subscription_add", {"name": name, "kind": kind, "source": source, "ordering": ordering, "now": now}
        )
        assert row is not None
        self._sql.run("progress_add", {"subscription": row[0], "position": position, "anchor": anchor})
        return Subscribed(row[0], name, kind, source, ordering)

    def get(self, subscription: int) -> ProgressRow:
        """The hot row."""
        row = self._sql.one("progress_get", {"subscription": subscription})
        if row is None:
            raise BugError(f"subscription {subscription} has no progress row")
        return ProgressRow(*row)

    def now(self, clock: Clock) -> float:
        """The time of the store's clock; a clock of this machine goes by it from here on."""
        asked = clock.now()
        found = float(self._sql.value("now", {"now": asked}))
        if found != asked and isinstance(clock, SystemClock):
            clock.follow(found)
        return found

    # ------------------------------------------------------------ settling

    def fence(self, subscription: int, epoch: int, position: int) -> Row:
        """(parked_version, paused, quiet_until), or Fenced: not the owner, or progress moved."""
        row = self._sql.one("fence", (subscription, epoch, position))
        if row is None:
            raise Fenced(f"subscription {subscription}: epoch {epoch} at position {position} is no longer current")
        return row

    def advance(self, change: Mapping[str, object]) -> None:
        """Move the prefix and the counters; see the statement for the fields."""
        if self._sql.run("advance", change) != 1:
            raise Fenced(f"subscription {change['subscription']}: lost inside the transaction")

    def move_done(self, subscription: int, add: Sequence[int], prefix: int, expected: int) -> None:
        """Remember settled positions above the prefix, given in order; drop those it has passed.

        A repeated one, or another number passed than we knew of, means: somebody else settled here, look again.
        """
        if add:
            self.done.add(subscription, add)
        if self.done.prune(subscription, prefix) != expected:
            raise Fenced(f"subscription {subscription}: what is done below {prefix} is not what we know of")

    def lock(self, subscription: int) -> None:
        """First statement of every operator's transaction."""
        if self._sql.run("lock_subscription", {"subscription": subscription}) != 1:
            raise BugError(f"subscription {subscription} has no progress row")

    # ------------------------------------------------------------ filters and tables

    def filters(self, subscription: int) -> list[tuple[int, list[str]]]:
        """(holds above this position, types) in order; an empty list of types means all."""
        rows = self._sql.all("filter_all", {"subscription": subscription})
        return [(position, json.loads(types)) for position, types in rows]

    def add_filter(self, subscription: int, from_position: int, types: Sequence[str]) -> None:
        """From this position on the subscription asks for these types."""
        values = {"subscription": subscription, "from_position": from_position, "types": json.dumps(sorted(types))}
        self._sql.run("filter_add", values)

    def tables(self, subscription: int) -> dict[str, str | None]:
        """Tables the subscription owns, with the definition if redrive created them."""
        return dict(self._sql.all("table_all", {"subscription": subscription}))
