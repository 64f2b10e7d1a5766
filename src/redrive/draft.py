"""From what a user says to what a log stores: one place checks and encodes new events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from sys import modules
from typing import Any

from redrive.clock import Env
from redrive.codec import is_model
from redrive.errors import EventError, UsageError
from redrive.event import EPOCH, Due, NewEvent, check_id, check_key, check_type, encode_headers, new_id
from redrive.observe.tracing import TRACING, traced
from redrive.types import EventTypes
from redrive.units import duration

_checked_type = lru_cache(1_000, typed=True)(check_type)  # a program has a few dozen of them
FIELDS = frozenset({"type", "data", "key", "id", "headers", "time", "expected_version", "after", "at"})
_MICROSECOND = timedelta(microseconds=1)
AHEAD_MAX = duration("3650d")  # how far ahead an event may be scheduled: what is further is a typing error


def draft(
    types: EventTypes,
    env: Env,
    kind: Any,
    data: Any = None,
    key: str | None = None,
    id: str | None = None,
    headers: Mapping[str, str] | None = None,
    time: datetime | None = None,
    expected_version: int | None = None,
    after: str | float | timedelta | None = None,
    at: datetime | None = None,
) -> NewEvent:
    """`kind` is an event type with data beside it, or an instance of a class marked by `@redrive.event`."""
    name, schema, raw = _encode(types, kind, data)
    if key is not None:
        check_key(key)
    if expected_version is not None:
        _check_version(key, expected_version)
    now = env.clock.now()
    due = None
    if after is not None or at is not None:
        due = _due(now, after, at, expected_version)._replace(time_us=None if time is None else _microseconds(time))
    if headers is not None or TRACING in modules:
        headers = traced(headers)
    fields = (
        new_id(now, env.dice) if id is None else check_id(id),
        name,
        key,
        schema,
        int(now * 1e6) if time is None else _microseconds(time),
        None if headers is None else encode_headers(headers),
        raw,
        expected_version,
        id is not None,
        False,
        due,
    )
    return tuple.__new__(NewEvent, fields)  # half as long as by its name


def derive(
    types: EventTypes,
    env: Env,
    id: str,
    kind: Any,
    data: Any,
    key: str | None,
    headers: Mapping[str, str] | None,
    expected_version: int | None,
    after: str | float | timedelta | None = None,
    at: datetime | None = None,
) -> NewEvent:
    """An emission: as `draft`, but its id is made of what caused it, so it may be stored already."""
    name, schema, raw = _encode(types, kind, data)
    if key is not None:
        check_key(key)
    if expected_version is not None:
        _check_version(key, expected_version)
    now = env.clock.now()
    due = None if after is None and at is None else _due(now, after, at, expected_version)
    headers_raw = encode_headers(headers) if headers else None
    # As a tuple, which takes half as long: one is made per emission.
    return tuple.__new__(
        NewEvent, (id, name, key, schema, int(now * 1e6), headers_raw, raw, expected_version, True, True, due)
    )


def draft_item(types: EventTypes, env: Env, item: Any) -> NewEvent:
    """One item of `append_many`: a dict with the arguments of `append`, or a typed event."""
    if isinstance(item, str):
        raise UsageError(f'append_many: {item!r} is no event; write {{"type": {item!r}, "data": …}}')
    if not isinstance(item, Mapping):
        return draft(types, env, item)
    unknown = set(item) - FIELDS
    if unknown or "type" not in item:
        wrong = f"unknown field {min(map(str, unknown))!r}" if unknown else "no 'type'"
        raise EventError(f"append_many: {wrong}; an item has {', '.join(sorted(FIELDS))}")
    rest = {name: value for name, value in item.items() if name not in ("type", "data")}
    return draft(types, env, item["type"], item.get("data"), **rest)


def _encode(types: EventTypes, kind: Any, data: Any) -> tuple[str, int, bytes]:
    """Type, schema and bytes."""
    if isinstance(kind, str):
        name, schema, raw = types.encode(data, _checked_type(kind))
    elif data is None:
        name, schema, raw = types.encode(kind) if is_model(type(kind)) else (None, 1, b"")
    else:
        raise UsageError("give a type and its data, or a typed event alone")
    if name is None:
        raise UsageError(f"{type(kind).__name__} is not an event type: mark the class with @redrive.event(name)")
    return name, schema, raw


def _check_version(key: str | None, expected: int) -> None:
    """The version that the last event of the key is expected to have."""
    if key is None:
        raise UsageError("expected_version needs a key: versions count within a key")
    if not isinstance(expected, int) or expected < 0:
        raise EventError(f"expected_version is {expected!r}; it is 0 for a new key, else the last version")


def _due(now: float, after: str | float | timedelta | None, at: datetime | None, expected: int | None) -> Due:
    """When to append it. Nobody is there any more who could be told of a version that has moved on by then."""
    if expected is not None:
        raise UsageError(
            "expected_version with after= or at=: whether the version fits is known only when the event is due, and "
            "then nobody can be told; append it now, or check in the function that receives it"
        )
    if after is not None and at is not None:
        raise UsageError("give after= or at=, not both")
    if at is None:
        assert after is not None
        try:
            delay = duration(after)
        except ValueError as error:
            raise UsageError(f"after: {error}") from None
        due = Due(now + delay, now, delay, None)
    elif not isinstance(at, datetime):
        raise UsageError(f"at= takes a datetime with a time zone, not {at!r}; after= takes a duration")
    else:
        due = Due(_microseconds(at) / 1e6, now, None, None)
    if due.at > now + AHEAD_MAX:
        raise UsageError(f"an event is scheduled {AHEAD_MAX / 86400:.0f} days ahead at most: {after or at} is further")
    return due


def _microseconds(time: datetime) -> int:
    if not isinstance(time, datetime):
        raise EventError(f"time= takes a datetime with a time zone, not {time!r}: datetime.fromisoformat reads a text")
    if time.tzinfo is None:
        raise EventError(f"time {time.isoformat()} has no time zone: write datetime.now(UTC)")
    try:
        return (time.astimezone(UTC) - EPOCH) // _MICROSECOND  # as a float it would lose some, in a few hundred years
    except OverflowError:
        raise EventError(f"time {time.isoformat()} cannot be told in UTC: its year is out of range") from None
