"""`redrive admit`: let in what was over the intake limit of a log."""

from __future__ import annotations

import click

from redrive.cli.program import app_option, json_option, opened, store_option
from redrive.cli.render import emit_json, plural, say


@click.command()
@click.argument("log")
@click.option("--limit", type=click.IntRange(1, 2**31), metavar="N", help="Only the oldest N.")
@click.option("--discard", is_flag=True, help="Leave them out for good instead; needs --reason.")
@click.option("--dry-run", is_flag=True, help="Only say how many wait.")
@click.option("--reason", default="", help="Why; goes into the audit.")
@store_option
@app_option
@json_option
def admit(
    log: str, limit: int | None, discard: bool, dry_run: bool, reason: str, store: str | None, program: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Let in the events that were over the intake limit of LOG, oldest first.

    They wait in the log LOG:limited, and stay there as history: `redrive events LOG:limited` shows them. Each is let
    in once, at the end of LOG, with its id and its time.
    """
    from redrive.replay.admit import EVERYTHING, Admitted, waiting
    from redrive.replay.admit import admit as let_in

    with opened(store, program) as app:
        operator = app.operate().operator
        if dry_run:
            done = Admitted(0, waiting(operator, log))
        else:
            done = let_in(operator, log, count=limit or EVERYTHING, discard=discard, reason=reason)
    if as_json:
        emit_json({"log": log, "done": done.done, "left": done.left, "discarded": discard and not dry_run})
        return 0
    if dry_run:
        say(f"{plural(done.left, 'event')} {'waits' if done.left == 1 else 'wait'} beside {log}")
        return 0
    deed = "left out of" if discard else "let into"
    say(f"{plural(done.done, 'event')} {deed} {log}; {done.left} still waiting")
    return 0
