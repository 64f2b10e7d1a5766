"""`redrive workers`: which processes run, which version, and who owns what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.program import opened, reads
from redrive.cli.render import ago, block, emit_json, moment, plain, table

if TYPE_CHECKING:
    from redrive.replay.workers import Owned, Worker


@click.command()
@reads
def workers(store: str | None, program: str | None, as_json: bool) -> int:
    """Who owns what, since when, with which version.

    A worker that owns nothing stands by: it takes over when another stops or falls silent.
    """
    with opened(store, program) as app:
        found, now = app.operate().workers(app.runtime.settings.lease), app.runtime.env.clock.now()
    if as_json:
        emit_json([_worker(one) for one in found])
    elif not found:
        click.echo("no worker runs on this store; `redrive run MODULE:APP` starts one")
    else:
        rows = [row for one in found for row in _rows(one, now)]
        table(("worker", "version", "state", "started", "seen", "owns", "since"), rows, keep=("worker", "owns"))
        for one in found:
            for name, reason in one.waits.items():
                block(f"{plain(one.name)} does not run {plain(name)}: {plain(reason)}", "")
    return 0


def _rows(one: Worker, now: float) -> list[tuple[Any, ...]]:
    """A line for each partition; what holds for the worker is said once."""
    known = (one.name, one.version, one.state, _age(one.started_at, now), _age(one.seen_at, now))
    owned = [(_label(part), _age(part.since, now)) for part in one.owns] or [("", "")]
    return [((*known, *part) if number == 0 else ("", "", "", "", "", *part)) for number, part in enumerate(owned)]


def _label(part: Owned) -> str:
    return part.subscription if part.partitions == 1 else f"{part.subscription} {part.partition + 1}/{part.partitions}"


def _age(at: float | None, now: float) -> str:
    """Three times in full are more than a line of eighty cells has room for."""
    return "" if at is None else ago(at, now)


def _worker(one: Worker) -> dict[str, Any]:
    from dataclasses import asdict

    fields = asdict(one)
    owns = [
        {**part, "since": moment(part["since"]), "lease_until": moment(part["lease_until"])} for part in fields["owns"]
    ]
    return {**fields, "started_at": moment(one.started_at), "seen_at": moment(one.seen_at), "owns": owns}
