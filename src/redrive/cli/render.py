"""What reaches the terminal: tables of at most its width, times, JSON, and no character that could steer it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import click

WIDTH, WIDTH_MAX = 80, 160  # without a terminal; on a wide one, since a table over a whole wall is not read
CELL_MAX = 1000  # characters of a cell that are looked at; more is never shown
KEPT_WIDTH = 24  # cells that a kept column may have before it is cut like others
CUT_WELL = 16  # cells of a text that are still worth a column
CUT_MIN = 6
GAP = "  "


def plain(text: object) -> str:
    r"""Text as it may be shown: control, bidi and invisible characters are written out.

    >>> plain("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(one if one.isprintable() else _escaped(one) for one in shown)


def _escaped(character: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    code = ord(character)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    keep: Sequence[str] = (),
    empty: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> None:
    """Print rows under their columns, within the terminal's width.

    `>name` is right-aligned. If the line is too wide even when its texts are cut to `CUT_WELL`, columns are left out in
    this order until it fits: those in `empty` that hold only zeros or nothing, then those in `drop`. The others are cut
    where they are widest, columns in `keep` last.
    """
    cells = [[plain(str(cell)[:CELL_MAX]) for cell in row] for row in rows]
    columns, cells = _without_columns(columns, cells, keep, empty, drop)
    names = [column.lstrip(">") for column in columns]
    right = [column.startswith(">") for column in columns]
    widths = [min(WIDTH_MAX, max(map(_width, column))) for column in zip(names, *cells, strict=True)]
    _shrink(widths, [not is_right for is_right in right], [name in keep for name in names])
    click.secho(_line(names, widths, right), bold=True)
    for row in cells:
        click.echo(_line(row, widths, right))


def _without_columns(
    columns: Sequence[str], cells: list[list[str]], keep: Sequence[str], empty: Sequence[str], drop: Sequence[str]
) -> tuple[Sequence[str], list[list[str]]]:
    """Leave columns out until the line fits, or until none may go."""
    names = [column.lstrip(">") for column in columns]
    numbers = {column[1:] for column in columns if column.startswith(">")}
    says_nothing = [name for name in empty if all(row[names.index(name)] in ("", "0") for row in cells)]
    for name in (*says_nothing, *drop):
        widths = [max(map(_width, column)) for column in zip(names, *cells, strict=True)]
        for place, column in enumerate(names):
            if column not in numbers:
                most = max(len(column), KEPT_WIDTH if column in keep else CUT_WELL)
                widths[place] = min(widths[place], most)
        if sum(widths) + len(GAP) * (len(widths) - 1) <= line_width():
            break
        if name in names:
            place = names.index(name)
            columns = [*columns[:place], *columns[place + 1 :]]
            cells = [[*row[:place], *row[place + 1 :]] for row in cells]
            names.pop(place)
    return columns, cells


def _shrink(widths: list[int], flexible: list[bool], kept: list[bool]) -> None:
    """Take from the widest column that may give, one cell at a time, until the line fits."""
    columns = line_width()
    while sum(widths) + len(GAP) * (len(widths) - 1) > columns:
        giving = [
            (width - (KEPT_WIDTH if kept[index] else 0), index)
            for index, width in enumerate(widths)
            if flexible[index] and width > CUT_MIN
        ]
        if not giving:
            return
        widths[max(giving)[1]] -= 1


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    fitted = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        shown = cell if _width(cell) <= width else _cut(cell, width)
        space = " " * (width - _width(shown))
        fitted.append(space + shown if is_right else shown + space)
    return GAP.join(fitted).rstrip()


def _cut(text: str, width: int) -> str:
    while _width(text) >= width:
        text = text[:-1] if len(text) <= width else text[:width]
    return text + "…"


def _width(text: str) -> int:
    """Cells on a terminal: an ideogram takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def line_width() -> int:
    """Cells that a line may have here."""
    seen = sys.stdout is not None and sys.stdout.isatty()
    return min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH_MAX) if seen else WIDTH


@cache
def _commands() -> re.Pattern[str]:
    """A command in a hint: in backticks, or from its name on to what ends a clause."""
    from redrive.cli import COMMANDS

    names = "|".join(map(re.escape, COMMANDS))
    return re.compile(rf"`redrive [^`]*`|\bredrive (?=(?:{names})\b)(?:[^\s`]*[^\s`;,:)] )*[^\s`]+")


def wrapped(text: object, width: int, first: int | None = None) -> Iterator[str]:
    """Text in harmless lines of at most so many cells, broken at a blank if there is one; nothing is left out.

    The first line may have another width. A command stays on one line, so that it can be copied, even if that line is
    too long then.

    >>> list(wrapped("one two three", 8)), list(wrapped("say redrive status, please", 12))
    (['one two', 'three'], ['say', 'redrive status,', 'please'])
    """
    shown, start = plain(text), 0
    whole = [found.span() for found in _commands().finditer(shown)] if "redrive " in shown else []
    while start < len(shown):
        room = width if start or first is None else first
        piece = shown[start : start + room]
        while _width(piece) > room:
            piece = piece[:-1]
        end = start + len(piece)
        if end < len(shown) and shown[end] != " ":
            blank = piece.rfind(" ")
            end = start + blank if blank > room // 3 else end
        for low, high in whole:
            if low < end < high:
                before = shown.rfind(" ", start, low)
                end = before if before > start else high
        yield shown[start:end]
        start = end + (end < len(shown) and shown[end] == " ")
    if not shown:
        yield ""


def fit(text: object, width: int = WIDTH) -> str:
    """Text as it may be shown, cut to a number of cells."""
    shown = plain(text)
    return shown if _width(shown) <= width else _cut(shown, width)


def ago(seconds: float | None, now: float) -> str:
    """How long ago something was, in its largest unit: `3h ago`."""
    if seconds is None:
        return "never"
    age = max(0.0, now - seconds)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if age >= length:
            return f"{age // length:.0f}{unit} ago"
    return "just now"


def short_time(seconds: float | None) -> str:
    """A time without its year, for a column beside an age: `11-20 00:33Z`."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%MZ")


def beside(seconds: float | None, now: float) -> str:
    """A time and how long ago it was: `2026-11-20 00:33:39Z (3h ago)`."""
    return "never" if seconds is None else f"{clock_time(seconds)} ({ago(seconds, now)})"


def say(text: object, indent: str = "", *, err: bool = False) -> None:
    """Print a sentence, harmless and within the width; what is too long goes on below, two cells further in."""
    width = line_width() - len(indent)
    first, *more = wrapped(text, width - 2, width)
    click.echo(indent + first, err=err)
    for line in more:
        click.echo(f"{indent}  {line}", err=err)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Print `name  value` lines, leaving out what is empty; a long value takes several."""
    for name, value in pairs:
        if value not in (None, ""):
            first, *more = wrapped(value, line_width() - 17)
            click.echo(f"{name:<16} {first}")
            for line in more:
                click.echo(f"{'':<16} {line}")


def block(text: str, indent: str = "  ") -> None:
    """Print text of several lines, each of them harmless; what is too long goes on below, further in."""
    for line in text.splitlines():
        inner = line.lstrip(" ")
        depth = min(len(indent) + len(line) - len(inner), line_width() // 2)
        first, *more = wrapped(inner, line_width() - depth - 2)
        click.echo(" " * depth + first)
        for rest in more:
            click.echo(" " * (depth + 2) + rest)


def shortened(text: str, most: int) -> str:
    """Text without its middle if it is too long: how it begins and how it ends tells most."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-(most // 3) :]}"


def emit_json(value: Any) -> None:
    """Print JSON; everything beyond ASCII is escaped, so it is harmless anywhere."""
    click.echo(json.dumps(value, indent=2))


def moment(seconds: float | None) -> str | None:
    """A time as people and machines read it: ISO 8601 in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock_time(seconds: float | None) -> str:
    """The same, short."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def plural(count: int, noun: str) -> str:
    """`1 letter`, `2 letters`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
