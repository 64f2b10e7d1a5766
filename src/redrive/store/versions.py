"""The last versions of a log's keys, remembered from one append to the next."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.codec import from_json, to_json
from redrive.store.spans import Spans
from redrive.store.sql import Sql

KEYS_MAX = 100_000  # whose versions are remembered
NEAR = 2_000  # positions that are read to learn what others have appended meanwhile


class Versions:
    """The last version of each key of a log, for as long as it is known what others append to it.

    Those of all events that are not found by their key yet (see spans.py), and those that were asked for.
    """

    __slots__ = ("_known", "_spans", "upto")

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self.upto = -1  # the last position that they include
        self._known: dict[str, int] = {}

    def of(self, sql: Sql, log: int, keys: set[str], last: int) -> dict[str, int]:
        """At least those of these keys, to be counted on; None of it holds if the transaction does not commit.

        `last`: the last position of the log now.
        """
        if self.upto != last or len(self._known) > KEYS_MAX:
            self._catch_up(log, last)
        if new := keys.difference(self._known):  # not of its keys(), each of which would be looked at
            self._known |= from_json(sql.value("key_versions", (log, to_json([*new]).decode())))
        self.upto = -1
        return self._known

    def _catch_up(self, log: int, last: int) -> None:
        """Somebody else has appended: a little, which is read, or too much, and nothing that is known counts."""
        is_near = 0 <= self.upto <= last <= self.upto + NEAR and len(self._known) <= KEYS_MAX
        found = self._spans.versions_above(log, self.upto if is_near else None)
        if is_near and found is not None:
            self._known |= found
        else:
            self._known = found or {}

    def counted(self, upto: int, others: Iterable[str | None]) -> None:
        """They hold up to this position, but for these keys, which others have counted on."""
        self.upto = upto
        for key in others:
            self._known.pop(key, None)  # type: ignore[arg-type]
