"""The guards facet: breakers, the probes that are under way, and the buckets of limits, shared by all workers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from redrive.policy.breaker import PRISTINE, Breaker, State
from redrive.policy.keys import bounds
from redrive.policy.limiter import Bucket, Taken
from redrive.store.sql import Row, Sql


class Guards:
    """What keeps a dependency from being overrun. Who writes a breaker locks it first."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def breaker(self, name: str) -> Breaker:
        """As it stands."""
        row = self._sql.one("breaker_get", {"name": name})
        return PRISTINE if row is None else _breaker(row)

    def breakers(self) -> Mapping[str, Breaker]:
        """All that a program has declared, by name."""
        return {row[0]: _breaker(row[1:]) for row in self._sql.all("breakers_all")}

    def declare(self, name: str) -> None:
        """A program has a breaker of this name: from now on it is listed, and can be opened and closed by hand."""
        self._sql.run("breaker_declare", {"name": name})

    def lock(self, name: str) -> Breaker:
        """As it stands, and nobody else changes it until this transaction is over."""
        row = self._sql.one("breaker_lock", {"name": name})
        assert row is not None
        return _breaker(row)

    def save(self, name: str, breaker: Breaker) -> None:
        """Write a breaker that was locked."""
        values = {**breaker._asdict(), "name": name, "state": str(breaker.state)}
        values["until"] = None if math.isinf(breaker.until) else breaker.until
        self._sql.run("breaker_save", values)

    def keyed(self, prefix: str, limit: int) -> Mapping[str, Breaker]:
        """Those whose names begin like this, by the rest of the name, up to so many; not the one without a rest."""
        low, high = bounds(prefix)
        rows = self._sql.all("breakers_between", {"low": low, "high": high, "limit": limit})
        return {row[0][len(prefix) :]: _breaker(row[1:]) for row in rows}

    def forget(self, name: str, breaker: Breaker) -> None:
        """It has nothing to tell any more, if it still stands like this: as if it had never been."""
        if self._sql.run("breaker_forget", {"name": name, "since": breaker.since}):
            self._sql.run("probes_forget", {"breaker": name})

    def probes(self, name: str, now: float) -> int:
        """How many are under way, of owners that still are."""
        return int(self._sql.value("probes_in_flight", {"breaker": name, "now": now}))

    def take_probes(self, name: str, owner: tuple[int, int], count: int, until: float) -> None:
        """So many more are under way, of this (member, epoch)."""
        member, epoch = owner
        values = {"breaker": name, "member": member, "epoch": epoch, "n": count, "until": until}
        self._sql.run("probes_take", values)

    def return_probes(self, name: str, owner: tuple[int, int], count: int) -> None:
        """They are back, or were not sent."""
        member, epoch = owner
        self._sql.run("probes_return", {"breaker": name, "member": member, "epoch": epoch, "n": count})

    def take(self, name: str, bucket: Bucket, now: float, wanted: int) -> Taken:
        """Tokens of a bucket that all workers share."""
        taken = bucket.take(self._sql.value("bucket_lock", {"name": name}), now, wanted)
        self._sql.run("bucket_save", {"name": name, "full_at": taken.state})
        return taken

    def forget_full(self, prefix: str, now: float) -> bool:
        """Buckets that are full need no row; are there others left whose names begin like this?"""
        low, high = bounds(prefix)
        self._sql.run("buckets_forget", {"low": low, "high": high, "now": now})
        return self._sql.one("buckets_between", {"low": low, "high": high}) is not None


def recoveries(sql: Sql, name: str) -> int:
    """How often a breaker closed again, by itself or by hand."""
    return int(sql.value("breaker_recoveries", {"name": name}) or 0)


def _breaker(row: Row) -> Breaker:
    state, failures, successes, since, until = row
    return Breaker(State(state), failures, successes, since, math.inf if until is None else until)
