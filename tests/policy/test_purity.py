"""`policy/` decides and does nothing else: it cannot, because it imports nothing to do it with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import redrive.policy

MODULES = sorted(Path(redrive.policy.__path__[0]).glob("*.py"))
EFFECTFUL = {"time", "random", "asyncio", "logging", "threading", "os", "sqlite3", "socket", "secrets", "subprocess"}
OURS = ("redrive.errors", "redrive.options", "redrive.units", "redrive.policy")


def imported(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_policy_module_has_no_clock_no_dice_no_files_and_no_loop(module: Path) -> None:
    assert not {name.partition(".")[0] for name in imported(module)} & EFFECTFUL


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_policy_module_knows_nothing_of_the_rest_of_redrive(module: Path) -> None:
    assert all(name.startswith(OURS) for name in imported(module) if name.startswith("redrive"))


def test_the_modules_are_found() -> None:
    assert {"decide", "retry", "rules"} <= {module.stem for module in MODULES}
