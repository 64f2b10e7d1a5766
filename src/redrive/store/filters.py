"""What a subscription asked for at each position, and how its filter changes without leaving holes in the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redrive.store.port import StoreTx, Subscribed
from redrive.subscription import asks_for

Filters = Sequence[tuple[int, Sequence[str]]]  # (holds above this position, types), in order
EVERYWHERE = 2**62  # above every position


class Asked:
    """Answers for one subscription; remembers what it was asked, since types repeat."""

    def __init__(self, filters: Filters) -> None:
        self._filters = [(position, tuple(types)) for position, types in filters]
        self._known: dict[tuple[tuple[str, ...], str], bool] = {}

    @property
    def begins(self) -> list[int]:
        """The positions above which another filter holds."""
        return [position for position, _ in self._filters]

    def spans(self, above: int, upto: int) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """(above, up to, types) for each stretch of positions under one filter; the first holds for all before it."""
        starts = [position for position, _ in self._filters[1:]]
        for (_, types), begin, end in zip(self._filters, [0, *starts], [*starts, upto], strict=True):
            low, high = max(begin, above), min(end, upto)
            if low < high:
                yield low, high, types

    def wants(self, position: int, event_type: str) -> bool:
        """Did the filter at this position ask for this type?"""
        return self._matches(self.at(position), event_type)

    def at(self, position: int) -> tuple[str, ...]:
        """The filter in force at a position; the first one holds for all before it too."""
        types = self._filters[0][1]
        for start, candidates in self._filters:
            if start >= position:
                break
            types = candidates
        return types

    def types(self, tx: StoreTx, log: int, above: int, upto: int) -> Iterator[tuple[int, int, str, int]]:
        """(above, up to, type, how many) of what was asked for in a range of positions."""
        for low, high, patterns in self.spans(above, upto):
            for event_type, count in tx.logs.counts(log, low, high).items():
                if self._matches(patterns, event_type):
                    yield low, high, event_type, count

    def count(self, tx: StoreTx, log: int, above: int, upto: int) -> int:
        """How many events were asked for in a range of positions."""
        return sum(count for _, _, _, count in self.types(tx, log, above, upto))

    def _matches(self, types: tuple[str, ...], event_type: str) -> bool:
        found = self._known.get((types, event_type))
        if found is None:
            found = self._known[types, event_type] = asks_for(types, event_type)
        return found


def change_filter(tx: StoreTx, row: Subscribed, types: Sequence[str]) -> int:
    """From its progress on the subscription asks for these types; returns that position.

    Events above it that are settled already were asked for by a former filter. Where the new one does not ask
    for them, the former keeps holding for just their positions. Whoever runs with the former filter is fenced.
    """
    position, former = tx.progress.get(row.id).position, Asked(tx.progress.filters(row.id))
    tx.sql.run("filter_clear", {"subscription": row.id, "above": position + 1})
    tx.progress.add_filter(row.id, position, types)
    values = {"subscription": row.id, "log": tx.logs.id_of(row.source), "above": position}
    for done, event_type in tx.sql.all("ledger_done_events", values):
        if not asks_for(types, event_type):
            tx.progress.add_filter(row.id, done - 1, former.at(done))
            tx.progress.add_filter(row.id, done, types)
    tx.sql.run("epoch_bump", {"subscription": row.id})
    return position
