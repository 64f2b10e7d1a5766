"""`redrive scheduled`: events that are appended later, and how to take one back."""

from __future__ import annotations

from typing import Any

import click

from redrive.cli.program import app_option, json_option, opened, reads, store_option
from redrive.cli.render import clock_time, emit_json, moment, plural, say, table
from redrive.units import show_duration


class _Scheduled(click.Group):
    """What is no command is the name of a log to list."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Scheduled)
def scheduled() -> None:
    """Events that are appended later; without a command they are listed."""


@scheduled.command("list")
@click.argument("log", required=False)
@click.option("--key", metavar="KEY", help="Only events of this key.")
@click.option("--type", "kind", metavar="TYPE", help="Only events of this type.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 100_000), help="How many at most.")
@reads
def list_(
    log: str | None, key: str | None, kind: str | None, limit: int, store: str | None, program: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """What waits for its time, the next one first."""
    from redrive.replay.scheduled import Sought, waiting

    with opened(store, program) as app:
        operator = app.operate().operator
        found, now = waiting(operator.store, Sought(log, key, kind), limit), operator.now()
    if as_json:
        emit_json([_fields(one) for one in found])
        return 0
    if not found:
        click.echo("nothing is scheduled" if log is None and key is None and kind is None else "no such event waits")
        return 0
    rows = [(clock_time(one.due_at), _left(one.due_at, now), one.log, one.type, one.key or "", one.id) for one in found]
    table(("due", "in", "log", "type", "key", "id"), rows, keep=("due", "id"))
    if len(found) == limit:
        click.echo(f"\nthe next {limit}; --limit shows more")
    return 0


@scheduled.command()
@click.argument("event_id", metavar="ID")
@click.option("--log", metavar="LOG", help="The log, if several wait for an event of this id.")
@click.option("--reason", required=True, help="Why; goes into the audit.")
@store_option
@app_option
@json_option
def cancel(event_id: str, log: str | None, reason: str, store: str | None, program: str | None, as_json: bool) -> int:
    """Take a scheduled event back: it will not be appended."""
    from redrive.replay.scheduled import cancel as take_back

    with opened(store, program) as app:
        operator = app.operate().operator
        one = take_back(operator, event_id, reason, log)
    if as_json:
        emit_json(_fields(one))
    else:
        say(f"cancelled {one.id}: {one.type} will not be appended to {one.log}")
    return 0


def backlog_lines(backlog: Any, now: float) -> list[str]:
    """What `redrive status` says of it."""
    lines = []
    for one in backlog:
        late = f"{one.overdue:,} of them overdue" if one.overdue else f"the next in {_left(one.next_at, now)}"
        lines.append(f"{one.log}: {plural(one.scheduled, 'event')} scheduled, {late}")
    return lines


def _left(due_at: float, now: float) -> str:
    return show_duration(round(due_at - now, 1)) if due_at > now else "overdue"


def _fields(one: Any) -> dict[str, Any]:
    """The documented fields."""
    return {
        "log": one.log, "id": one.id, "type": one.type, "key": one.key, "due": moment(one.due_at),
        "scheduled": moment(one.set_at), "bytes": one.bytes,
    }  # fmt: skip
