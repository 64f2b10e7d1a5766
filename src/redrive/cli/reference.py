"""The reference page of the command line, made from the commands themselves: `python -m redrive.cli.reference`."""

from __future__ import annotations

import click

HEAD = """# Command line reference

Made from the commands by `python -m redrive.cli.reference`; what they are for is told in [Command line](cli.md).
"""


def commands(group: click.Group, path: str = "redrive") -> dict[str, click.Command]:
    """Every command that does something, by its full name; hidden ones are for those who know them."""
    context = click.Context(group)
    found: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        if not isinstance(command, click.Group) or command.invoke_without_command:
            found[f"{path} {name}"] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{path} {name}")
    return found


def page(group: click.Group) -> str:
    """The whole page."""
    return HEAD + "".join(_section(name, command) for name, command in commands(group).items())


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])  # click remembers them
    usage = " ".join(command.collect_usage_pieces(context))
    words = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    rows = [
        record
        for parameter in command.params
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context))
    ]
    options = "".join(f"| `{option}` | {text} |\n" for option, text in rows)
    table = f"\n| option | |\n|---|---|\n{options.replace('|  |', '| |')}" if rows else ""
    return f"\n## {name}\n\n```text\n{name} {usage}\n```\n\n{words}\n{table}"


if __name__ == "__main__":
    from redrive.cli import cli

    click.echo(page(cli), nl=False)
