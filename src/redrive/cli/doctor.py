"""`redrive doctor`: what will hurt, what it means, and what to do."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redrive.cli.attention import check_option, report_needs
from redrive.cli.program import opened, reads
from redrive.cli.render import emit_json, line_width, plural, wrapped
from redrive.errors import StoreError, UsageError
from redrive.settings import Settings, store_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.replay.attention import Need
    from redrive.replay.doctor import Finding
    from redrive.replay.machine import Found

STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}
INDENT = 10
SET_UP = {"file system", "durability"}  # checks of what an operator decided when the store was made


@click.command()
@check_option
@reads
def doctor(check: bool, store: str | None, program: str | None, as_json: bool) -> int:
    """Look for what will hurt: machine, file, clock, settings, subscriptions, letters.

    Each finding is ok, a warning or a problem, and says what to do. Exit code 3 if there is a problem. With --app it
    also knows which subscriptions the program no longer has. `redrive verify` accounts for the events.

    With --check only what needs an operator is told, problems included, and the exit code is 4 if anything does.
    """
    found, needs = _examine(store, program)
    if check:
        return report_needs([*needs, *_problems(found, {need.check for need in needs})], as_json)
    if as_json:
        emit_json([asdict(one) for one in found])
    else:
        _show(found)
    return 3 if any(one.state == "problem" for one in found) else 0


def _problems(found: list[Finding], told: set[str]) -> Iterator[Need]:
    """Problems that are not told already; those of how the store was set up are known, and wake nobody at night."""
    from redrive.replay.attention import Need

    for one in found:
        if one.state == "problem" and one.check not in told | SET_UP:
            yield Need(one.check, one.message, one.advice, one.subscription)


def _examine(store: str | None, program: str | None) -> tuple[list[Finding], list[Need]]:
    """Settings that cannot be read and a store that cannot be opened are findings too."""
    from redrive.replay.attention import attention
    from redrive.replay.doctor import PROBLEM, Finding, examine, examine_brokers

    found: list[Finding] = []
    with opened(store, program, create=True) as app:  # nothing is opened yet, and nothing made
        runtime = app.runtime
        try:
            settings = runtime.settings
        except UsageError as error:
            found.append(Finding("settings", PROBLEM, str(error), "correct it: no worker starts with it"))
            settings = Settings(store=store_named(Path.cwd(), os.environ))
            runtime.use(settings)
        try:
            runtime.check_exists()
            app.operate()  # opens the store, and imports what the program includes
            seen = list(examine(runtime.store, runtime.env, settings, app.subscriptions if program else None))
            seen += examine_brokers(app.subscriptions.values())
            needs = attention(runtime.store, runtime.env, app.operate().status())
            return found + [one for one in seen if not (found and one.check == "settings")], needs
        except StoreError as error:
            found.append(Finding("store", PROBLEM, str(error), "nothing in it can be looked at until it opens"))
            return found + [Finding(*one) for one in _beneath(runtime.address, settings)], []
        except UsageError as error:
            if not found:
                raise
            return [*found, Finding("store", PROBLEM, str(error), "say which with --store")], []


def _beneath(address: str, settings: Settings) -> Iterator[Found]:
    """The disk under a store that does not open may be why."""
    from redrive.replay.machine import examine_machine
    from redrive.store.address import is_postgres

    return iter(()) if is_postgres(address) else examine_machine(address, settings.checkpoint_pages)


def _show(found: list[Finding]) -> None:
    for one in found:
        told = wrapped(f"{one.check}: {one.message}", line_width() - INDENT)
        click.echo(click.style(f"{one.state:<{INDENT}}", fg=STYLES[one.state]) + next(told))
        for line in told:
            click.echo(" " * INDENT + line)
        if one.advice:
            for number, line in enumerate(wrapped(one.advice, line_width() - INDENT - 3)):
                click.echo(" " * INDENT + ("-> " if number == 0 else "   ") + line)
    counts = {state: sum(1 for one in found if one.state == state) for state in STYLES}
    click.echo(f"\n{counts['ok']} ok, {plural(counts['warning'], 'warning')}, {plural(counts['problem'], 'problem')}")
