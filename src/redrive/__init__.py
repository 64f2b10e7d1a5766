"""redrive: every event is applied exactly once and in key order, or is kept and shown to you.

>>> from redrive import App
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from redrive.app import App
from redrive.context import Ctx, Tx
from redrive.errors import (
    EventError,
    Halted,
    IdConflict,
    Ignore,
    RedriveError,
    Reject,
    RetryLater,
    StoreError,
    UsageError,
    VersionConflict,
)
from redrive.event import Event
from redrive.policy.auto_replay import auto_replay
from redrive.policy.breaker import breaker
from redrive.policy.retry import conflicts, no_retry, retry
from redrive.policy.rules import rules
from redrive.sinks.port import Sink
from redrive.sources.log import Log
from redrive.tracking.intake import severity
from redrive.tracking.modes import quiet, strict
from redrive.types import event
from redrive.version import VERSION
from redrive.watch import health, metrics

if TYPE_CHECKING:
    from redrive.sinks import verify_signature, webhook

__version__ = VERSION

__all__ = [
    "App",
    "Ctx",
    "Event",
    "EventError",
    "Halted",
    "IdConflict",
    "Ignore",
    "Log",
    "RedriveError",
    "Reject",
    "RetryLater",
    "Sink",
    "StoreError",
    "Tx",
    "UsageError",
    "VersionConflict",
    "auto_replay",
    "breaker",
    "conflicts",
    "event",
    "health",
    "metrics",
    "no_retry",
    "quiet",
    "retry",
    "rules",
    "severity",
    "sqlite3",
    "strict",
    "verify_signature",
    "webhook",
]


def __getattr__(name: str) -> Any:
    """Sinks bring asyncio and TLS along, a third of the time that the import takes: only for who names one."""
    if name not in ("verify_signature", "webhook"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from redrive import sinks

    return getattr(sinks, name)


def __dir__() -> list[str]:
    return ["__version__", *__all__]
