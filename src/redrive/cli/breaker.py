"""`redrive breaker`: how the dependencies are, and opening or closing their breakers by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.program import F, app_option, json_option, opened, reads, store_option
from redrive.cli.render import clock_time, emit_json, moment, plain, table

if TYPE_CHECKING:
    from redrive.replay.breakers import BreakerStatus


@click.group()
def breaker() -> None:
    """How the dependencies are; open or close a breaker by hand."""


@breaker.command("list")
@reads
def list_breakers(store: str | None, program: str | None, as_json: bool) -> int:
    """Every breaker that a program has declared, and how it stands."""
    with opened(store, program) as app:
        found = app.operate().breakers.list()
    if as_json:
        emit_json([_fields(one) for one in found])
    elif not found:
        click.echo("no subscription has a breaker: app.on() and app.deliver() take breaker=")
    else:
        rows = [
            (one.name, one.state, one.failures or "", _time(one.since), _until(one), one.probes or "") for one in found
        ]
        table(("breaker", "state", "failures", "since", "until", "probes"), rows, keep=("breaker",))
    return 0


def _by_hand(command: F) -> F:
    """What both deeds are told."""
    reason = click.option("--reason", required=True, help="Why; goes into the audit.")
    return click.argument("name", metavar="BREAKER")(reason(store_option(app_option(json_option(command)))))


@breaker.command("open")
@_by_hand
def open_breaker(name: str, reason: str, store: str | None, program: str | None, as_json: bool) -> int:
    """Call the dependency no more, until `redrive breaker close`. What waits spends no attempt."""
    return _force("open", name, reason, store, program, as_json)


@breaker.command("close")
@_by_hand
def close_breaker(name: str, reason: str, store: str | None, program: str | None, as_json: bool) -> int:
    """Let everything through again at once, without probing; errors are counted from nought."""
    return _force("close", name, reason, store, program, as_json)


def _force(action: str, name: str, reason: str, store: str | None, program: str | None, as_json: bool) -> int:
    with opened(store, program) as app:
        desk = app.operate().breakers
        changed = desk.open(name, reason) if action == "open" else desk.close(name, reason)
    state = "open" if action == "open" else "closed"
    if as_json:
        emit_json({"breaker": name, "state": state, "changed": changed})
    else:
        click.echo(plain(f"{name} is {state}" if changed else f"{name} was {state} already"))
    return 0


def _until(one: BreakerStatus) -> str:
    return "closed by hand" if one.by_hand else _time(one.until)


def _time(at: float | None) -> str:
    return "" if at is None else clock_time(at)


def _fields(one: BreakerStatus) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(one), "since": moment(one.since), "until": moment(one.until)}
