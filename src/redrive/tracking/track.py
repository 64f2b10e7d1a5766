"""`log.track`: from the call to the queue. Here it is decided what a caller hears of, and what it never hears of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Protocol

from redrive.clock import Env
from redrive.draft import draft
from redrive.errors import StoreError
from redrive.event import NewEvent
from redrive.store.rehearsing import check_off_stage
from redrive.tracking.intake import Door
from redrive.tracking.modes import MODE, Mode
from redrive.types import EventTypes

if TYPE_CHECKING:
    from redrive.tracking.tracker import Tracker

logger = logging.getLogger("redrive")

FLUSH_SECONDS = 5.0  # how long an end waits for the store before the rest goes to the disk

_short = Repr()
_short.maxdict = _short.maxlist = _short.maxtuple = _short.maxset = 50
_short.maxstring = _short.maxother = 1_000


class Runtime(Protocol):
    """What tracking needs of an app."""

    types: EventTypes

    @property
    def env(self) -> Env: ...
    @property
    def tracker(self) -> Tracker: ...


def track(
    runtime: Runtime,
    log: str,
    door: Door | None,
    store: Callable[[list[NewEvent]], Any],
    kind: Any,
    data: Any,
    key: str | None,
    id: str | None,
    headers: Mapping[str, str] | None,
    time: datetime | None,
) -> str | None:
    """The id of the event; None if it is not taken on: over the limit, or refused inside `quiet()`."""
    mode = MODE.get()
    try:
        check_off_stage()
        env = runtime.env
        event = draft(runtime.types, env, kind, data, key=key, id=id, headers=headers, time=time)
        if mode is Mode.STRICT:
            _commit(runtime.tracker, event, store)
        elif door is None or door.is_open(env.clock.monotonic()):
            runtime.tracker.put(log, event)
        else:
            return _over_limit(runtime.tracker, log, door, event)
        return event.id
    except Exception as error:
        if mode is not Mode.QUIET:
            raise
        _swallow(runtime, log, kind, data, error)
        return None


def misfit(runtime: Runtime, log: str, given: tuple[Any, ...], named: dict[str, Any], error: TypeError) -> None:
    """Arguments that `track` does not take at all: refused as an event is that cannot be stored."""
    if MODE.get() is not Mode.QUIET:
        raise error
    kind = given[0] if given else named.get("type")
    _swallow(runtime, log, kind if type(kind) is str else "", (*given, named), error)


def _commit(tracker: Tracker, event: NewEvent, store: Callable[[list[NewEvent]], Any]) -> None:
    """After what was tracked before: events of one process stay in order."""
    if not tracker.flush():
        raise StoreError("events that were tracked before are not in the store yet, so that this one cannot be")
    store([event])


def _over_limit(tracker: Tracker, log: str, door: Door, event: NewEvent) -> str | None:
    target, kept, fate = door.judge(event)
    tracker.report.count("limited", 1, log, fate)
    if kept is not None:
        tracker.put(target, kept)
        return event.id if target == log else None
    tracker.nudge()  # whoever counts must hear of it, also where nothing is stored
    return None


def _swallow(runtime: Runtime, log: str, kind: Any, data: Any, error: Exception) -> None:
    """Nothing is raised, whatever it takes: not even what goes wrong while we say what went wrong."""
    try:
        name = kind if isinstance(kind, str) else type(kind).__name__
        shown = _short.repr(data if isinstance(kind, str) else kind)
        runtime.tracker.refuse(log, name[:200], error, shown)
    except Exception:
        logger.exception("log %s: an event could not be tracked (%s), nor kept aside", log, error)
