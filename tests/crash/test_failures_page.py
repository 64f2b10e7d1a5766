"""`docs/failures.md` names a test for each failure: the tests exist, and no failpoint is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from redrive.failpoints import NAMES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "failures.md").read_text("utf-8")


def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_failure_names_a_test_that_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) >= 30
    assert [(path, name) for path, name in named if name not in functions_of(path)] == []


def test_each_row_of_the_page_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 4]
    silent = [row for row in rows if "shown by" not in row and "`tests/" not in row]
    assert silent == []


def test_each_failpoint_is_on_the_page() -> None:
    assert [name for name in NAMES if f"`{name}`" not in PAGE] == []
