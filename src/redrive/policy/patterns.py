"""How a rule names event types: an exact name, a glob, or the class of a typed event.

A pattern always speaks about the whole name. `order` is not `order.placed`: a rule that
matched more than it says would retry, or worse discard, events nobody thought of.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from redrive.errors import UsageError

Types = str | type | Iterable[str | type]


def matches(pattern: str, event_type: str) -> bool:
    """Whether the whole type is this name or fits this glob; case counts."""
    # Equality first, so that a type whose name contains a bracket can still be named exactly.
    return pattern == event_type or fnmatchcase(event_type, pattern)


def type_pattern(option: str, given: object) -> str:
    """One pattern as text; `option` is the argument a complaint should name."""
    if isinstance(given, type):  # decorated with @redrive.event(name, schema=n), which leaves its mark on the class
        given, _ = getattr(given, "__redrive_event__", (given, 0))
    match given:
        case "":
            raise UsageError(f'{option} has an empty pattern, which fits no event; use "*" for all of them')
        case str():
            return given
        case _:
            raise UsageError(f"{option} takes event types, globs or event classes, not {given!r}")


def type_patterns(option: str, given: Types) -> tuple[str, ...]:
    """One pattern or several, as a tuple."""
    several = given if isinstance(given, Iterable) and not isinstance(given, str | type) else (given,)
    patterns = tuple(type_pattern(option, one) for one in several)
    if not patterns:
        raise UsageError(f"{option} is empty, so the rule would never apply; leave it out to mean all events")
    return patterns
