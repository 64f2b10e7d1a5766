"""What happens to tracked events that do not simply reach the store: counted always, told once a second, logged now
and then. Nothing here raises, because its callers promise not to.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Protocol

from redrive.observe import signals as sig
from redrive.observe.signals import Signal, Signals

logger = logging.getLogger("redrive")

TELL_SECONDS = 1.0  # signals of one kind are added up for so long
LOG_SECONDS = 10.0  # an outage is one fact, not one per event
MESSAGE_CHARS_MAX = 500


class Told(Protocol):
    """Who passes signals on; a forked child has another."""

    @property
    def signals(self) -> Signals: ...


class Report:
    """Of one tracker."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._lock = threading.Lock()
        self._pending: Counter[tuple[str, ...]] = Counter()
        self._told_at = -TELL_SECONDS
        self._logged_at: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()  # since the process began, by what happened

    @property
    def is_pending(self) -> bool:
        """Is there something that was not told yet?"""
        return bool(self._pending)

    def count(self, what: str, number: int, *about: str) -> None:
        """`what` is one of: committed, spooled, taken, damaged, dropped, refused, limited."""
        with self._lock:
            self.counts[what] += number
            if what != "committed":
                self._pending[what, *(text[:MESSAGE_CHARS_MAX] for text in about)] += number

    def tell(self, now: float, *, last: bool = False) -> None:
        """Pass on what has come together."""
        if not self._pending or not (last or now - self._told_at >= TELL_SECONDS):
            return
        with self._lock:
            pending, self._pending = self._pending, Counter()
        self._told_at = now
        found = [_signal(key, number) for key, number in pending.items()]
        self._told.signals.tell(found)
        for (what, *about), number in pending.items():
            self._log(what, about, number, now, last)

    def _log(self, what: str, about: list[str], number: int, now: float, last: bool) -> None:
        key = " ".join((what, *about[:1]))
        self._unlogged[key] += number
        if last or now - self._logged_at.get(key, -LOG_SECONDS) >= LOG_SECONDS:
            self._logged_at[key] = now
            level, text = _LINES[what]
            logger.log(level, text.format(count=self._unlogged.pop(key), about=about))

    def trouble(self, text: str, now: float) -> None:
        """Something the operator should know of, in words."""
        if now - self._logged_at.get("trouble", -LOG_SECONDS) >= LOG_SECONDS:
            self._logged_at["trouble"] = now
            logger.warning("%s", text)


_LINES: dict[str, tuple[int, str]] = {
    "spooled": (logging.WARNING, "{count:,} tracked events are kept in the spool until the store takes them"),
    "taken": (logging.INFO, "{count:,} tracked events of the spool are in the store now"),
    "damaged": (
        logging.ERROR,
        "{count:,} bytes of the spool file {about[0]} are damaged; they were set aside beside it",
    ),
    "dropped": (logging.ERROR, "{count:,} tracked events for log {about[0]} are LOST: {about[1]}"),
    "refused": (logging.WARNING, "{count:,} calls of track for log {about[0]} were refused and kept aside: {about[3]}"),
    "limited": (logging.WARNING, "{count:,} tracked events for log {about[0]} were over its intake limit: {about[1]}"),
}


def _signal(key: tuple[str, ...], number: int) -> Signal:
    match key:
        case ("spooled",):
            return sig.Spooled(number)
        case ("taken",):
            return sig.SpoolTaken(number)
        case ("damaged", file):
            return sig.SpoolDamaged(file, number)
        case ("dropped", log, reason):
            return sig.TrackDropped(log, number, reason)
        case ("limited", log, fate):
            return sig.TrackLimited(log, number, fate)
        case ("refused", log, kind, error_type, message):
            return sig.TrackRefused(log, kind, number, error_type, message)
        case _:
            raise AssertionError(key)
