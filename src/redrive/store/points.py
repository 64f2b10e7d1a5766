"""Savepoints: those of the engine, and those that a function makes for itself.

The engine's names are drawn anew in each process. A function's names are replaced, so that they mean something in the
call that made them and nowhere else: another event's call cannot undo what belongs to this one.
"""

from __future__ import annotations

from itertools import count
from secrets import token_hex

from redrive.errors import UsageError

PREFIX = f"redrive_{token_hex(8)}_"  # a statement that names such a savepoint was written by us
POINT, CALL, CHECK = f"{PREFIX}point", f"{PREFIX}call", f"{PREFIX}check"
SAVEPOINT, RELEASE, ROLLBACK_TO = "SAVEPOINT", "RELEASE", "ROLLBACK TO"
_NUMBERS = count(1)


class Points:
    """The savepoints of one call, on one connection."""

    __slots__ = ("_made", "forget")

    def __init__(self) -> None:
        self._made: dict[str, str] = {}
        self.forget = self._made.clear  # another call begins, or another transaction

    def renamed(self, verb: str, name: str) -> str:
        """The statement to run instead. Raise UsageError if the call has made no savepoint of that name."""
        if verb == SAVEPOINT:
            made = self._made.setdefault(name, f"{PREFIX}{next(_NUMBERS)}")
        elif (made := self._made.get(name, "")) == "":
            raise UsageError(
                f"{verb} {name}: this call has made no savepoint of that name. Make it with SAVEPOINT {name}, in the "
                "call for the same event"
            )
        return f"{verb} {made}"
