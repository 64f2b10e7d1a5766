"""redrive: every event is applied exactly once and in key order, or is kept and shown to you.

>>> from redrive import App
"""

from __future__ import annotations

import sqlite3

from redrive.app import App
from redrive.context import Ctx, Tx
from redrive.errors import (
    EventError,
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
from redrive.policy.breaker import breaker
from redrive.policy.retry import conflicts, no_retry, retry
from redrive.policy.rules import rules
from redrive.sinks import Sink, verify_signature, webhook
from redrive.sources.log import Log
from redrive.tracking.intake import severity
from redrive.tracking.modes import quiet, strict
from redrive.types import event
from redrive.version import VERSION
from redrive.watch import health, metrics

__version__ = VERSION

__all__ = [
    "App",
    "Ctx",
    "Event",
    "EventError",
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
