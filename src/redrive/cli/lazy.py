"""Groups whose commands are imported when they are asked for: `redrive status` need not load what replays.

What each is for stands beside its place, once more: to list them would be to load all there is.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COMPLETING = "_REDRIVE_COMPLETE"  # how the shell asks; the name is click's

# What people type who know another system, or our words better than our commands.
_OTHER_WORDS = {
    "letters": "dlq", "letter": "dlq", "dead": "dlq", "failed": "dlq", "errors": "dlq", "queues": "status",
    "lag": "status", "subscriptions": "status", "health": "doctor", "worker": "run", "serve": "run", "start": "run",
    "inspect": "show", "retry": "replay", "requeue": "replay", "redrive": "replay",
    "delete": "discard",
}  # fmt: skip


class Commands(click.Group):
    """Commands by name, each `module:attribute` of this package; one that is mistyped gets the nearest named."""

    def __init__(
        self,
        *arguments: Any,
        table: Mapping[str, tuple[str, str]],
        titles: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Take the commands by name: the place of each, and the first sentence of its help; "" if it is not listed.

        `titles` divides the list into sections: by the command that a section begins with, its title.
        """
        super().__init__(*arguments, **options)
        self._table = table
        self._titles = titles or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one."""
        if cmd_name not in self._table:
            return None
        module, _, name = self._table[cmd_name][0].partition(":")
        found: click.Command = getattr(importlib.import_module(f"redrive.cli.{module}"), name)
        if _COMPLETING in os.environ:  # the shell asks what could stand here
            from redrive.cli.completion import attach

            return attach(found)
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing any, and options as click does."""
        from click.shell_completion import CompletionItem

        listed = {name: text for name, (_, text) in self._table.items() if text and name.startswith(incomplete)}
        found = [CompletionItem(name, help=text) for name, text in listed.items()]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does it, in sections with a title each, without importing any."""
        listed = {name: text for name, (_, text) in self._table.items() if text}
        longest = max(map(len, listed))
        room = formatter.width - 6 - longest
        sections: list[tuple[str, list[tuple[str, str]]]] = []
        for name, text in listed.items():
            if name in self._titles or not sections:
                sections.append((self._titles.get(name, "Commands"), []))
            short = click.Command(name, help=text).get_short_help_str(room)
            sections[-1][1].append((name.ljust(longest), short))
        for title, rows in sections:
            with formatter.section(title):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a line, or say which one was probably meant."""
        from difflib import get_close_matches

        if args and self.get_command(ctx, args[0]) is None:
            meant = _OTHER_WORDS.get(args[0])
            near = [meant] if meant in self._table else get_close_matches(args[0], self._table, 1)
            hint = f"did you mean {near[0]}?" if near else f"`{ctx.command_path} --help` lists them"
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)
