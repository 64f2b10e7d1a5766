"""A state machine is a table; taking a step is looking it up.

A step that the table does not hold cannot happen, so asking for it is a bug of ours and must
stop the subscription rather than write a state that nobody thought about.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from redrive.errors import BugError

S = TypeVar("S", bound=StrEnum)
V = TypeVar("V", bound=StrEnum)


def step(table: Mapping[tuple[S, V], S], state: S, verb: V) -> S:
    """The state after `verb`."""
    try:
        return table[state, verb]
    except KeyError:
        allowed = ", ".join(sorted(v for s, v in table if s == state)) or "nothing"
        raise BugError(f"{verb!s} cannot happen in the state {state!s}, only {allowed}; please report this") from None
