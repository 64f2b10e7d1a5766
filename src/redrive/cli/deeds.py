"""`redrive dlq replay`, `discard`, `resolve`: one deed for all letters that are meant, with a receipt."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.program import app_option, confirm, json_option, opened, store_option, yes_option
from redrive.cli.progress import counting, progress, quiet_option
from redrive.cli.receipt import exit_code, pace_of, report, report_nothing, say_held
from redrive.cli.render import plain, plural, say
from redrive.cli.select import covered, nothing_like, selects
from redrive.cli.waiting import finish, owners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redrive.app import App
    from redrive.replay.bulk import Deed
    from redrive.replay.select import Selection
    from redrive.store.port import LetterRow

reason_needed = click.option("--reason", required=True, help="Why; goes into the audit.")
CHOICES = ("ids", "subscription", "event_type", "key", "why", "error", "fingerprint", "since", "until")
NONE_WAITS = "nothing waits behind"
lane_option = click.option("--lane", is_flag=True, help="Also what waits behind them.")


@click.command()
@selects
@click.option("--rehearse", "is_rehearsal", is_flag=True, help="Only try: run the program, keep nothing. Needs --app.")
@click.option("--lane", is_flag=True, help="With --rehearse: also what waits behind them.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many, the oldest first.")
@click.option("--rate", metavar="N/s", help="So many a second at most, e.g. 50/s, in place of the retry budget.")
@click.option("--wait", is_flag=True, help="Come back when they have run.")
@click.option("--reason", default="", help="Goes into the audit.")
@quiet_option
@yes_option
@store_option
@app_option
@json_option
def replay(
    selection: Selection, is_rehearsal: bool, lane: bool, limit: int | None, rate: str | None, wait: bool,
    reason: str, quiet: bool, yes: bool, store: str | None, program: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Send dead letters round once more: one attempt each, then dead again.

    What waits behind them follows by itself, in order. A running worker does it; where none runs, --app does it
    here. The receipt stays: `redrive ops`. Exit code 3 if some were skipped or failed again.
    """
    selection.check()
    if is_rehearsal and not program:
        raise click.UsageError("--rehearse runs the program's functions: add --app MODULE:APP")
    if lane and not is_rehearsal:
        raise click.UsageError("--lane goes with --rehearse; in a replay what waits behind a letter follows by itself")
    per_second = _per_second(rate)
    with opened(store, program) as app:
        letters = _chosen(app, selection, limit)
        if is_rehearsal:
            return _rehearse(app, letters, lane, as_json, quiet)
        if not letters:
            return report_nothing(app, "replay", reason, as_json, nothing_like(app, selection))
        if len(letters) > 1 or not selection.ids:
            at_rate = f" at {plain(rate)}" if rate else ""
            confirm(f"Replay {covered(selection, letters, reason, limit)}{at_rate}?", yes)
        return _replay(app, letters, reason, per_second, program, wait, as_json, quiet)


@click.command()
@selects
@lane_option
@reason_needed
@yes_option
@store_option
@app_option
@json_option
def discard(
    selection: Selection, lane: bool, reason: str, yes: bool, store: str | None, program: str | None, as_json: bool
) -> int:
    """Give letters up for good; what waits behind them runs."""
    return _close("discard", selection, lane, reason, yes, store, program, as_json)


@click.command()
@selects
@lane_option
@reason_needed
@yes_option
@store_option
@app_option
@json_option
def resolve(
    selection: Selection, lane: bool, reason: str, yes: bool, store: str | None, program: str | None, as_json: bool
) -> int:
    """What these letters ask for was done elsewhere: close them, and let others go on."""
    return _close("resolve", selection, lane, reason, yes, store, program, as_json)


def _alias(name: str, command: click.Command) -> click.Command:
    """What other tools call a verb: all letters are meant, unless some are chosen as everywhere."""
    do = command.callback
    assert do is not None

    def everything_unless(**options: Any) -> Any:
        options["everything"] |= not any(options[choice] for choice in CHOICES)
        return do(**options)

    help_text = f"The same as `{command.name} --all`, or as `{command.name}` where letters are chosen."
    return click.Command(name, params=command.params, callback=everything_unless, help=help_text, hidden=True)


replay_all, purge = _alias("replay-all", replay), _alias("purge", discard)


def _chosen(app: App, selection: Selection, limit: int | None) -> list[LetterRow]:
    from redrive.replay.select import select

    return select(app.runtime.store, selection, heads=True, limit=limit)[:limit]


def _per_second(rate: str | None) -> float | None:
    from redrive.units import rate as per_second

    try:
        return None if rate is None else per_second(rate)
    except ValueError as error:
        raise click.UsageError(f"--rate: {error}") from None


def _rehearse(app: App, letters: Sequence[LetterRow], lane: bool, as_json: bool, quiet: bool) -> int:
    from redrive.cli.rehearsal import show_rehearsal
    from redrive.replay.rehearse import rehearse

    total = None if lane else len(letters)
    with (
        progress("rehearse", "letters", total, quiet=quiet or as_json) as show,
        contextlib.redirect_stdout(sys.stderr),  # what a function prints is no part of the answer
    ):
        rehearsal = rehearse(app, letters, lane=lane, told=show)
    return show_rehearsal(rehearsal, as_json)


def _replay(
    app: App, letters: Sequence[LetterRow], reason: str, rate: float | None, program: str | None, wait: bool,
    as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    desk, quiet = app.operate(), quiet or as_json
    here, elsewhere = _who_runs(app, {letter.subscription for letter in letters}, program, wait)
    number = desk.bulk.begin("replay", letters, reason, rate)
    deed: Deed = lambda rows, ticket: desk.letters.replay(rows, reason, within=ticket)  # noqa: E731
    with progress("replay: asked for", "letters", len(letters), quiet=quiet) as show:
        desk.bulk.ask(number, counting(deed, show))
    held = desk.holds.keeping(letters) if desk.bulk.get(number).waiting else {}
    say_held(held)
    if desk.bulk.get(number).waiting and (here or (wait and elsewhere)):
        unfinished = desk.bulk.unfinished(number, None if wait else here, held)
        with progress("replay", "letters", len(letters), quiet=quiet) as show:

            def is_done() -> bool:
                so_far = desk.bulk.get(number)
                show(so_far.applied + so_far.failed + so_far.skipped)
                return not unfinished.look()

            finish(app, here, elsewhere if wait else (), is_done)
    operation = desk.bulk.get(number)
    alone = sorted(name for name in elsewhere if owners(app)[name].owner is None)
    report(desk.bulk, operation, as_json)
    if operation.waiting > len(held) and not as_json:
        pace_of(app, operation)
        if alone:
            say(f"nobody runs {', '.join(alone)} now: start a worker, or add --app MODULE:APP")
        else:
            click.echo(f"the running worker takes them; `redrive ops {number}` shows what came of it")
    return exit_code(operation)


def _who_runs(app: App, wanted: set[str], program: str | None, wait: bool) -> tuple[set[str], set[str]]:
    """Subscriptions to run here, and those whose owner does it."""
    known = owners(app)
    lonely = {name for name in wanted if known[name].owner is None}
    if program:
        missing = sorted(lonely - app.subscriptions.keys())
        if missing:
            raise click.UsageError(f"{program} does not have {missing[0]!r}, and no worker runs it")
        return lonely, wanted - lonely
    if wait and lonely:
        raise click.UsageError(f"nobody runs {', '.join(sorted(lonely))}: start a worker, or add --app MODULE:APP")
    return set(), wanted


def _close(
    action: str, selection: Selection, lane: bool, reason: str, yes: bool, store: str | None, program: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    from redrive.replay.deed import need_reason
    from redrive.replay.select import released, select, with_followers

    selection.check()
    need_reason(action, reason)
    with opened(store, program) as app:
        desk = app.operate()
        letters = select(app.runtime.store, selection)
        if not letters:
            return report_nothing(app, action, reason, as_json, nothing_like(app, selection))
        if lane:
            named, letters = len(letters), with_followers(app.runtime.store, letters)
            behind = 0
            consequence = f"{plural(len(letters) - named, 'event')} that wait behind among them"
        else:
            behind = released(app.runtime.store, letters)
            held = any(desk.letters.waiting(letter) for letter in letters) and "what waits behind goes on waiting"
            consequence = f"{plural(behind, 'event')} that wait behind will run" if behind else held or NONE_WAITS
        confirm(f"{action.capitalize()} {covered(selection, letters, reason)}; {consequence}?", yes)
        number = desk.bulk.begin(action, letters, reason)
        how = desk.letters.discard if action == "discard" else desk.letters.resolve
        deed: Deed = lambda rows, ticket: how(rows, reason, within=ticket)  # noqa: E731
        with progress(action, "letters", len(letters), quiet=as_json) as show:
            desk.bulk.ask(number, counting(deed, show))
        operation = desk.bulk.get(number)
        report(desk.bulk, operation, as_json)
        if behind and operation.applied and not as_json:
            click.echo(consequence)
    return exit_code(operation)
