"""`redrive rules`: which keep or discard rule decides about an event, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.program import app_option, json_option, opened, store_option
from redrive.cli.render import emit_json, plain, say
from redrive.cli.select import reads_only

if TYPE_CHECKING:
    from redrive.replay.rulings import Ruling

EVENT_BYTES_MAX = 20_000_000  # more than the longest line of an export


@click.group()
def rules() -> None:
    """Keep and discard rules for letters."""


@rules.command()
@click.argument("file", metavar="EVENT.json|-", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("-s", "--subscription", metavar="NAME", help="Only this one.")
@click.option("--dlq-reason", "reason", metavar="REASON", default="attempts_exhausted", show_default=True,
              help="Why it would be dead.")  # fmt: skip
@reads_only
@click.option("--error", metavar="TYPE[: TEXT]", default="Exception", show_default=True, help="What was raised last.")
@click.option("--attempts", default=1, show_default=True, type=click.IntRange(1, 1_000_000), help="How many failed.")
@store_option
@app_option
@json_option
def test(
    file: str, subscription: str | None, reason: str, error: str, attempts: int, store: str | None,
    program: str | None, as_json: bool,
) -> int:  # fmt: skip
    """If this event failed for good: would its letter be kept or discarded, and which rule says so?

    EVENT.json holds an object with type, data and key, or a CloudEvent. The rules are those of --app and of the
    settings; without --app those of the settings alone. Rules are functions too: they are called. Needs no store.
    """
    from redrive.replay.rulings import Trouble, rulings

    raw = _read(file)
    with opened(store, program, create=True) as app:
        found = rulings(app, raw, Trouble(reason, error, attempts), subscription)
    if as_json:
        emit_json([_fields(one) for one in found])
        return 0
    if not found:
        click.echo("no rules: every letter is kept. --app MODULE:APP looks into a program")
    for one in found:
        _show(one)
    return 0


def _read(file: str) -> bytes:
    if file == "-":
        from redrive.cli.logs import stdin

        return stdin().read(EVENT_BYTES_MAX)
    try:
        with Path(file).open("rb") as opened_file:
            return opened_file.read(EVENT_BYTES_MAX)
    except OSError as error:
        raise click.UsageError(f"cannot read {file!r}: {error.strerror or error}") from None


def _show(one: Ruling) -> None:
    asks = "" if one.asks else " (but it never asks for this type)"
    say(f"{plain(one.subscription)}: {one.verdict}: {plain(one.why)}{asks}")
    for step in one.steps:
        say(f"{plain(step.rule)}: {plain(step.answer)}", "  ")


def _fields(one: Ruling) -> dict[str, Any]:
    """The documented fields."""
    steps = [{"rule": step.rule, "answer": step.answer} for step in one.steps]
    return {
        "subscription": one.subscription, "asks": one.asks, "verdict": one.verdict, "rule": one.rule, "why": one.why,
        "steps": steps,
    }  # fmt: skip
