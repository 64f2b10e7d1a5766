"""The intake limit of a log, for `track` alone: what is over it is kept beside the log, or dropped if a rule says so.

Nothing is dropped without a `keep=` that leaves it out. `bypass=` lets events through at any rate: whoever can make
an event look like one of those can flood the store, so let it depend on what an outsider cannot choose.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from redrive.errors import EventError
from redrive.event import Event, NewEvent, encode_headers
from redrive.policy.limiter import FULL, Bucket, bucket
from redrive.policy.rules import AnyPattern, Candidate, Drop, Rules, rules
from redrive.types import EventTypes

LIMITED = ":limited"  # the log beside a log, for what came too fast
REASON = "rate_limited"

Patterns = AnyPattern | Iterable[AnyPattern]


class Intake(Struct, frozen=True):
    """Made by `intake()`, which checks what it is given."""

    limit: str
    bucket: Bucket
    keep: Rules
    bypass: Rules  # its discard patterns are those that may pass

    def fate(self, event: Event[Any]) -> str:
        """Of an event that is over the limit: `bypass`, `kept`, or the rule that drops it."""
        if self.bypass and isinstance(self.bypass.judge(event.type, event), Drop):
            return "bypass"
        match self.keep.judge(event.type, Candidate("", event, 0, REASON)):
            case Drop(rule):
                return rule
            case _:
                return "kept"


def intake(limit: str, keep: Rules | Patterns | None = None, bypass: Patterns | None = None) -> Intake:
    """`keep`: None keeps everything, patterns keep what fits one of them, rules decide as they do for letters."""
    if keep is None:
        kept = Rules()
    elif isinstance(keep, Rules):
        kept = keep
    else:
        kept = rules(keep=keep, keep_if=is_kept_otherwise)
    return Intake(limit, bucket(limit), kept, rules(discard=() if bypass is None else bypass))


def is_kept_otherwise(letter: object) -> bool:
    """What no pattern of `keep=` fits is dropped."""
    return False


def severity(*levels: str) -> Callable[[Event[Any]], bool]:
    """For `bypass=`: events whose header `severity`, or else whose field `severity`, is one of these.

    >>> urgent = severity("error", "fatal")
    """
    wanted = frozenset(levels)

    def is_urgent(event: Event[Any]) -> bool:
        found = event.headers.get("severity")
        if found is None and isinstance(event.data, Mapping):
            found = event.data.get("severity")
        return found in wanted if isinstance(found, str) else False

    return is_urgent


class Door:
    """The limit of one log in this process."""

    def __init__(self, log: str, intake: Intake, types: EventTypes) -> None:
        self.intake = intake
        self._log, self._types = log, types
        self._lock = threading.Lock()
        self._state = FULL

    def is_open(self, now: float) -> bool:
        """May one more pass? It counts as passed."""
        with self._lock:
            granted, self._state, _ = self.intake.bucket.take(self._state, now)
        return granted == 1

    def judge(self, event: NewEvent) -> tuple[str, NewEvent | None, str]:
        """Of an event that is over the limit: the log it belongs to, as what, and its fate in a word."""
        seen: Event[Any] = Event(
            0, event.id, event.type, event.key, None, event.schema, event.time_us, event.headers_raw, event.data_raw,
            self._types,
        )  # fmt: skip
        match self.intake.fate(seen):
            case "bypass":
                return self._log, event, "bypass"
            case "kept":
                return self._log + LIMITED, self._marked(event, seen), "kept"
            case rule:
                return self._log, None, f"dropped by {rule}"

    def _marked(self, event: NewEvent, seen: Event[Any]) -> NewEvent:
        marks = {
            "redrive-reason": REASON,
            "redrive-limit": self.intake.limit,
            "redrive-exceeded-at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        try:
            return event._replace(headers_raw=encode_headers(seen.headers | marks))
        except EventError:  # its own headers leave no room for ours: the name of the log says it too
            return event
