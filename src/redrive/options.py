"""Names of options: a misspelt one is refused with the nearest that exists.

Python's own error names neither the options nor the nearest. Signatures stay as they are written, so type checkers see
every option.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from redrive.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def named_options(shown: str) -> Callable[[F], F]:
    """Refuse unknown options of the decorated function, which messages call `shown`.

    >>> @named_options("retry")
    ... def retry(*, attempts: int = 5): ...
    >>> retry(attemps=3)
    Traceback (most recent call last):
    redrive.errors.UsageError: retry has no option 'attemps'; did you mean 'attempts'?
    """

    def wrap(function: F) -> F:
        code = function.__code__
        names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
        known = frozenset(names)

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            if not known.issuperset(named):
                raise UsageError(_unknown(shown, min(set(named) - known), [name for name in names if name != "self"]))
            return function(*given, **named)

        return call  # type: ignore[return-value]

    return wrap


def _unknown(shown: str, name: str, known: list[str]) -> str:
    import difflib  # only ever needed on the way out

    near = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"its options are: {', '.join(known)}"
    return f"{shown} has no option {name!r}; {advice}"
