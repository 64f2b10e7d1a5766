"""Commands are listed without being loaded, in their own words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from redrive.cli import cli
from redrive.cli.lazy import Commands


def groups(group: click.Group, path: str = "redrive") -> Iterator[tuple[str, Commands]]:
    """Every group that loads its commands when they are asked for."""
    if isinstance(group, Commands):
        yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(command, f"{path} {name}")


@pytest.mark.parametrize(("path", "group"), [pytest.param(*found, id=found[0]) for found in groups(cli)])
def test_what_is_listed_of_a_command_is_what_it_says_of_itself(path: str, group: Commands) -> None:
    context = click.Context(group)
    for name, (_, text) in group._table.items():
        command = group.get_command(context, name)
        assert command is not None
        assert text == ("" if command.hidden else command.get_short_help_str(10_000)), f"{path} {name}"


@pytest.mark.parametrize("width", [50, 80, 200])
@pytest.mark.parametrize(("path", "group"), [pytest.param(*found, id=found[0]) for found in groups(cli)])
def test_they_are_listed_as_click_would(path: str, group: Commands, width: int) -> None:
    context = click.Context(group)
    ours, clicks = click.HelpFormatter(width=width), click.HelpFormatter(width=width)
    group.format_commands(context, ours)
    click.Group.format_commands(group, context, clicks)
    titles = {f"{title}:" for title in ("Commands", *group._titles.values())}
    rows = [line for line in ours.getvalue().splitlines() if line and line not in titles]
    assert rows == clicks.getvalue().splitlines()[1:] != []


def test_help_lists_every_command_under_a_title() -> None:
    """A command that another part adds to the table appears in the section that it stands in."""
    assert isinstance(cli, Commands)
    listed = [name for name, (_, text) in cli._table.items() if text]
    assert listed[0] in cli._titles and set(cli._titles) <= set(listed)
    help_text = cli.get_help(click.Context(cli, info_name="redrive", max_content_width=80))
    sections = [line[:-1] for line in help_text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert sections == ["Options", *cli._titles.values()]
    under = help_text.split("Failed events:\n")[1].split("\n\n")[0]
    assert [line.split()[0] for line in under.splitlines()] == ["dlq", "ops", "lanes"]
    assert max(map(len, help_text.splitlines())) <= 80


def test_help_uses_a_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, shown in (("80", "without --key, list...\n"), ("120", "without --key, list what is held.\n")):
        monkeypatch.setenv("COLUMNS", columns)
        told = cli.get_help(click.Context(cli, info_name="redrive", **cli.context_settings))
        assert shown in told
        assert max(map(len, told.splitlines())) <= int(columns)


def test_help_loads_no_command() -> None:
    program = (
        "import sys; from redrive.cli import cli; cli.main(['--help'], standalone_mode=False); "
        "print(sorted(name for name in sys.modules if name.startswith(('redrive.cli.', 'asyncio', 'redrive.replay'))))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "['redrive.cli.lazy', 'redrive.cli.render']"
