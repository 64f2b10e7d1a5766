"""`redrive dlq now` and `redrive dlq postpone`: when a retrying letter is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.program import F, app_option, json_option, opened, store_option
from redrive.cli.render import clock_time, emit_json, say
from redrive.cli.waiting import owners

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.replay.deed import Receipt


def _of_letters(command: F) -> F:
    """What both are told."""
    reason = click.option("--reason", default="", help="Why; goes into the audit.")
    ids = click.argument("ids", type=click.IntRange(1, 2**62), metavar="ID...", nargs=-1, required=True)
    return ids(reason(store_option(app_option(json_option(command)))))


@click.command()
@_of_letters
def now(ids: tuple[int, ...], reason: str, store: str | None, program: str | None, as_json: bool) -> int:
    """Try retrying letters again at once; the attempts that they have made stay counted."""
    with opened(store, program) as app:
        receipt = app.operate().letters.now(ids, reason)
        return _report(app, receipt, "due now", as_json)


@click.command()
@click.option("--until", metavar="TIME", required=True, help="For so long (2h), or until this time.")
@_of_letters
def postpone(
    ids: tuple[int, ...], until: str, reason: str, store: str | None, program: str | None, as_json: bool
) -> int:
    """Try retrying letters again later; no attempt is spent, and the letters behind them go on waiting."""
    from redrive.replay.holds import moment_to

    with opened(store, program) as app:
        desk = app.operate()
        due_at = moment_to(until, desk.operator.now())
        receipt = desk.letters.postpone(ids, due_at, reason)
        return _report(app, receipt, f"due at {clock_time(due_at)}", as_json)


def _report(app: App, receipt: Receipt, when: str, as_json: bool) -> int:
    """Exit code 1 if nothing was done, 3 if some was refused."""
    if as_json:
        refused = [{"letter": one.letter, "why": one.why} for one in receipt.refused]
        emit_json({"action": receipt.action, "done": list(receipt.done), "refused": refused})
    else:
        for letter in receipt.done:
            say(f"letter {letter} is {when}")
        for one in receipt.refused:
            say(f"letter {one.letter} is left as it is: {one.why}")
        _hint(app, receipt)
    return 0 if not receipt.refused else 3 if receipt.done else 1


def _hint(app: App, receipt: Receipt) -> None:
    """A letter that is due runs only if a worker does."""
    found = [app.operate().letters.get(letter) for letter in receipt.done]
    known = owners(app)
    lonely = {one.subscription for one in found if one is not None and known[one.subscription].owner is None}
    if lonely and receipt.action == "now":
        say(f"no worker runs {', '.join(sorted(lonely))}: start one")
