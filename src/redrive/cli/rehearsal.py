"""A rehearsal as people and machines read it: what a replay would do, and why not where it would not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.render import emit_json, plural, say, shortened, table

if TYPE_CHECKING:
    from redrive.replay.rehearsal import Rehearsal, Rehearsed

GROUPS_SHOWN, LETTERS_SHOWN = 10, 5  # for people; --json has all of them
WHY_MAX = 300  # characters of an error's text


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
    click.echo(f"{plural(len(rehearsal.letters), 'letter')} rehearsed, and nothing kept:")
    for result, count in rehearsal.totals.items():
        if count:
            click.echo(f"{count:>10,} {result}")
    groups = _groups(rehearsal)
    for group in groups[:GROUPS_SHOWN]:
        _show_group(group)
    if len(groups) > GROUPS_SHOWN:
        click.echo(f"\nand {len(groups) - GROUPS_SHOWN:,} more kinds; --json has all of them")
    if rehearsal.tables:
        click.echo("")
        rows = [(name, *counts) for name, counts in rehearsal.tables.items()]
        table(("rows of", ">inserted", ">updated", ">deleted"), rows)
    if rehearsal.emitted:
        click.echo("")
        events = [(log, kind, count) for log, types in rehearsal.emitted.items() for kind, count in types.items()]
        table(("events in", "type", ">emitted"), events)


def _groups(rehearsal: Rehearsal) -> list[list[Rehearsed]]:
    """Letters that would not succeed, those with the same result for the same reason together."""
    groups: dict[tuple[str, ...], list[Rehearsed]] = {}
    for one in rehearsal.letters:
        if one.result != "would succeed":
            why = one.fingerprint or re.sub(r"\d+", "#", one.why)
            groups.setdefault((one.letter.subscription, one.result, why), []).append(one)
    return sorted(groups.values(), key=lambda group: (group[0].result == "cannot rehearse", -len(group)))


def _show_group(group: list[Rehearsed]) -> None:
    first = group[0]
    kind = first.error_type.rpartition(".")[2]
    why = f"{kind}: {first.why}" if kind and first.why else kind or first.why
    if not kind and any(one.why != first.why for one in group):
        why = re.sub(r"letter \d+, which", "a letter that", why)
    click.echo("")
    say(f"{first.result}: {plural(len(group), 'letter')} of {first.letter.subscription}")
    say(shortened(why, WHY_MAX), "    ")
    shown = ", ".join(str(one.letter.id) for one in group[:LETTERS_SHOWN])
    more = f" and {len(group) - LETTERS_SHOWN:,} more" if len(group) > LETTERS_SHOWN else ""
    say(f"letter {shown}{more}" if len(group) == 1 else f"letters {shown}{more}", "    ")
