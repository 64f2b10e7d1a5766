"""Parameters as users write them, `:name` or `?`, in the form that Postgres takes: `$1`. Pure.

Quotes, dollar quotes, comments, casts and identifiers are read as Postgres itself reads them, so that nothing
inside of them is taken for a parameter. A slice of an array needs a space: `items[low : high]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from redrive.errors import UsageError
from redrive.store.points import RELEASE, ROLLBACK_TO, SAVEPOINT
from redrive.store.postgres.own_tables import touched

STATEMENTS_MAX = 2_000  # translations kept; a program has fewer statements, unless it glues values into them

_LETTER = r"A-Za-z_\x80-\U0010ffff"  # to Postgres, whatever is not ASCII is a letter
# Two strings with a line end between them are one, and what was an E'…' before it still is after it.
_CONTINUED = r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:[ \t\f\v\n\r]+|--[^\n\r]*[\n\r])*"
_ESCAPED = r"(?:[^'\\]|\\.|'')*+'"
_TOKENS = re.compile(
    rf"""
    (?P<quoted> [Ee]'{_ESCAPED} (?:{_CONTINUED}'{_ESCAPED})* | '(?:[^']|'')*+' | "(?:[^"]|"")*+" )
    | (?P<word> [{_LETTER}][{_LETTER}0-9$]* )
    | (?P<number> [0-9][{_LETTER}0-9.]* )
    | \$(?P<native>[0-9]+)
    | (?P<dollar> \$(?:[{_LETTER}][{_LETTER}0-9]*)?\$ )
    | (?P<comment> /\* )
    | (?P<colons> :: | := )
    | :(?P<name>[{_LETTER}][{_LETTER}0-9$]*)
    | \?(?P<mark>[0-9]*)
    | (?P<end>;)
    | (?P<space> \s+ | --[^\n\r]* )
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"/\*|\*/")
_CONTROL = ("BEGIN", "START", "COMMIT", "END", "ABORT")
_WRITES = ("INSERT", "UPDATE", "DELETE", "MERGE")
_WORDS = 3  # of a statement that tell whether it ends the transaction
_POINT_MAX = 6  # parts of `ROLLBACK WORK TO SAVEPOINT x`, the longest statement about a savepoint, and one more
_NAME_MAX = 63  # bytes: the server cuts longer names

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # to Postgres, only these have another case

Params = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement for Postgres: its text, and where its parameters come from."""

    text: str
    names: tuple[str, ...] | None  # of `$1`, `$2`, …; None: they are counted
    count: int
    control: str  # the word, in any statement of it, that begins or ends a transaction: not for functions; else empty
    single: bool  # no second statement follows
    quiet: bool  # it writes and returns no rows
    point: tuple[str, str] | None  # what it does, and to which savepoint; "" if the name cannot be read
    touched: str  # one of redrive's own tables that it writes to
    is_special: bool  # it is refused, or changed, if a function runs it

    def bind(self, params: Any) -> Sequence[Any]:
        """The values in their order."""
        if self.names is not None:
            if not isinstance(params, Mapping):
                params = {}
            try:
                return [params[name] for name in self.names]
            except KeyError as error:
                raise UsageError(f"no value is given for the parameter :{error.args[0]}") from None
        if len(params) != self.count:
            raise UsageError(f"the statement has {self.count} parameters, {len(params)} values are given")
        return params  # type: ignore[no-any-return]


def translated(sql: str, params: Params) -> Statement:
    """The statement for this kind of parameters: names for a mapping, `?` or `$1` for a sequence."""
    if isinstance(params, Mapping):
        return translate(sql, named=True)
    if not params and ":" in sql and translate(sql, named=True).count:
        return translate(sql, named=True)  # `bind` will say which name is missing
    return translate(sql, named=False)


@lru_cache(maxsize=STATEMENTS_MAX)
def translate(sql: str, *, named: bool) -> Statement:
    """Give each parameter its number; what looks like one of the other kind is left as it is."""
    parts: list[str] = []
    numbers: dict[str, int] = {}
    words: list[str] = []
    parts_of_point: list[str] = []
    control, verb, returning, point = "", "", False, None
    highest = native = 0
    ended, single = False, True
    for kind, part, inner in _tokens(sql):
        if kind == "name" and named:
            part = f"${numbers.setdefault(inner, len(numbers) + 1)}"
        elif kind == "mark" and not named:
            number = int(inner) if inner else highest + 1
            highest, part = max(highest, number), f"${number}"
        elif kind == "native":
            native = max(native, int(inner))
        parts.append(part)
        if kind == "end":
            ended = ended or bool(words)
            control, words = control or _control(words), []
            point, parts_of_point = point or _point(parts_of_point), []
        elif kind != "space":
            single = single and not ended
            if len(parts_of_point) < _POINT_MAX:
                parts_of_point.append(part)
            if kind == "word":
                word = part.upper()
                verb, returning = verb or word, returning or word == "RETURNING"
                if len(words) < _WORDS:
                    words.append(word)
    given = len(numbers) if named else highest
    if given and native:
        raise UsageError("the statement mixes parameters like $1 with others; write all of them in one way")
    names = tuple(numbers) if named else None
    count, control = given if named else max(highest, native), control or _control(words)
    point, quiet = point or _point(parts_of_point), verb in _WRITES and not returning
    ours = touched(sql, _tokens)
    is_special = bool(control or point or ours or not single)
    return Statement("".join(parts), names, count, control, single, quiet, point, ours, is_special)


def _control(words: list[str]) -> str:
    """Which word, if any, would begin or end a transaction. Going back to a savepoint does not."""
    if not words or (words[0] == "ROLLBACK" and "TO" in words):
        return ""
    if words[0] in (*_CONTROL, "ROLLBACK") or words[:2] == ["PREPARE", "TRANSACTION"]:
        return words[0]
    return ""


def _point(parts: list[str]) -> tuple[str, str] | None:
    """Return the verb and the name of a statement about a savepoint."""
    words = [part.upper() for part in parts]
    verb, name = words[0] if words else "", parts[1:]
    if verb == "ROLLBACK" and "TO" in words[1:3]:
        verb, name = ROLLBACK_TO, parts[words.index("TO") + 1 :]
    elif verb not in (SAVEPOINT, RELEASE):
        return None
    if verb != SAVEPOINT and len(name) > 1 and name[0].upper() == "SAVEPOINT":
        name = name[1:]
    return verb, _name(name[0]) if len(name) == 1 else ""


def _name(part: str) -> str:
    """An identifier as the server compares it."""
    name = part[1:-1].replace('""', '"') if part.startswith('"') else part.translate(_LOWER)
    return name.encode()[:_NAME_MAX].decode("utf-8", "ignore")


def _tokens(sql: str) -> Iterator[tuple[str, str, str]]:
    """(kind, text, what is inside) from the first character to the last."""
    at = 0
    while at < len(sql):
        match = _TOKENS.match(sql, at)
        assert match is not None and match.lastgroup is not None  # the last alternative takes anything
        kind, start, at = match.lastgroup, at, match.end()
        if kind == "dollar":
            found = sql.find(match.group(), at)
            at = len(sql) if found < 0 else found + len(match.group())
        elif kind == "comment":
            kind, at = "space", _end_of_comment(sql, at)
        yield kind, sql[start:at], match[match.lastgroup]


def _end_of_comment(sql: str, at: int) -> int:
    """Comments nest."""
    depth = 1
    while depth and (match := _COMMENT.search(sql, at)):
        depth += 1 if match.group() == "/*" else -1
        at = match.end()
    return len(sql) if depth else at
