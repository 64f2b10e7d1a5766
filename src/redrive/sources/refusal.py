"""Messages that are no events a function could be called with: they land all the same, and become letters.

Such a row has schema 0, which no event has; its data says why, and holds what was received.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction, signature
from typing import Any, Final

import msgspec

from redrive.codec import to_json
from redrive.errors import Refused
from redrive.event import Event, NewEvent
from redrive.sources.port import Message, Plain

SCHEMA: Final = 0
UNDECODABLE, ID_COLLISION, LOST = REASONS = "undecodable", "id_collision", "lost_at_source"
RAW_MAX = 700_000  # bytes of a message that are kept with it: as base64 they fit into an event


class _Said(msgspec.Struct):
    reason: str
    message: str
    raw: str = ""  # base64


def refusal(
    reason: str, message: str, *, id: str, type: str, key: str | None, time_us: int, raw: bytes = b""
) -> NewEvent:
    """An event that says what cannot be made an event of."""
    said = _Said(reason, message, base64.b64encode(raw[:RAW_MAX]).decode())
    return NewEvent(id, type, key, SCHEMA, time_us, None, to_json(msgspec.to_builtins(said)))


def refused(event: NewEvent, message: Message | Plain, reason: str, text: str) -> NewEvent:
    """A message in the place of whose event stands why it is none. It has an id of its own: that of its place."""
    place = message.position.partition(";")[0]  # what a reader notes behind it is another the next time
    where = f"{event.id[:100]}@{message.partition}/{place}"
    return refusal(
        reason, text, id=where, type=event.type, key=event.key, time_us=event.time_us, raw=event.data_raw
    )  # fmt: skip


def check(event: Event[Any]) -> None:
    """Raise Refused if it is none to call a function with."""
    if event.schema == SCHEMA:
        said = msgspec.json.decode(event.data_raw, type=_Said)
        raise Refused(said.reason, said.message)


def guarded(function: Callable[..., Any], *, batch: bool = False) -> Callable[..., Any]:
    """A function that is not called with what was refused."""
    if batch:

        @wraps(function)
        def for_lists(events: Any, *rest: Any) -> Any:
            for event in events:
                check(event)
            return function(events, *rest)

        return for_lists
    if iscoroutinefunction(function):

        @wraps(function)
        async def awaited(event: Any, *rest: Any) -> Any:
            if event.schema == SCHEMA:
                check(event)
            return await function(event, *rest)

        return awaited

    if len(signature(function).parameters) == 2:  # nearly always, and in half the time

        @wraps(function)
        def called_with_two(event: Any, tx: Any) -> Any:
            if event.schema == SCHEMA:
                check(event)
            return function(event, tx)

        return called_with_two

    @wraps(function)
    def called(event: Any, *rest: Any) -> Any:
        if event.schema == SCHEMA:
            check(event)
        return function(event, *rest)

    return called
