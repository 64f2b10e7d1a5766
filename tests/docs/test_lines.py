"""What pages say in passing is true as well: commands named in a sentence exist, and no block goes unchecked."""

from __future__ import annotations

import configparser
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from redrive.cli import cli
from redrive.cli.reference import commands

ROOT = Path(__file__).parent.parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)

# Each kind of block, and who looks after it.
CHECKED = {
    "python": "tests/test_docs.py, tests/test_examples.py, tests/testing: run",
    "sh": "test_commands.py: typed",
    "toml": "below, and tests/test_settings.py",
    "ini": "below",
    "sql": "tests/postgres/test_role.py: run by the server",
    "dockerfile": "below",
    "mermaid": "drawn from the tables by scripts/draw_state_machines.py",
    "text": "made from the commands by redrive.cli.reference",
    "": "pictures and output",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(language: str) -> list[str]:
    return [text for page in PAGES for kind, text in BLOCK.findall(page.read_text("utf-8")) if kind == language]


def check_line(line: str) -> None:
    """Does it name a command that exists, with options that the command has?"""
    known = commands(cli)
    names = [name for name in known if f"{line} ".startswith(f"{name} ")]
    assert names, f"{line}: there is no such command"
    given = set(re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", line))
    accepted = {name for parameter in (*known[max(names, key=len)].params, *cli.params) for name in parameter.opts}
    assert given <= accepted | {"--help", "--version", "--debug"}, f"{line}: {given - accepted}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_command_that_a_sentence_names_exists(page: Path) -> None:
    text = BLOCK.sub("", page.read_text("utf-8"))
    groups = {f"redrive {name}" for name in ("dlq", "ops", "config", "scheduled", "breaker", "rules")}
    for line in re.findall(r"`(redrive [a-z][^`]*)`", text):
        words = line.split()
        if re.sub(r" \[[A-Z]+\]$", "", line) in groups or words[1:2] == ["COMMAND"]:
            continue
        check_line(line)


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    found = {(name_of(page), kind) for page in PAGES for kind, _ in BLOCK.findall(page.read_text("utf-8"))}
    assert [one for one in sorted(found) if one[1] not in CHECKED] == []


def test_no_command_hides_in_a_block_that_nobody_types() -> None:
    command = re.compile(r"^(?:\w+=\S+ )*(?:redrive|pip|python|systemctl|psql|\./run\.sh) ", re.MULTILINE)
    for page in PAGES:
        for kind, text in BLOCK.findall(page.read_text("utf-8")):
            assert kind != "text" or page.name == "cli-reference.md", name_of(page)
            assert kind or not command.search(text), f"{name_of(page)}:\n{text}"


def test_every_python_block_outside_the_guide_is_an_example() -> None:
    """Those of the guide are run as one program per page."""
    for page in PAGES:
        if page.parent.name != "guide" and page.name != "README.md":
            assert "```python" not in page.read_text("utf-8"), name_of(page)


def test_the_configuration_files_can_be_read_and_name_real_commands() -> None:
    for text in blocks("toml"):
        assert tomllib.loads(text)
    for text in blocks("ini"):
        service = configparser.ConfigParser(strict=False)
        service.optionxform = str  # type: ignore[assignment, method-assign]
        service.read_string(text)
        words = shlex.split(service["Service"]["ExecStart"])
        assert words[0].endswith("/redrive")
        check_line(shlex.join(["redrive", *words[1:]]))
    for text in blocks("dockerfile"):
        command = re.search(r"^CMD \[(.*)\]$", text, re.MULTILINE)
        assert command is not None
        check_line(" ".join(re.findall(r'"([^"]*)"', command[1])))


def test_every_table_of_the_store_is_on_the_map() -> None:
    schema = (ROOT / "src" / "redrive" / "store" / "sqlite" / "schema.sql").read_text("utf-8")
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    tables = re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(redrive_\w+)", schema)
    assert len(tables) > 10
    assert [table for table in tables if f"`{table}`" not in text] == []


def test_every_command_shows_help_that_fits_a_terminal() -> None:
    for name, command in commands(cli).items():
        names = ["-h", "--help"]  # as the group has them; click remembers what it was asked with first
        context = click.Context(command, info_name=name, max_content_width=80, help_option_names=names)
        shown = command.get_help(context)
        assert max(map(len, shown.splitlines())) <= 80, name
