"""Spans: which types and times of events lie in each stretch of positions, so that a listing passes over the others.

A span is written once, by whoever appends the first event behind it, in the same transaction. It may say too much,
since events are pruned, but never too little. What lies above the last span is read itself. So it is with where the
events of each key lie: written one by one, that cost as much as the events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redrive.codec import from_json
from redrive.store.sql import Sql

SPAN = 2048  # positions; a part of what is stored: spans of another size would be read wrongly
PAGE = 256  # spans that are read at a time
EVERYWHERE = 2**62

Range = tuple[int, int]  # above the first position, up to the second


class Spans:
    """The spans of one store, written and read."""

    __slots__ = ("_due", "_sql")

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._due = 0  # the first position that may leave a span behind it

    def passed(self, position: int) -> None:
        """An event was appended here: what lies behind will not grow any more."""
        if position < self._due:
            return
        here = position // SPAN
        for span in range(self._last() + 1, here):
            low = span * SPAN
            self._sql.run("span_add", {"span": span, "above": low - 1, "upto": low + SPAN - 1})
        self._sql.run("keys_add", {"below": here * SPAN})
        self._sql.run("keys_added", {"below": here * SPAN})
        self._due = (here + 1) * SPAN

    def _last(self) -> int:
        found: int | None = self._sql.value("span_last")
        return -1 if found is None else found

    def versions_above(self, log: int, position: int | None) -> dict[str, int] | None:
        """The last versions of the keys above a position; without one, of events that are not found by their key yet.

        None: all are.
        """
        found: dict[str, int] = from_json(self._sql.value("versions_above", (log, position)))
        return found

    def ranges(self, where: dict[str, Any], *, newest: bool) -> Iterator[Range]:
        """Where events of a type and time may lie between `after` and `upto`, in the order of a listing."""
        after, upto = where["after"], where["upto"]
        above = (self._last() + 1) * SPAN - 1
        tail = (max(after, above), upto)
        spans = self._runs({**where, "first": after // SPAN, "last": upto // SPAN}, newest)
        ranges = ((max(after, low * SPAN - 1), min(upto, high * SPAN + SPAN - 1)) for low, high in spans)
        if newest:
            yield tail
            yield from ranges
        else:
            yield from ranges
            yield tail

    def _runs(self, where: dict[str, Any], newest: bool) -> Iterator[Range]:
        """The first and last of neighbouring spans that match."""
        query = "spans_down" if newest else "spans_up"
        while found := [span for (span,) in self._sql.all(query, {**where, "limit": PAGE})]:
            begun = found[0]
            for span, following in zip(found, [*found[1:], None], strict=True):
                if following is None or abs(following - span) > 1:
                    yield min(begun, span), max(begun, span)
                    begun = following
            if newest:
                where = {**where, "last": found[-1] - 1}
            else:
                where = {**where, "first": found[-1] + 1}

    def strays(self, log: int) -> list[int]:
        """Positions that their span, or their key, does not lead to: a listing would miss them."""
        return [position for (position,) in self._sql.all("ledger_strays", {"log": log, "size": SPAN})]

    def prune(self, upto: int) -> None:
        """Spans below a position whose events are gone have nothing to say."""
        self._sql.run("prune_spans", {"before": upto // SPAN, "size": SPAN})


class NoSpans(Spans):
    """For a store on which transactions append side by side: what lies behind an event may still grow. It scans."""

    __slots__ = ()

    def passed(self, position: int) -> None: ...
    def prune(self, upto: int) -> None: ...
    def versions_above(self, log: int, position: int | None) -> dict[str, int] | None: ...

    def ranges(self, where: dict[str, Any], *, newest: bool) -> Iterator[Range]:
        """All of it."""
        yield where["after"], where["upto"]

    def strays(self, log: int) -> list[int]:
        """Nothing is left out."""
        return []
