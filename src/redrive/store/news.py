"""What is news in a store that has to be asked: that somebody was there of whom nobody in this process was told."""

from __future__ import annotations

from collections import deque
from typing import Any

TOLD_MAX = 1_000  # pieces that were told between two looks; of what is forgotten, the next look tells once more


class News:
    """Compares pulses. The first part of one is the last position, and grows with every event."""

    __slots__ = ("_seen", "_told")

    def __init__(self) -> None:
        self._seen: Any = None
        self._told: deque[tuple[int, int]] = deque(maxlen=TOLD_MAX)

    def told(self, first: int, last: int) -> None:
        """Everybody here was told of what was appended from this position to that one, and is committed."""
        self._told.append((first, last))

    def are_in(self, pulse: Any) -> bool:
        """Has anything happened since the last look, but what was told?"""
        seen, self._seen = self._seen, pulse
        if seen is None or seen == pulse or seen[1:] != pulse[1:]:
            return bool(seen != pulse)
        above, upto = seen[0] or 0, pulse[0] or 0
        told = sum(max(0, min(last, upto) - max(first - 1, above)) for first, last in tuple(self._told))
        while self._told and self._told[0][1] <= upto:
            self._told.popleft()
        return bool(told != upto - above)  # else somebody else has appended between them
