"""Many events in one request, and which of them it was if the answer is no.

An event that cannot even be written down fails alone. If an answer blames what was sent, the batch is halved until
those to blame stand alone: the others are delivered, some of them more than once. An answer about the place ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redrive.errors import Reject, UsageError
from redrive.event import Event
from redrive.sinks.http import Busy, HttpError, NoAnswer, Unreachable
from redrive.sinks.port import SomeFailed
from redrive.units import duration

T = TypeVar("T")

BATCH_MAX = 500  # events in a request; beyond it a request costs what its bytes cost
REQUEST_BYTES_MAX = 1_000_000  # what every collector takes without being configured; an event alone may be larger

_ABOUT_THE_CONTENT = frozenset({400, 413, 422})


class Rejected(Reject):
    """The other side took the request and says that it did not keep all of it."""

    def __init__(self, reason: str, count: int) -> None:
        super().__init__(reason)
        self.count = count


def prepare(
    events: Sequence[Event[Any]], make: Callable[[Event[Any]], T]
) -> tuple[list[tuple[int, T]], dict[int, BaseException]]:
    """Each event as it is sent, with its index; and those of which that cannot be made."""
    items: list[tuple[int, T]] = []
    errors: dict[int, BaseException] = {}
    for index, event in enumerate(events):
        try:
            items.append((index, make(event)))
        except Exception as error:
            errors[index] = error
    return items, errors


async def send_batch(
    events: Sequence[Event[Any]],
    make: Callable[[Event[Any]], T],
    size: Callable[[T], int],
    post: Callable[[list[T]], Awaitable[None]],
) -> None:
    """Deliver all of them in as few requests as their sizes allow; SomeFailed names those that were not."""
    items, errors = prepare(events, make)
    parts = deque(_parts(items, size))
    while parts:
        part = parts.popleft()
        try:
            await post([item for _, item in part])
        except (HttpError, Reject, Busy, Unreachable, NoAnswer) as error:
            if not _is_about_the_content(error):
                undecided = [index for one in (part, *parts) for index, _ in one]
                if len(undecided) == len(events):
                    raise
                errors |= dict.fromkeys(undecided, error)
                break
            if len(part) == 1 or (isinstance(error, Rejected) and error.count >= len(part)):
                errors |= dict.fromkeys((index for index, _ in part), error)
            else:
                half = len(part) // 2
                parts.extendleft((part[half:], part[:half]))
    raise_failed(errors, len(events))


def raise_failed(errors: dict[int, BaseException], count: int) -> None:
    """Say what failed, if anything did."""
    if errors:
        raise errors[0] if count == 1 else SomeFailed(errors)


def _parts(items: list[tuple[int, T]], size: Callable[[T], int]) -> list[list[tuple[int, T]]]:
    parts: list[list[tuple[int, T]]] = []
    room = 0
    for item in items:
        room -= size(item[1])
        if room < 0 or not parts:
            parts.append([])
            room = REQUEST_BYTES_MAX - size(item[1])
        parts[-1].append(item)
    return parts


def _is_about_the_content(error: Exception) -> bool:
    return isinstance(error, Reject) or (isinstance(error, HttpError) and error.status in _ABOUT_THE_CONTENT)


def batch_options(batch_max: int, batch_wait: str | float) -> tuple[int, float]:
    """The two options that sinks with batches have."""
    if batch_max < 1:
        raise UsageError(f"batch_max={batch_max}: at least one event")
    try:
        return batch_max, duration(batch_wait)
    except ValueError as error:
        raise UsageError(f"batch_wait: {error}") from None
