"""Somewhere events are delivered; each sink is a subscription of its own. `redrive.sinks.port` says what one is."""

from __future__ import annotations

from redrive.sinks.lines import file, stdout
from redrive.sinks.loki_push import loki
from redrive.sinks.otlp_logs import otlp
from redrive.sinks.port import Sink, SomeFailed
from redrive.sinks.sentry_envelope import sentry
from redrive.sinks.signing import BadSignature, verify_signature
from redrive.sinks.webhooks import webhook

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
