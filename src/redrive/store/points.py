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


def refusal(table: str) -> str:
    """Say that a function must not write to this table."""
    return (
        f"{table} belongs to redrive: a function may read it, not write to it. Use tx.emit, app.operate() or a command"
    )


class Points:
    """The savepoints of one call, on one connection."""

    __slots__ = ("_made", "forget", "in_function", "is_ours", "refused")

    def __init__(self) -> None:
        self.is_ours = False  # does a statement of the engine's run? Only SQLite asks
        self.refused = ""  # the table of ours that a refused statement would have changed
        self.in_function = (
            False  # does a subscription's function use this transaction? Then our tables are closed to it
        )
        self._made: dict[str, str] = {}
        self.forget = self._made.clear  # another call begins, or another transaction

    def begin(self) -> None:
        """The statements of a subscription's function follow."""
        self._made.clear()
        self.in_function = True

    def end(self) -> None:
        """The transaction is over."""
        self._made.clear()
        self.in_function = False

    def check_tables(self, touched: str) -> None:
        """Raise UsageError if a function writes to one of redrive's own tables."""
        if self.in_function and touched:
            raise UsageError(refusal(touched))

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
