"""Celery: `quiet()` inside every task, and nothing tracked is left behind when a worker process ends.

    from redrive.integrations import celery
    celery.install()

A task that must fail with its event says so itself: `with redrive.strict():`, or `@redrive.strict` below `@app.task`.
"""

from __future__ import annotations

from contextvars import Token
from typing import Any

from celery import Celery, signals

from redrive.tracking.modes import MODE, Mode
from redrive.tracking.tracker import settle_all

_UID = "redrive.integrations.celery"
_tokens: dict[str, Token[Mode]] = {}  # by task; a task that runs another in its place has two
_apps: set[int] | None = set()  # whose tasks are quiet; None: everybody's


def install(app: Celery | None = None) -> None:
    """For the tasks of one Celery app, or of all of them. Call it where the app is made; twice does no harm."""
    global _apps
    _apps = None if app is None or _apps is None else _apps | {id(app)}
    signals.task_prerun.connect(_begin, dispatch_uid=_UID, weak=False)
    signals.task_postrun.connect(_end, dispatch_uid=_UID, weak=False)
    signals.worker_process_shutdown.connect(_settle, dispatch_uid=_UID, weak=False)
    signals.worker_shutdown.connect(_settle, dispatch_uid=_UID, weak=False)


def uninstall() -> None:
    """As before."""
    global _apps
    _apps = set()
    for signal, receiver in (
        (signals.task_prerun, _begin),
        (signals.task_postrun, _end),
        (signals.worker_process_shutdown, _settle),
        (signals.worker_shutdown, _settle),
    ):
        signal.disconnect(receiver, dispatch_uid=_UID)


def _begin(sender: Any = None, task_id: str = "", **_: Any) -> None:
    if _apps is None or id(getattr(sender, "app", None)) in _apps:
        _tokens[task_id] = MODE.set(Mode.QUIET)


def _end(task_id: str = "", **_: Any) -> None:
    token = _tokens.pop(task_id, None)
    if token is not None:
        MODE.reset(token)


def _settle(**_: Any) -> None:
    settle_all()  # such a process ends without its exit handlers
