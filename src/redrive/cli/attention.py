"""`--check` of `status`, `dlq` and `doctor`: what needs an operator, with an exit code of its own for monitoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from redrive.cli.render import emit_json, plain, say

if TYPE_CHECKING:
    from redrive.replay.attention import Need

NEEDED = 4  # the exit code if something needs an operator
check_option = click.option(
    "--check", is_flag=True, help="Only tell what needs an operator; exit code 4 if anything does, for monitoring."
)


def report_needs(needs: Sequence[Need], as_json: bool) -> int:
    """Print what needs an operator, and return the exit code."""
    if as_json:
        emit_json({"ok": not needs, "needs": [asdict(one) for one in needs]})
    elif not needs:
        click.echo("nothing needs an operator")
    for one in () if as_json else needs:
        say(f"{one.check}: {plain(one.message)}")
        say(f"-> {plain(one.advice)}", "   ")
    return NEEDED if needs else 0
