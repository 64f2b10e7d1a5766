"""Statements with `?1` in them, for Pythons that take it for a name.

3.12.0 to 3.12.3 warn of it, and Ubuntu 24.04 has 3.12.3. Where warnings are errors, as in many test suites, nothing
would work. There, each value is given as often as it is asked for, and the statement says `?` each time.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any

IS_NEEDED = (3, 12) <= sys.version_info < (3, 12, 4)

_PARAMETER = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\?(\d*)""", re.DOTALL)


class Numbered(sqlite3.Connection):
    """A connection that may be given such statements."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """As the driver's."""
        plain, order = unnumbered(sql)
        if order and not isinstance(parameters, Mapping):
            return super().execute(plain, [parameters[at] for at in order])
        return super().execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        """As the driver's."""
        plain, order = unnumbered(sql)
        if not order:
            return super().executemany(sql, rows)
        pick = itemgetter(*order) if len(order) > 1 else lambda row: (row[order[0]],)
        return super().executemany(plain, map(pick, rows))


@lru_cache(1_000)
def unnumbered(sql: str) -> tuple[str, tuple[int, ...]]:
    """The statement without numbers, and which value belongs to each `?`; none, if there were no numbers.

    >>> unnumbered("SELECT ?1, ?, ?1, '?2'")
    ("SELECT ?, ?, ?, '?2'", (0, 1, 0))
    """
    order: list[int] = []
    highest, is_numbered = 0, False

    def plain(found: re.Match[str]) -> str:
        nonlocal highest, is_numbered
        if found[1] is None:  # a text, a name or a comment
            return found[0]
        is_numbered = is_numbered or bool(found[1])
        number = int(found[1] or highest + 1)  # without a number it is the one after the highest so far
        highest = max(highest, number)
        order.append(number - 1)
        return "?"

    text = _PARAMETER.sub(plain, sql)
    return (text, tuple(order)) if is_numbered else (sql, ())
