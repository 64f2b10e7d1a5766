"""`quiet()` and `strict()`: whether `log.track` may fail the code around it. A context variable, never a global.

Tasks of asyncio and `asyncio.to_thread` inherit it; a thread of your own starts outside of both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar, Token
from enum import Enum
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar, overload

from redrive.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


class Mode(Enum):
    """What `track` does about trouble."""

    PLAIN = "plain"  # a mistake of the caller is raised, trouble of the store is not
    QUIET = "quiet"  # nothing is raised
    STRICT = "strict"  # waits for the commit; raises if there was none


MODE: ContextVar[Mode] = ContextVar("redrive_track_mode", default=Mode.PLAIN)


class During:
    """For the length of a `with` block, or of each call of a decorated function."""

    __slots__ = ("_mode", "_tokens")

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._tokens: list[Token[Mode]] = []

    def __enter__(self) -> None:
        self._tokens.append(MODE.set(self._mode))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        MODE.reset(self._tokens.pop())

    def __call__(self, function: F) -> F:
        mode = self._mode
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            # Between two items the mode would be that of whoever reads them.
            raise UsageError(f"{function.__name__} is a generator: write `with {mode.value}():` inside of it instead")
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def call_later(*args: Any, **named: Any) -> Any:
                with During(mode):
                    return await function(*args, **named)

            return call_later  # type: ignore[return-value]

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            with During(mode):
                return function(*args, **named)

        return call  # type: ignore[return-value]


@overload
def quiet() -> During: ...
@overload
def quiet(function: F) -> F: ...
def quiet(function: Any = None) -> Any:
    """Inside, `log.track` never raises, whatever is wrong: trouble is counted, logged and kept aside.

    >>> with quiet():
    ...     orders.track("order.seen", object())

    Also a decorator, of `def` and `async def`: `@quiet`, `@quiet()`.
    """
    return During(Mode.QUIET) if function is None else During(Mode.QUIET)(function)


@overload
def strict() -> During: ...
@overload
def strict(function: F) -> F: ...
def strict(function: Any = None) -> Any:
    """Inside, `log.track` returns when its event is committed, and raises if that did not happen.

    >>> with strict():
    ...     event_id = orders.track("order.audited", {"by": "ada"})

    Also a decorator. Of `quiet()` and `strict()`, the inner one counts.
    """
    return During(Mode.STRICT) if function is None else During(Mode.STRICT)(function)
