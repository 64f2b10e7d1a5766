"""The progress facet: definition, fence, lease, prefix and what is done above it of subscriptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from redrive.clock import Clock, SystemClock
from redrive.errors import BugError, Fenced, UsageError
from redrive.store.changes import Changes
from redrive.store.done import Done
from redrive.store.port import Disbelief, ProgressRow, Subscribed
from redrive.store.sql import Row, Sql

# Stored before the definition of a table whose rows stayed in the store that this one was copied from.
_NOT_COPIED = "-- not copied\n"
_PARTITION = 1 << 32  # so far apart are the members of one subscription; part of the storage format


def member_of(subscription: int, partition: int) -> int:
    """The number of one partition of a subscription; that of the first is the subscription's own."""
    return subscription + partition * _PARTITION


def partition_of(member: int) -> int:
    """The partition that a member is."""
    return member // _PARTITION


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

    def add(
        self,
        subscription: tuple[str, str, str, str],
        position: int,
        anchor: str | None,
        now: float,
        partitions: int = 1,
    ) -> Subscribed:
        """Create (name, kind, source, ordering), starting above a position."""
        name, kind, source, ordering = subscription
        row = self._sql.one(
            "subscription_add", {"name": name, "kind": kind, "source": source, "ordering": ordering, "now": now}
        )
        assert row is not None
        for partition in range(partitions):
            values = {"member": member_of(row[0], partition), "subscription": row[0]}
            self._sql.run("progress_add", {**values, "position": position, "anchor": anchor})
        return Subscribed(row[0], name, kind, source, ordering)

    def member(self, member: int) -> ProgressRow:
        """The hot row of one partition."""
        return member_row(member, self._sql.each("progress_get", (member,)))

    def members(self, subscription: int) -> list[ProgressRow]:
        """The hot rows of all partitions."""
        return [ProgressRow(*row) for row in self._sql.all("progress_of", (subscription,))]

    def get(self, subscription: int) -> ProgressRow:
        """Where a subscription stands: as its slowest partition does."""
        rows = self.members(subscription)
        if not rows:
            raise BugError(f"subscription {subscription} has no progress row")
        return rows[0] if len(rows) == 1 else _together(rows)

    def now(self, clock: Clock) -> float:
        """The time of the store's clock; a clock of this machine goes by it from here on."""
        asked = clock.now()
        found = float(self._sql.value("now", {"now": asked}))
        if found != asked and isinstance(clock, SystemClock):
            clock.follow(found)
        return found

    # ------------------------------------------------------------ settling

    def fence(self, member: int, epoch: int, position: int, known: Row | None = None) -> Row:
        """(parked_version, paused, quiet_until), or Fenced: not the owner, or progress moved.

        `known`: for who knows the answer, and does not wait for it: Disbelief, at the latest at the commit, if it is
        another one. Only where the store is far.
        """
        if known is not None:
            self._sql.run("pg_fence_believed", (member, epoch, position, *known), Disbelief())
            return known
        row = self._sql.one("fence", (member, epoch, position))
        if row is None:
            raise Fenced(f"subscription {member}: epoch {epoch} at position {position} is no longer current")
        return row

    def advance(self, change: Mapping[str, object]) -> None:
        """Move the prefix and the counters; see the statement for the fields."""
        self._sql.run("advance", change, Fenced(f"subscription {change['member']}: lost inside the transaction"))

    def lock(self, subscription: int) -> None:
        """First statement of every operator's transaction; it lists what it changes: `letters.changes`."""
        if self._sql.run("lock_subscription", {"subscription": subscription}) < 1:
            raise UsageError(
                f"subscription {subscription} is gone: another operator has just removed it (redrive forget)"
            )
        Changes(self._sql).begin(subscription)

    # ------------------------------------------------------------ filters

    def filters(self, subscription: int) -> list[tuple[int, list[str]]]:
        """(holds above this position, types) in order; an empty list of types means all."""
        rows = self._sql.all("filter_all", {"subscription": subscription})
        return [(position, json.loads(types)) for position, types in rows]

    def add_filter(self, subscription: int, from_position: int, types: Sequence[str]) -> None:
        """From this position on the subscription asks for these types."""
        values = {"subscription": subscription, "from_position": from_position, "types": json.dumps(sorted(types))}
        self._sql.run("filter_add", values)


def member_row(member: int, found: Iterable[Row]) -> ProgressRow:
    """The hot row of one partition, of what `progress_get` gives for it."""
    for row in found:
        return ProgressRow(*row)
    # Its subscription has other partitions now.
    raise Fenced(f"subscription {member % _PARTITION} has no partition {partition_of(member)} any more")


def _together(rows: Sequence[ProgressRow]) -> ProgressRow:
    """Several partitions as one row: the slowest tells the position, the newest what happened last."""
    slowest = min(rows, key=lambda row: row.position)
    newest = max(rows, key=lambda row: row.settled_at or 0.0)
    held = min(rows, key=lambda row: (row.owner is not None, row.lease_until))
    return slowest._replace(
        epoch=max(row.epoch for row in rows), parked_version=max(row.parked_version for row in rows),
        applied=sum(row.applied for row in rows), ignored=sum(row.ignored for row in rows),
        halted=next((row.halted for row in rows if row.halted is not None), None),
        owner=held.owner, lease_until=held.lease_until, unclean=held.unclean, boot=held.boot,
        lease_set_at=max(row.lease_set_at for row in rows),
        settled_at=newest.settled_at, last_type=newest.last_type, last_time_us=newest.last_time_us,
    )  # fmt: skip


def tables_of(sql: Sql, subscription: int) -> dict[str, str | None]:
    """Tables the subscription owns, with the definition if redrive created them."""
    return dict(sql.all("table_all", {"subscription": subscription}))


def not_copied(columns: str) -> str:
    """The definition of a table that has to be filled again before its subscription may go on."""
    return columns if is_not_copied(columns) else _NOT_COPIED + columns


def is_not_copied(columns: str | None) -> bool:
    """Were the rows of the table left behind?"""
    return columns is not None and columns.startswith(_NOT_COPIED)


def declared_tables(sql: Sql, subscription: int) -> dict[str, str | None]:
    """The tables with their definitions as the program wrote them."""
    stored = tables_of(sql, subscription)
    return {name: columns and columns.removeprefix(_NOT_COPIED) for name, columns in stored.items()}
