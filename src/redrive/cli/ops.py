"""`redrive ops`: what was done to many letters at once, what came of it, and how to stop it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.program import app_option, confirm, json_option, opened, reads, store_option, yes_option
from redrive.cli.receipt import exit_code, one_line, operation_json, pace_of, report, say_held
from redrive.cli.render import ago, emit_json, plural, table
from redrive.replay.bulk import AUTOMATIC

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class _Ops(click.Group):
    """A number instead of a command shows that operation."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from redrive.cli.completion import complete

        return super().shell_complete(ctx, incomplete) + complete("operations", ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0].isascii() and args[0].isdecimal():
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_Ops, invoke_without_command=True)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="Operations per page.")
@click.option("--before", default=2**62, type=click.IntRange(1), metavar="N", help="The page before this one.",
              show_default=False)  # fmt: skip
@reads
@click.pass_context
def ops(context: click.Context, limit: int, before: int, store: str | None, program: str | None, as_json: bool) -> int:
    """Bulk operations, the newest first; `redrive ops N` shows one."""
    if context.invoked_subcommand is not None:
        return 0
    with opened(store, program) as app:
        found, now = app.operate().bulk.recent(before, limit), app.runtime.env.clock.now()
    if as_json:
        emit_json([operation_json(one) for one in found])
        return 0
    if not found:
        click.echo("no operations yet: replays, discards and edits of letters leave them")
        return 0
    rows = [
        (one.id, ago(one.at, now), one.who, one.action, one.state, one.selected, one.applied, one.failed, one.skipped)
        for one in found
    ]
    columns = (">op", "when", "who", "action", "state", ">selected", ">applied", ">failed", ">skipped")
    table(columns, rows, keep=("state",))
    if len(found) == limit:
        click.echo(f"\nnext page: --before {found[-1].id}")
    return 0


@ops.command(hidden=True)
@click.argument("number", metavar="N", type=click.IntRange(1, 2**62))
@reads
def show(number: int, store: str | None, program: str | None, as_json: bool) -> int:
    """One operation with its receipt."""
    with opened(store, program) as app:
        desk = app.operate()
        operation = desk.bulk.get(number)
        report(desk.bulk, operation, as_json)
        if not as_json:
            held = desk.holds.keeping(desk.bulk.open_letters(number)) if operation.waiting else {}
            say_held(held, err=False)
            if operation.waiting > len(held):
                pace_of(app, operation)
    if operation.state == "interrupted" and not as_json:
        click.echo(f"its command ended early: `redrive ops resume {number}` asks for the rest")
    return exit_code(operation)


@ops.command()
@click.argument("number", metavar="N", type=click.IntRange(1, 2**62))
@yes_option
@store_option
@app_option
@json_option
def cancel(number: int, yes: bool, store: str | None, program: str | None, as_json: bool) -> int:
    """Take back what an operation asked for and has not run yet; it is dead again."""
    with opened(store, program) as app:
        bulk = app.operate().bulk
        open_ = bulk.get(number)
        left = open_.waiting + open_.unasked
        if left:
            confirm(f"Cancel operation {number}: take back {plural(left, 'letter')} of {open_.selected:,}?", yes)
        operation = bulk.cancel(number) if left else open_
    if as_json:
        emit_json(operation_json(operation))
    else:
        click.echo(f"operation {number}: {one_line(operation)}" if left else "it has ended: nothing to take back")
    return 0


@ops.command()
@click.argument("number", metavar="N", type=click.IntRange(1, 2**62))
@store_option
@app_option
@json_option
def resume(number: int, store: str | None, program: str | None, as_json: bool) -> int:
    """Ask for what an interrupted command had not come to."""
    with opened(store, program) as app:
        desk = app.operate()
        operation = desk.bulk.get(number)
        deeds = {"replay": desk.letters.replay, "discard": desk.letters.discard, "resolve": desk.letters.resolve}
        deed = deeds.get(operation.action)
        if deed is None:
            raise click.UsageError(f"an interrupted {operation.action} cannot be resumed: run the command again")
        if operation.cancelled:
            raise click.UsageError(f"operation {number} was cancelled")
        if operation.who == AUTOMATIC:
            raise click.UsageError("an automatic replay goes on by itself while a worker runs; `cancel` ends it")
        desk.bulk.ask(number, lambda rows, ticket: deed(rows, operation.reason, within=ticket))
        operation = desk.bulk.get(number)
        report(desk.bulk, operation, as_json)
    return exit_code(operation)
