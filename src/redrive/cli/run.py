"""`redrive run`: a worker process for an app."""

from __future__ import annotations

import click

from redrive.cli.program import opened, store_option
from redrive.cli.render import plain


def names(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """`--only a --only b` and `--only a,b` mean the same."""
    found = tuple(name.strip() for text in given for name in text.split(",") if name.strip())
    if given and not found:  # a variable that is not set: it would run everything
        raise click.UsageError(f"{parameter.opts[0]} is empty: name subscriptions, or leave it out")
    return found


@click.command()
@click.argument("program", metavar="MODULE:APP")
@click.option("--only", multiple=True, metavar="NAME", callback=names, help="Run just these subscriptions.")
@click.option("--except", "exclude", multiple=True, metavar="NAME", callback=names, help="Run all but these.")
@click.option("--until-idle", is_flag=True, help="Stop when nothing is left to do.")
@click.option("--strict", is_flag=True, help="Start nothing if one subscription does not fit the store.")
@store_option
def run(
    program: str, only: tuple[str, ...], exclude: tuple[str, ...], until_idle: bool, strict: bool, store: str | None
) -> int:
    """Run an app's subscriptions until SIGTERM or Ctrl-C.

    The first signal stops gracefully, the second at once; neither loses anything. A subscription that does not fit the
    store, such as a projection with a changed table, is halted; the others run.
    """
    from redrive.errors import Halted
    from redrive.runner.process import run_process
    from redrive.runner.supervise import IDLE

    with opened(store, program, create=True) as app:
        try:
            why = run_process(app, until_idle=until_idle, only=only or None, exclude=exclude, strict=strict)
        except Halted as error:
            for name, reason in error.subscriptions.items():
                click.echo(f"redrive: {plain(name)} is halted: {plain(reason)}", err=True)
            return 1
        if not until_idle:
            return 0
        if why != IDLE:
            click.echo(f"redrive: stopped before everything was done: {plain(why)}", err=True)
            return 1
        halted = [
            one for one in app.operate().status() if one.halted is not None and one.subscription in app.subscriptions
        ]
        for one in halted:
            click.echo(f"redrive: {plain(one.subscription)} is halted: {plain(one.halted)}", err=True)
        return 1 if halted else 0
