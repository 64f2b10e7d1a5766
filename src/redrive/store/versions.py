"""The last versions of a log's keys, remembered from one append to the next."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.codec import from_json, to_json
from redrive.store.sql import Sql

KEYS_MAX = 100_000  # whose versions are remembered


class Versions:
    """The last version of each key of a log, for as long as nobody else appends to it."""

    __slots__ = ("_known", "above", "upto")

    def __init__(self) -> None:
        self.upto = -1  # the last position that they include
        self.above = 0  # the last one when they were last asked for
        self._known: dict[str, int] = {}

    def of(self, sql: Sql, log: int, keys: set[str], last: int) -> dict[str, int]:
        """At least those of these keys, to be counted on; None of it holds if the transaction does not commit.

        `last`: the last position of the log now.
        """
        self.above = last
        if self.upto != last or len(self._known) > KEYS_MAX:
            self._known = {}
        if new := keys.difference(self._known):  # not of its keys(), each of which would be looked at
            self._known |= from_json(sql.value("key_versions", (log, to_json([*new]).decode())))
        self.upto = -1
        return self._known

    def counted(self, upto: int, others: Iterable[str | None]) -> None:
        """They hold up to this position, but for these keys, which others have counted on."""
        self.upto = upto
        for key in others:
            self._known.pop(key, None)  # type: ignore[arg-type]
