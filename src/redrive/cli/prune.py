"""`redrive prune`: delete what is settled and old."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.program import app_option, confirm, json_option, opened, store_option, yes_option
from redrive.cli.progress import progress, quiet_option
from redrive.cli.render import block, emit_json, moment, plain, plural

if TYPE_CHECKING:
    from redrive.replay.prune import PrunePlan


def _age(context: click.Context, parameter: click.Parameter, given: str) -> float:
    from redrive.units import duration

    try:
        return duration(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.option(
    "--older-than", default="30d", show_default=True, callback=_age, metavar="TIME",
    help="What was settled, or happened, longer ago than this.",
)  # fmt: skip
@click.option("-s", "--subscription", metavar="NAME", help="Only letters of this subscription.")
@click.option("--events", "logs", multiple=True, metavar="LOG", help="Events of this log, too; may be repeated.")
@click.option(
    "--no-rebuild", multiple=True, metavar="NAME", help="With --events: this one need never be rebuilt again."
)
@click.option("--no-mirror", multiple=True, metavar="NAME", help="This mirror of letters need not have what goes.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("--reason", default="", help="Why; goes into the audit.")
@quiet_option
@yes_option
@store_option
@app_option
@json_option
def prune(
    older_than: float, subscription: str | None, logs: tuple[str, ...], no_rebuild: tuple[str, ...],
    no_mirror: tuple[str, ...], dry_run: bool, reason: str, quiet: bool, yes: bool, store: str | None,
    program: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Delete what is settled and old.

    Letters that were applied or superseded go, with their attempts and journal. A discarded letter loses its history
    and keeps its row: it is what keeps its event out of a rebuild. Open letters, edits and the audit stay.

    --events deletes a log's oldest events, below what every subscription has read and below every open letter. Kept
    are the newest event of each key, because versions count on from it, and all that a projection or a handler with
    keyed state would need to be rebuilt, unless --no-rebuild NAME gives that up for good. Discarded letters and edits
    of deleted events go with them. An event with the id of a deleted one would be a new event; with --app the broker
    of the log is asked whether it would give some of them again, and a warning says how many.

    What a mirror of letters lacks stays, unless --no-mirror NAME says that it need not have it.

    `redrive verify` stays sound. The file keeps its size; the room in it is used again.
    """
    if no_rebuild and not logs:
        raise click.UsageError("--no-rebuild goes with --events LOG")
    if subscription and logs:
        raise click.UsageError("-s is about letters alone: --events concerns everybody who reads the log")
    from redrive.replay.prune import What

    what = What(older_than, subscription, logs, no_rebuild, no_mirror)
    with opened(store, program) as app:
        desk = app.operate()
        plan = desk.plan_prune(what)
        if dry_run or plan.nothing:
            _report(plan, done=False, as_json=as_json)
            return 0
        if not as_json:
            _say(plan)
        confirm("Delete this for good?" if not as_json else f"{'; '.join(_lines(plan))}: delete for good?", yes)
        with progress("prune", "letters and events", quiet=quiet or as_json) as show:
            done = desk.prune(what, plan, reason, show)
    _report(done, done=True, as_json=as_json)
    return 0


def _report(plan: PrunePlan, *, done: bool, as_json: bool) -> None:
    if as_json:
        emit_json(_json(plan, done))
    elif plan.nothing:
        click.echo("nothing to prune")
        _say(plan)
    elif done:
        click.echo("deleted:")
        _say(plan)
    else:
        click.echo("would be deleted:")
        _say(plan)


def _say(plan: PrunePlan) -> None:
    for line in _lines(plan):
        block(line)


def _lines(plan: PrunePlan) -> list[str]:
    lines = [
        f"{plural(plan.applied, 'applied letter')}, {plural(plan.superseded, 'superseded letter')}",
        f"the history of {plural(plan.emptied, 'discarded letter')}",
        f"with {plural(plan.attempts, 'attempt')} and {plural(plan.journal, 'journal row')}",
    ] if plan.applied or plan.superseded or plan.emptied else []  # fmt: skip
    if plan.unmirrored:
        lines.append(f"({plural(plan.unmirrored, 'letter')} more, when they are mirrored)")
    for one in plan.events:
        letters = f", {plural(one.letters, 'discarded letter')}" if one.letters else ""
        lines.append(f"{plural(one.events, 'event')} of log {plain(one.log)}{letters}, up to position {one.upto}")
        lines.append(f"  (no further: {one.held_by})")
        if one.warning:
            lines.append(f"  WARNING: {plain(one.warning)}")
    return lines


def _json(plan: PrunePlan, done: bool) -> dict[str, Any]:
    return {
        "done": done, "before": moment(plan.before), "applied": plan.applied, "superseded": plan.superseded,
        "emptied": plan.emptied, "attempts": plan.attempts, "journal": plan.journal,
        "unmirrored": plan.unmirrored,
        "events": [
            {"log": one.log, "upto": one.upto, "events": one.events, "letters": one.letters, "held_by": one.held_by,
             "unacknowledged": one.unacknowledged, "warning": one.warning}
            for one in plan.events
        ],
    }  # fmt: skip
