"""The receipt of a bulk operation: selected = applied + failed + skipped, and what is still under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.render import block, emit_json, moment, plural, say

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.replay.bulk import BulkDesk, Operation

HELD_SHOWN = 5  # holds that are named
SHOWN = 10  # letters that were skipped or failed; --json has the first thousand
PARTS = ("applied", "failed", "skipped", "waiting", "unasked")


def report(bulk: BulkDesk, operation: Operation, as_json: bool) -> None:
    """Print it."""
    shown = 1000 if as_json else SHOWN + 1
    bad = [one for result in ("failed", "skipped") for one in bulk.results(operation.id, result, limit=shown)]
    if as_json:
        emit_json(operation_json(operation) | {"letters": [asdict(one) for one in bad]})
        return
    click.echo(f"operation {operation.id}: {one_line(operation)}")
    for one in bad[:SHOWN]:
        block(f"letter {one.letter} {one.result}: {one.why}")
    if len(bad) > SHOWN:
        click.echo(f"  … `redrive ops {operation.id} --json` lists all of them")


def report_nothing(app: App, action: str, reason: str, as_json: bool, nothing: str) -> int:
    """Nothing was selected: say so, and leave no operation; the exit code is 0."""
    if not as_json:
        say(nothing)
        return 0
    from redrive.replay.bulk import Operation

    operator = app.operate().operator
    now = operator.now()
    empty = Operation(0, action, operator.who, reason, now, 0, None, now, False, 0, 0, 0, 0, 0)
    emit_json(operation_json(empty) | {"id": None, "letters": []})
    return 0


def say_held(held: Mapping[int, str], *, err: bool = True) -> None:
    """Say which holds keep letters of a replay back: by letter, who holds its key and why."""
    for why, count in Counter(held.values()).most_common(HELD_SHOWN):
        waits = "waits: its key is" if count == 1 else "wait: their keys are"
        say(f"{plural(count, 'letter')} {waits} {why}", "" if err else "  ", err=err)


def pace_of(app: App, operation: Operation) -> None:
    """Say what bounds the letters of a replay that have not run yet."""
    from redrive.replay.bulk import AUTOMATIC

    if operation.action != "replay" or not operation.waiting:
        return
    budget = f"retry budget, {app.runtime.settings.retry_budget:g} a second (setting retry_budget)"
    if operation.who == AUTOMATIC:
        say(f"they run as the rule for automatic replay says, within the {budget}", "  ")
    elif operation.rate is not None:
        say(
            f"they run at {operation.rate:g} a second at most, as --rate says; the retry budget does not bound them",
            "  ",
        )
    else:
        say(f"letters of handlers run within the {budget}; --rate N/s takes its place", "  ")


def one_line(operation: Operation) -> str:
    """`3,000 selected = 2,990 applied + 10 failed`."""
    parts = [f"{getattr(operation, name):,} {name}" for name in PARTS if getattr(operation, name)]
    return f"{operation.selected:,} selected = {' + '.join(parts) or 'nothing'}"


def operation_json(operation: Operation) -> dict[str, Any]:
    """Its documented fields."""
    times = {"at": moment(operation.at), "ended_at": moment(operation.ended_at)}
    return {**asdict(operation), **times, "state": operation.state}


def exit_code(operation: Operation) -> int:
    """1 if nothing was done at all, 3 if some was not, else 0."""
    if operation.skipped and operation.skipped == operation.selected:
        return 1
    return 3 if operation.failed or operation.skipped else 0
