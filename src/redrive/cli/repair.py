"""Changing a subscription as a whole: rebuild, reset, rename, accept-from-now, rekey. Each is audited."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from redrive.cli.program import app_option, confirm, json_option, opened, store_option, yes_option
from redrive.cli.progress import progress, quiet_option
from redrive.cli.render import emit_json, plain, plural, say, table
from redrive.cli.waiting import finish, owners
from redrive.errors import StoreError

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.replay.operations import Operations
    from redrive.replay.rebuild import Rebuilding

reason_option = click.option("--reason", required=True, help="Why; goes into the audit.")
program_needed = click.option("--app", "program", metavar="MODULE:APP", required=True, help="The program.")


@click.command()
@click.argument("name", metavar="SUBSCRIPTION")
@click.option("--reason", default="rebuild", show_default=True, help="Why; goes into the audit.")
@click.option("--resume", is_flag=True, help="Do not start over: finish the rebuild that was begun.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is where it was.")
@quiet_option
@yes_option
@store_option
@app_option
@json_option
def rebuild(
    name: str, reason: str, resume: bool, no_wait: bool, quiet: bool, yes: bool, store: str | None, program: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Clear what a subscription built and build it again from the log.

    Its tables, progress, keyed state and letters start over together. Discards and edits keep their effect; what was
    emitted is not emitted again. A running worker does it, or with --app this command, while other workers wait. If it
    is interrupted, the next worker goes on where it was.

    Readers see an empty table, then a partly filled one, until it is done. To keep the former rows readable, declare a
    second projection with another name and another table, let it catch up, and switch your readers.
    """
    with opened(store, program) as app:
        desk = app.operate()
        if program is not None and name in owners(app) and name not in app.subscriptions:
            raise click.UsageError(f"{program} does not have {name!r}")
        if not resume:
            _ask_to_clear(desk, name, "Rebuild", yes)
        is_owned = name in (found := owners(app)) and found[name].owner is not None
        if program is not None and not no_wait:
            state = _rebuild_here(app, desk, name, None if resume else reason, quiet=quiet or as_json)
        else:
            state = desk.progress(name) if resume else desk.reset(name, reason)
            if not no_wait and is_owned:
                state = _see_through(app, desk, name, here=False, quiet=quiet or as_json)
    if as_json:
        emit_json(_rebuilding(state))
    elif state.done:
        click.echo(f"{plain(name)} is rebuilt, up to position {state.position}")
    else:
        click.echo(f"{plain(name)} is at position {state.position} of {state.target}; a worker builds the rest")
    return 0


@click.command()
@click.argument("name", metavar="SUBSCRIPTION")
@reason_option
@yes_option
@store_option
@app_option
@json_option
def reset(name: str, reason: str, yes: bool, store: str | None, program: str | None, as_json: bool) -> int:
    """Clear what a subscription built; the next worker builds it again.

    With --app, tables and filter are those that the program declares now.
    """
    with opened(store, program) as app:
        desk = app.operate()
        _ask_to_clear(desk, name, "Reset", yes)
        state = desk.reset(name, reason)
    if as_json:
        emit_json(_rebuilding(state))
    else:
        click.echo(f"{plain(name)} starts over from position {state.position}; it was at {state.target}")
    return 0


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--reason", default="", help="Why; goes into the audit.")
@store_option
@app_option
def rename(old: str, new: str, reason: str, store: str | None, program: str | None) -> int:
    """Tell the store that a function has another name now.

    Progress, letters, state and idempotency keys stay what they were.
    """
    with opened(store, program) as app:
        app.operate().subscriptions.rename(old, new, reason)
    say(f"{old} is called {new} now")
    return 0


@click.command("accept-from-now")
@click.argument("name", metavar="SUBSCRIPTION")
@program_needed
@reason_option
@store_option
def accept_from_now(name: str, program: str, reason: str, store: str | None) -> int:
    """Let a subscription that asks for more types begin with new events.

    What lies below its progress and was never asked for is left out; `redrive rebuild` would apply it.
    """
    with opened(store, program) as app:
        position = app.operate().subscriptions.accept_from_now(name, reason)
    click.echo(f"{plain(name)} asks for what the program says, above position {position}")
    return 0


@click.command()
@click.argument("name", metavar="SUBSCRIPTION")
@program_needed
@reason_option
@store_option
def rekey(name: str, program: str, reason: str, store: str | None) -> int:
    """Move a subscription's open letters to the lanes of its new key function."""
    with opened(store, program) as app:
        moved = app.operate().subscriptions.rekey(name, reason)
    click.echo(f"{plural(moved, 'letter')} moved to other lanes")
    return 0


@click.command()
@click.argument("name", metavar="SUBSCRIPTION")
@reason_option
@click.option("--drop-tables", is_flag=True, help="Drop the tables, too, that redrive made for it.")
@yes_option
@store_option
@app_option
@json_option
def forget(
    name: str, reason: str, drop_tables: bool, yes: bool, store: str | None, program: str | None, as_json: bool
) -> int:
    """Delete a subscription whose function was removed from the program.

    Its progress, letters and state go in one transaction, and it no longer holds back `redrive prune`. The audit stays.
    Refused while a worker runs it, and if the program of --app declares it. A function with its name begins as new.
    """
    with opened(store, program) as app:
        desk, lease = app.operate().subscriptions, app.runtime.settings.lease
        plan = desk.plan_forget(name, lease)
        if not as_json:
            table(("table", ">rows"), list(plan.rows.items()))
        verb = "drop" if drop_tables else "keep"
        tables = f" and {verb} {', '.join(map(plain, plan.tables))}" if plan.tables else ""
        confirm(
            f"Forget {plain(name)}: delete {plural(sum(plan.rows.values()), 'row')}, with "
            f"{plural(plan.open_letters, 'open letter')}{tables}?",
            yes,
        )
        done = desk.forget(name, reason, lease, drop_tables=drop_tables)
    if as_json:
        emit_json(
            {
                "subscription": name, "rows": done.rows, "open_letters": done.open_letters,
                "dropped": list(done.dropped), "kept": list(done.kept),
            }
        )  # fmt: skip
        return 0
    say(f"{name} is forgotten; {plural(sum(done.rows.values()), 'row')} deleted")
    if done.kept:
        say(f"its tables stay, with their rows: {', '.join(done.kept)}")
    return 0


def _ask_to_clear(desk: Operations, name: str, verb: str, yes: bool) -> None:
    """Say with exact numbers what will be cleared, then ask."""
    plan = desk.plan_reset(name)
    tables = ", ".join(plan.tables) or "no tables"
    warning = f"Readers see {tables} empty, then partly filled, until it is done. " if plan.tables else ""
    confirm(
        f"{warning}"
        f"{verb} {plain(name)}: clear {tables}, go back from position {plan.position} to {plan.start}, "
        f"supersede {plural(plan.open_letters, 'open letter')}?",
        yes,
    )


def _rebuild_here(app: App, desk: Operations, name: str, reason: str | None, *, quiet: bool) -> Rebuilding:
    """Rebuild in this process, with the program that was named: other workers wait, whatever they declare."""
    if reason is None:
        desk.rebuilds.resume(name)
    else:
        desk.rebuilds.begin(name, reason)
    try:
        return _see_through(app, desk, name, here=True, quiet=quiet)
    finally:
        with contextlib.suppress(StoreError):  # without an answer, it ends with this process
            desk.rebuilds.end(name)


def _see_through(app: App, desk: Operations, name: str, *, here: bool, quiet: bool) -> Rebuilding:
    with progress(f"rebuild {name}", "positions", quiet=quiet) as show:

        def is_done() -> bool:
            state = desk.progress(name)
            show(state.position, max(1, state.target))
            return state.done

        finish(app, {name} if here else (), () if here else (name,), is_done)
    return desk.progress(name)


def _rebuilding(state: Rebuilding) -> dict[str, object]:
    return {
        "subscription": state.subscription, "position": state.position, "target": state.target, "done": state.done,
    }  # fmt: skip
