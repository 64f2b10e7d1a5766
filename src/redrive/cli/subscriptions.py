"""`redrive pause`, `resume` and `seek`: stop a subscription, let it go on, send it elsewhere in its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.program import app_option, confirm, json_option, opened, store_option, yes_option
from redrive.cli.render import emit_json, line_width, plain, plural, wrapped

if TYPE_CHECKING:
    from redrive.replay.seek import Sought


@click.command()
@click.argument("names", metavar="SUBSCRIPTION...", nargs=-1, required=True)
@click.option("--reason", default="", help="Why; goes into the audit.")
@store_option
@app_option
@json_option
def pause(names: tuple[str, ...], reason: str, store: str | None, program: str | None, as_json: bool) -> int:
    """Take nothing in and retry nothing until `redrive resume`; survives restarts.

    A call that is under way is finished. Events wait in the log, letters keep their due times.
    """
    return _switch(names, reason, store, program, as_json, paused=True)


@click.command()
@click.argument("names", metavar="SUBSCRIPTION...", nargs=-1, required=True)
@click.option("--reason", default="", help="Why; goes into the audit.")
@store_option
@app_option
@json_option
def resume(names: tuple[str, ...], reason: str, store: str | None, program: str | None, as_json: bool) -> int:
    """Let a paused subscription go on where it was."""
    return _switch(names, reason, store, program, as_json, paused=False)


def _switch(
    names: tuple[str, ...], reason: str, store: str | None, program: str | None, as_json: bool, *, paused: bool
) -> int:
    from redrive.replay.deed import find

    with opened(store, program) as app:
        desk = app.operate()
        with app.runtime.store.reading() as tx:
            chosen = [find(tx, name).name for name in dict.fromkeys(names)]  # all of them are there, or none is touched
        deed = desk.subscriptions.pause if paused else desk.subscriptions.resume
        changed = {name: deed(name, reason) for name in chosen}
    if as_json:
        emit_json([{"subscription": name, "paused": paused, "changed": one} for name, one in changed.items()])
        return 0
    for name, one in changed.items():
        now = "paused" if paused else "resumed"
        was = "is paused already" if paused else "was not paused"
        _say(f"{name} is {now}" if one else f"{name} {was}")
    return 0


@click.command()
@click.argument("name", metavar="SUBSCRIPTION")
@click.argument("to", metavar="TO")
@click.option("--reason", required=True, help="Why; goes into the audit.")
@yes_option
@store_option
@app_option
@json_option
def seek(name: str, to: str, reason: str, yes: bool, store: str | None, program: str | None, as_json: bool) -> int:
    """Go on elsewhere: TO is a position, first, now, or a time such as 2026-01-31T00:00Z.

    Forward gives events up: they count as discarded. Back runs events again and supersedes their letters;
    what was discarded by hand stays discarded. Projections, and handlers with keyed state, cannot go back:
    `redrive rebuild` starts them over. While a worker runs the numbers may move; pause it first to have them exact.
    """
    with opened(store, program) as app:
        desk = app.operate().subscriptions
        plan = desk.plan_seek(name, to)
        if plan.position != plan.was:
            confirm(f"Seek {plain(name)} from position {plan.was} to {plan.position}: {_told(plan, will=True)}?", yes)
        done = desk.seek(name, to, reason, plan)
    if as_json:
        emit_json(_json(done))
    elif done.position == done.was:
        _say(f"{name} is at position {done.position} already; nothing was done")
    else:
        _say(f"{name} went from position {done.was} to {done.position}: {_told(done, will=False)}")
    return 0


def _say(text: str) -> None:
    for line in wrapped(text, line_width()):
        click.echo(line)


def _told(one: Sought, *, will: bool) -> str:
    def become(count: int) -> str:
        return "will be" if will else "was" if count == 1 else "were"

    if one.position > one.was:
        return f"{plural(one.discarded, 'event')} {become(one.discarded)} discarded"
    come = "will come" if will else "comes" if one.again == 1 else "come"
    return (
        f"{plural(one.again, 'event')} {come} again, "
        f"{plural(one.superseded, 'letter')} {become(one.superseded)} superseded"
    )


def _json(one: Sought) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(one)
