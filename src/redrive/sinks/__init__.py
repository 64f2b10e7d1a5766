"""Somewhere events are delivered; each sink is a subscription of its own. `redrive.sinks.port` says what one is.

Imported when asked for: most programs use one or two of them, and a command line none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from redrive.sinks.port import Sink, SomeFailed

if TYPE_CHECKING:
    from redrive.sinks.lines import file, stdout
    from redrive.sinks.loki_push import loki
    from redrive.sinks.otlp_logs import otlp
    from redrive.sinks.sentry_envelope import sentry
    from redrive.sinks.signing import BadSignature, verify_signature
    from redrive.sinks.webhooks import webhook

_HOMES = {
    "BadSignature": "signing",
    "file": "lines",
    "loki": "loki_push",
    "otlp": "otlp_logs",
    "sentry": "sentry_envelope",
    "stdout": "lines",
    "verify_signature": "signing",
    "webhook": "webhooks",
}

__all__ = [
    "BadSignature",
    "Sink",
    "SomeFailed",
    "file",
    "loki",
    "otlp",
    "sentry",
    "stdout",
    "verify_signature",
    "webhook",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__]
