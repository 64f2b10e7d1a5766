"""A rehearsal as people and machines read it: what a replay would do, and why not where it would not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.render import emit_json, plain, plural, table

if TYPE_CHECKING:
    from redrive.replay.rehearsal import Rehearsal, Rehearsed

SHOWN_MAX = 20  # letters listed for people; --json has all of them


def show_rehearsal(rehearsal: Rehearsal, as_json: bool) -> int:
    """Print it; the exit code: 0 if all would succeed, 3 if some would not."""
    if as_json:
        emit_json(_json(rehearsal))
    else:
        _show(rehearsal)
    return 0 if rehearsal.sound else 3


def _json(rehearsal: Rehearsal) -> dict[str, Any]:
    return {
        "totals": {result.replace(" ", "_"): count for result, count in rehearsal.totals.items()},
        "tables": {
            name: {"inserted": rows.inserted, "updated": rows.updated, "deleted": rows.deleted}
            for name, rows in rehearsal.tables.items()
        },
        "emitted": {log: dict(types) for log, types in rehearsal.emitted.items()},
        "letters": [_letter(one) for one in rehearsal.letters],
    }


def _letter(one: Rehearsed) -> dict[str, Any]:
    letter = one.letter
    return {
        "id": letter.id, "subscription": letter.subscription, "event_id": letter.event_id, "type": letter.type,
        "key": letter.key, "follower": one.follower, "result": one.result, "why": one.why,
        "error_type": one.error_type, "fingerprint": one.fingerprint, "was_fingerprint": letter.fingerprint,
    }  # fmt: skip


def _show(rehearsal: Rehearsal) -> None:
    if not rehearsal.letters:
        click.echo("no letters to rehearse")
        return
    counts = [f"{count:,} {result}" for result, count in rehearsal.totals.items() if count]
    click.echo(f"{plural(len(rehearsal.letters), 'letter')} rehearsed, nothing kept: " + ", ".join(counts))
    bad = [one for one in rehearsal.letters if one.result != "would succeed"]
    if bad:
        click.echo("")
        rows = [(one.letter.id, one.letter.subscription, one.result, plain(one.why)) for one in bad[:SHOWN_MAX]]
        table((">id", "subscription", "result", "why"), rows, keep=("result",))
