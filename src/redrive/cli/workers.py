"""`redrive workers`: which processes run, which version, and who owns what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.program import opened, reads
from redrive.cli.render import clock_time, emit_json, moment, table

if TYPE_CHECKING:
    from redrive.replay.workers import Owned, Worker


@click.command()
@reads
def workers(store: str | None, program: str | None, as_json: bool) -> int:
    """Who owns what, since when, with which version.

    A worker that owns nothing stands by: it takes over when another stops or falls silent.
    """
    with opened(store, program) as app:
        found = app.operate().workers(app.runtime.settings.lease)
    if as_json:
        emit_json([_worker(one) for one in found])
    elif not found:
        click.echo("no worker runs on this store; `redrive run MODULE:APP` starts one")
    else:
        rows = [row for one in found for row in _rows(one)]
        table(("worker", "version", "state", "started", "seen", "owns", "since"), rows, keep=("worker", "owns"))
    return 0


def _rows(one: Worker) -> list[tuple[Any, ...]]:
    """A line for each partition; what holds for the worker is said once."""
    known = (one.name, one.version, one.state, _time(one.started_at), _time(one.seen_at))
    owned = [(_label(part), _time(part.since)) for part in one.owns] or [("", "")]
    return [((*known, *part) if number == 0 else ("", "", "", "", "", *part)) for number, part in enumerate(owned)]


def _label(part: Owned) -> str:
    return part.subscription if part.partitions == 1 else f"{part.subscription} {part.partition + 1}/{part.partitions}"


def _time(at: float | None) -> str:
    return "" if at is None else clock_time(at)


def _worker(one: Worker) -> dict[str, Any]:
    from dataclasses import asdict

    fields = asdict(one)
    owns = [
        {**part, "since": moment(part["since"]), "lease_until": moment(part["lease_until"])} for part in fields["owns"]
    ]
    return {**fields, "started_at": moment(one.started_at), "seen_at": moment(one.seen_at), "owns": owns}
