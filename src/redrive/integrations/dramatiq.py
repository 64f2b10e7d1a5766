"""Dramatiq: `quiet()` inside every actor, and nothing tracked is left behind when a worker ends.

    broker.add_middleware(redrive.integrations.dramatiq.Quiet())

An actor that must fail with its event says so itself: `with redrive.strict():`, or `@redrive.strict` below `@actor`.
"""

from __future__ import annotations

import threading
from contextvars import Token
from typing import Any

from dramatiq import Middleware

from redrive.tracking.modes import MODE, Mode
from redrive.tracking.tracker import settle_all


class Quiet(Middleware):
    """Switches `quiet()` on around each message."""

    def __init__(self) -> None:
        self._here = threading.local()  # a message begins and ends on one thread

    def before_process_message(self, broker: Any, message: Any) -> None:
        """The actor is about to run."""
        tokens: list[Token[Mode]] = self._here.__dict__.setdefault("tokens", [])
        tokens.append(MODE.set(Mode.QUIET))

    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        """It has ended, in whichever way."""
        tokens: list[Token[Mode]] = self._here.__dict__.get("tokens", [])
        if tokens:
            MODE.reset(tokens.pop())

    def after_skip_message(self, broker: Any, message: Any) -> None:
        """Another middleware did not let it run."""
        self.after_process_message(broker, message)

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        """All actors have ended, and the process may end without its exit handlers."""
        settle_all()
