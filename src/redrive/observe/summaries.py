"""Which signals are written line by line, and which are counted and written as one line a second.

Above 20 lines a second of one kind, the rest of that second is one line with their number and some examples. As long
as there are so many, a second is one line. A line stays a line if an operator has to see each: warnings and errors
about a subscription, a lease, a breaker. Failed events are counted by their cause, so a new cause is always shown.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

LINES_MAX = 20  # a second, of one kind; nobody can read faster than that
PERIOD_SECONDS = 1.0
EXAMPLES_MAX = 3  # of the signals without a line
KINDS_MAX = 1_000  # told apart in a second; each takes memory, and those beyond it are counted together by name


@dataclass(slots=True)
class Kind:
    """Signals that are counted together."""

    name: str
    level: int
    subscription: str
    is_summed: bool = False  # there were too many in the second before
    lines: int = 0
    wanted: int = 0  # lines that there would have been
    count: int = 0  # signals that got no line
    examples: list[dict[str, Any]] = field(default_factory=list)


class Summaries:
    """Counts what is too much. Not for several threads at once; `now` is the time of a monotonic clock."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, Kind] = {}
        self._began: float | None = None

    def has_ended(self, now: float) -> bool:
        """Is the second over in which something was counted? Then call `end`."""
        return self._began is not None and now - self._began >= PERIOD_SECONDS

    def is_line(
        self, kind: Hashable, name: str, level: int, fields: Callable[[], dict[str, Any]], count: int, now: float
    ) -> bool:
        """Write this one as a line of its own? Otherwise it is counted."""
        if self._began is None:
            self._began = now
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            kind = name
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = Kind(name, level, str(fields().get("subscription", "")))
        found.wanted += 1
        if not found.is_summed and found.lines < LINES_MAX:
            found.lines += 1
            return True
        found.count += count
        if len(found.examples) < EXAMPLES_MAX:
            found.examples.append({name: value for name, value in fields().items() if name != "subscription"})
        return False

    def rest(self, now: float) -> float | None:
        """Seconds until `end` is to be called; None if nothing was counted."""
        if self._began is None or not any(kind.count for kind in self._kinds.values()):
            return None
        return max(0.0, self._began + PERIOD_SECONDS - now)

    def end(self, now: float) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """End the second: name, level and fields of each summary."""
        seconds = 0.0 if self._began is None else round(now - self._began, 1)
        ended, self._kinds, self._began = self._kinds, {}, None
        for key, kind in ended.items():
            if kind.wanted > LINES_MAX:
                self._kinds[key] = Kind(kind.name, kind.level, kind.subscription, is_summed=True)
                self._began = now
            if kind.count:
                fields = {"count": kind.count, "seconds": seconds, "examples": kind.examples}
                yield kind.name, kind.level, {"subscription": kind.subscription} | fields
