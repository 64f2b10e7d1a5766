"""Partitions: which part of a subscription an event belongs to, and who should own which part.

Both answers follow from what everybody sees in the store, so workers agree without talking to each other. A wrong
guess costs a hand-over and never an effect: the epoch keeps two owners apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from zlib import crc32

from msgspec import Struct

PARTITIONS_MAX = 1024


def place(route: str, count: int) -> int:
    """The partition of a key, or of an event's id where there is no key. Part of the storage format.

    >>> place("order-1", 4)
    3
    """
    return crc32(route.encode()) % count


class Share(Struct, frozen=True):
    """What one owner has of a subscription: one of so many partitions."""

    partition: int = 0
    partitions: int = 1

    def has(self, route: str) -> bool:
        """Does what has this key, or this id if it has no key, belong to us?"""
        return self.partitions == 1 or place(route, self.partitions) == self.partition

    def has_event(self, event_id: str, key: str | None) -> bool:
        """The same for an event."""
        return self.has(event_id if key is None else key)


def quotas(partitions: int, workers: Collection[str], subscription: str) -> dict[str, int]:
    """How many partitions each worker should have: differing by one at most, and not the same ones favoured everywhere.

    >>> quotas(5, ["a", "b"], "totals")
    {'a': 3, 'b': 2}
    """
    ranked = sorted(workers, key=lambda worker: (crc32(f"{subscription}\0{worker}".encode()), worker))
    each, extra = divmod(partitions, max(1, len(ranked)))
    return {worker: each + (rank < extra) for rank, worker in enumerate(ranked)}


def surplus(
    owners: Mapping[int, str | None], quota: Mapping[str, int], me: str, stuck: Collection[int] = ()
) -> list[int]:
    """Which of my partitions to hand over: as many as I have too many and others have too few, the highest first.

    Not those that are `stuck`: what runs there does not end, and nobody else may have it before.

    >>> surplus({0: "a", 1: "a", 2: "a", 3: None}, {"a": 2, "b": 2}, "a")
    [2]
    >>> surplus({0: "a", 1: "a", 2: "a", 3: None}, {"a": 2, "b": 2}, "a", stuck=[2])
    [1]
    """
    mine = [partition for partition, owner in sorted(owners.items()) if owner == me]
    free = sum(1 for owner in owners.values() if owner not in quota)
    missing = sum(
        max(0, wanted - sum(1 for owner in owners.values() if owner == worker))
        for worker, wanted in quota.items()
        if worker != me
    )
    count = min(len(mine) - quota.get(me, 0), missing - free)
    free_to_go = [partition for partition in mine if partition not in stuck]
    return free_to_go[max(0, len(free_to_go) - count) :] if count > 0 else []


def may_want(owners: Mapping[int, str | None], quota: Mapping[str, int], me: str) -> bool:
    """May I take one more of the free ones?"""
    return sum(1 for owner in owners.values() if owner == me) < quota.get(me, 0)
