"""Is it worth trying again? The answer by default, when no rule of the user speaks about the error.

Almost everything is transient: a bug in the code may be fixed by the next deploy, a missing
file may appear, and a wrong guess costs a few calls. Permanent is only what says so itself: our own
errors about an event that cannot change, and HTTP answers that blame the request.
No code of the exception is run to find out: a property that raises must not hide the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from redrive.errors import BadKey, Reject, Undecodable, UsageError

_PERMANENT = (Reject, Undecodable, BadKey, UsageError)

# 4xx that speak about the moment and not about the request: timeout, too early, too many requests.
_COME_BACK_LATER = frozenset({408, 425, 429})

# Errors of the operating system that speak about this machine's files.
_LOCAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError, BlockingIOError)
# How clients name what went wrong between them and a server: httpx, aiohttp, redis, psycopg, boto, grpc, kafka.
_OUTSIDE = ("Timeout", "Connect", "Disconnected", "Unavailable", "NetworkError", "OperationalError", "TransportError")

# Where HTTP clients put the status: httpx and requests (on the response), openai, aiohttp, stripe, urllib.
_STATUS_NAMES = ("status_code", "status", "http_status", "code")


def is_permanent(error: BaseException) -> bool:
    """Whether trying again is pointless, judging by the exception alone.

    A group of exceptions is permanent if one of them is: the others may heal, the group cannot.
    """
    if not object.__getattribute__(error, "__dict__"):  # most exceptions: only their class could tell, and once
        kind: Any = type(error)
        if (answer := _is_permanent_class(kind)) is not None:
            return answer
    return any(isinstance(one, _PERMANENT) or _blames_the_request(one) for one in leaves(error))


@lru_cache(1024)
def _is_permanent_class(kind: Any) -> bool | None:
    """Whether all errors of this class are that hold nothing else; None: those that are inside of it tell."""
    if issubclass(kind, BaseExceptionGroup):
        return None
    return issubclass(kind, _PERMANENT) or _is_about_the_request(_status_of_class(kind))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The error, and every error inside it if it is a group (`asyncio.TaskGroup` raises those)."""
    waiting = [error]
    while waiting:
        one = waiting.pop()
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(reversed(one.exceptions))


def blames_a_dependency(error: BaseException) -> bool:
    """Whether the error says that somebody else is not well: unreachable, too slow, overloaded, broken.

    What an event or the code is to blame for says nothing about the other side. Libraries that do not inherit from the
    built-in errors are recognised by how they name theirs.
    """
    if not isinstance(error, BaseExceptionGroup):  # most are none: ask once, without a walk
        return _is_outside(error)
    return any(_is_outside(one) for one in leaves(error))


def _is_outside(error: BaseException) -> bool:
    status = http_status(error)
    if status is not None:
        return status >= 500 or status in _COME_BACK_LATER
    if isinstance(error, OSError):
        return not isinstance(error, _LOCAL)
    kind: Any = type(error)
    return _is_named_outside(kind)


@lru_cache(1024)
def _is_named_outside(kind: Any) -> bool:
    return any(word in one.__name__ for one in kind.__mro__ for word in _OUTSIDE)


def http_status(error: BaseException) -> int | None:
    """The HTTP status that the exception or its response carries as plain data, if any."""
    if not object.__getattribute__(error, "__dict__"):  # most exceptions: only their class could tell, and once
        kind: Any = type(error)
        return _status_of_class(kind)
    return _status(error)


@lru_cache(1024)
def _status_of_class(kind: Any) -> int | None:
    found = (_inherited(kind, name) for name in _STATUS_NAMES)
    return next((int(status) for status in found if isinstance(status, int) and 100 <= status <= 599), None)


def _status(error: BaseException) -> int | None:
    for holder in (error, _stored(error, "response")):
        for name in _STATUS_NAMES:
            status = _stored(holder, name)
            if isinstance(status, int) and 100 <= status <= 599:
                return int(status)
    return None


def _stored(holder: object, name: str) -> object:
    """The attribute as it lies in the object or its classes: no property, slot or `__getattr__` is asked.

    inspect.getattr_static does the same, ten times slower; a burst of failures asks this very often.
    """
    if holder is None:
        return None
    try:
        own: dict[str, object] = object.__getattribute__(holder, "__dict__")
    except AttributeError:  # slots only
        own = {}
    if name in own:
        return own[name]
    return _inherited(type(holder), name)


def _inherited(kind: type, name: str) -> object:
    return next((one.__dict__[name] for one in kind.__mro__ if name in one.__dict__), None)


def _blames_the_request(error: BaseException) -> bool:
    return _is_about_the_request(http_status(error))


def _is_about_the_request(status: int | None) -> bool:
    return status is not None and 400 <= status <= 499 and status not in _COME_BACK_LATER
