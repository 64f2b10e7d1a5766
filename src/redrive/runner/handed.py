"""Events that have just landed, kept for whoever reads their log next in this process: to read them back from the
store costs a fifth of applying them.

Put here after their commit, used where writing happens, one after the other. It is the log that counts: who does not
find here exactly what follows its own progress reads the log, and who does asks it whether there is more.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import Any, NamedTuple

from redrive.event import Event

EVENTS_MAX, LANDINGS_MAX = 8_000, 8  # of one log: who is further behind is not about to catch up
BYTES_MAX = 8_000_000  # of data in one landing: what is larger takes longer to apply than to read


_DATA = attrgetter("data_raw")


class Landed(NamedTuple):
    """All events of a log that are above a position and up to the last of these, which have no gap.

    Whoever is called for one of them leaves it as it was.
    """

    above: int
    events: list[Event[Any]]


class Handed:
    """What has landed lately, by log."""

    def __init__(self) -> None:
        self._landed: dict[str, deque[Landed]] = {}

    def put(self, log: str, landed: Landed) -> None:
        """These were committed."""
        if sum(map(len, map(_DATA, landed.events))) > BYTES_MAX:
            return
        kept = self._landed.setdefault(log, deque(maxlen=LANDINGS_MAX))
        kept.append(landed)
        while sum([len(one.events) for one in kept]) > EVENTS_MAX:
            kept.popleft()

    def after(self, log: str, position: int, limit: int) -> list[Event[Any]]:
        """The next events above a position, in order; none, if they are not all here."""
        for above, events in self._landed.get(log, ()):
            first, last = events[0].position, events[-1].position
            if above <= position < last:
                start = max(0, position - first + 1)
                return events[start : start + limit]
        return []

    def forget(self, log: str) -> None:
        """Nobody is about to read it, or somebody begins anew: what was here may have been pruned since."""
        self._landed.pop(log, None)
