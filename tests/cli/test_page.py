"""The page about the command line says what the command line can do, and its field tables are complete."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from redrive.cli import cli
from redrive.replay.ledger import Verdict, Violation
from redrive.replay.shelf import Attempt, Deed
from redrive.replay.status import SubscriptionStatus

PAGE = (Path(__file__).parent.parent.parent / "docs" / "guide" / "cli.md").read_text(encoding="utf-8")


def commands(group: click.Group, prefix: str = "redrive") -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        inner = commands(command, f"{prefix} {name}") if isinstance(command, click.Group) else {}
        found |= inner or {f"{prefix} {name}": command}
    return found


@pytest.mark.parametrize("name", commands(cli))
def test_every_command_and_option_is_on_the_page(name: str) -> None:
    assert f"`{name}" in PAGE
    options = [option for parameter in commands(cli)[name].params for option in parameter.opts if "--" in option]
    missing = [option for option in options if not re.search(rf"{option}\b", PAGE) and option != "--subscription"]
    assert missing == []


def test_every_command_line_on_the_page_is_one_that_exists() -> None:
    known = commands(cli)
    lines = [line.split("#")[0].strip() for line in PAGE.splitlines() if line.startswith("redrive ")]
    assert len(lines) > 8
    for line in lines:
        name = next(known_name for known_name in known if line.startswith(known_name))
        given = re.findall(r"\s(--[a-z-]+|-s)\b", line)
        accepted = {option for parameter in known[name].params for option in parameter.opts}
        assert set(given) <= accepted, line


def names_of(cls: Any) -> list[str]:
    return list(cls._fields) if hasattr(cls, "_fields") else [field.name for field in fields(cls)]


@pytest.mark.parametrize("cls", [SubscriptionStatus, Verdict, Violation, Attempt, Deed])
def test_every_field_is_documented(cls: Any) -> None:
    assert [name for name in names_of(cls) if f"`{name}`" not in PAGE] == []
