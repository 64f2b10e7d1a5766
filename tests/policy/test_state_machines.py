"""docs/state-machines.md is drawn, current and complete."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, get_args

import pytest

from redrive.policy import breaker, halting, lease, letters
from redrive.policy.action import Action
from redrive.policy.outcome import Outcome

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "state-machines.md"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "draw_state_machines.py"))


def test_the_page_is_what_the_script_draws(script: dict[str, Any]) -> None:
    assert PAGE.read_text(encoding="utf-8") == script["page"](), "run scripts/draw_state_machines.py"


@pytest.mark.parametrize("machine", [letters, lease, halting, breaker], ids=lambda module: module.__name__)
def test_every_step_of_every_table_is_on_the_page(script: dict[str, Any], machine: Any) -> None:
    for (before, verb), after in machine.TRANSITIONS.items():
        assert f"| `{before}` | **{verb}** | `{after}` |" in script["page"]()


def test_every_outcome_has_a_decision_on_the_page(script: dict[str, Any]) -> None:
    assert {type(outcome) for _, outcome, _ in script["DECISIONS"]} == set(get_args(Outcome))


@pytest.mark.parametrize("action", get_args(Action), ids=lambda kind: kind.__name__)
def test_every_action_is_on_the_page(script: dict[str, Any], action: type) -> None:
    assert f"**{action.__name__}**" in script["page"]()
