"""The page about the command line says what the command line can do, and its field tables are complete."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from redrive.cli import cli
from redrive.cli.reference import commands, page
from redrive.replay.ledger import Verdict, Violation
from redrive.replay.shelf import Attempt, Deed
from redrive.replay.status import SubscriptionStatus

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide"
PAGE = (GUIDE / "cli.md").read_text(encoding="utf-8")
REFERENCE = (GUIDE / "cli-reference.md").read_text(encoding="utf-8")


def test_the_reference_is_what_the_commands_say() -> None:
    assert page(cli) == REFERENCE, "run: python -m redrive.cli.reference > docs/guide/cli-reference.md"


@pytest.mark.parametrize("name", commands(cli))
def test_every_command_is_on_the_page(name: str) -> None:
    assert f"`{name}" in PAGE


def test_every_command_line_on_the_page_is_one_that_exists() -> None:
    known = commands(cli)
    lines = [line.split("#")[0].strip() for line in PAGE.splitlines() if line.startswith("redrive ")]
    assert len(lines) > 8
    for line in lines:
        name = max((known_name for known_name in known if f"{line} ".startswith(f"{known_name} ")), key=len)
        given = re.findall(r"\s(--[a-z-]+|-s)\b", line)
        accepted = {option for parameter in known[name].params for option in parameter.opts}
        assert set(given) <= accepted, line


def names_of(cls: Any) -> list[str]:
    return list(cls._fields) if hasattr(cls, "_fields") else [field.name for field in fields(cls)]


@pytest.mark.parametrize("cls", [SubscriptionStatus, Verdict, Violation, Attempt, Deed])
def test_every_field_is_documented(cls: Any) -> None:
    assert [name for name in names_of(cls) if f"`{name}`" not in PAGE] == []
