"""What reaches the terminal: tables of at most its width, times, JSON, and no character that could steer it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_MAX = 160  # a table over a whole wall is no longer read as one
KEPT_WIDTH = 24  # what a folded column gets before others are cut


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


def console() -> Console:
    """Where people read; colours only on a terminal."""
    from rich.console import Console

    found = Console(highlight=False, markup=False, emoji=False)
    if found.width > WIDTH_MAX:
        found = Console(highlight=False, markup=False, emoji=False, width=WIDTH_MAX)
    return found


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, keep: Sequence[str] = ()) -> None:
    """Print rows under their columns. `>name` is right-aligned; columns in `keep` are folded, never cut."""
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(plain(cell)) for cell in row] for row in rows]
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        name, kept = column.lstrip(">"), column.lstrip(">") in keep
        longest = max([len(name), *(row[index].cell_len for row in cells)])
        made.add_column(
            name, justify="right" if column.startswith(">") else "left", no_wrap=not kept,
            overflow="fold" if kept else "ellipsis", min_width=min(longest, KEPT_WIDTH) if kept else None,
        )  # fmt: skip
    for row in cells:
        made.add_row(*row)
    console().print(made)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Print `name  value` lines, leaving out what is empty."""
    for name, value in pairs:
        if value not in (None, ""):
            click.echo(f"{name:<16} {plain(value)}")


def block(text: str, indent: str = "  ") -> None:
    """Print text of several lines, each of them harmless."""
    for line in text.splitlines():
        click.echo(indent + plain(line))


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
