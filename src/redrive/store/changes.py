"""Letters that operators changed, listed by the version that each operator's transaction gives to the subscription.

The owner of a subscription reads the listed letters again, and no others. A version without a list means that the
owner reads all open letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from redrive.policy.lanes import Head
from redrive.store.sql import Row, Sql

FORGOTTEN_MAX = 5_000  # listed changes that are dropped in one transaction: a few milliseconds


class Changed(NamedTuple):
    """What operators changed, as the store has it now."""

    lanes: list[tuple[str, Head | None, int]]  # a lane, its head (None: the lane is free), and how many letters it has
    loose: list[tuple[int, Head | None]]  # a letter in a lane of its own; None: it waits for no due time


class Changes:
    """The lists of changed letters."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def begin(self, subscription: int) -> None:
        """Begin the list of an operator's transaction, which has just raised the version: `progress.lock` does it."""
        self._sql.run("change_begin", {"subscription": subscription})

    def add(self, subscription: int, letters: Sequence[tuple[int, str | None]]) -> None:
        """List letters (number, lane) that an operator's transaction changes. After `progress.lock`.

        The owner does not list what its own attempts change.
        """
        self._sql.many("change_add", [(letter, lane, subscription) for letter, lane in letters])

    def count(self, subscription: int, known: int, version: int) -> int | None:
        """How many rows are listed after a known version; None if a version has no list."""
        row = self._sql.one("change_count", (subscription, known, version))
        return None if row is None or row[1] != version - known else int(row[0])

    def after(
        self, subscription: int, known: int, version: int, is_mine: Callable[[str], bool] = lambda route: True
    ) -> Changed | None:
        """The heads of lanes whose letters changed after a known version; None if a version has no list."""
        if self.count(subscription, known, version) is None:
            return None
        where = (subscription, known, version)
        lanes = [(row[0], _head(row), row[11]) for row in self._sql.all("changed_lanes", where) if is_mine(row[0])]
        loose = self._sql.all("changed_loose", where)
        return Changed(lanes, [(row[0], _head(row)) for row in loose if row[1] is None or is_mine(row[11])])

    def forget(self, subscription: int, upto: int) -> None:
        """Drop lists that every owner has read, a limited number of rows at a time."""
        self._sql.run("changes_forget", {"subscription": subscription, "upto": upto, "limit": FORGOTTEN_MAX})


def _head(row: Row) -> Head | None:
    return None if row[1] is None else Head(*row[1:11])
