"""`redrive dlq`: the dead letters. List them, look at one, send them round again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.program import app_option as program_option
from redrive.cli.program import confirm, json_option, opened, reads, store_option, yes_option
from redrive.cli.render import block, clock_time, emit_json, facts, moment, plain, plural, table
from redrive.cli.waiting import finish, owners

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.replay.deed import Receipt
    from redrive.replay.operations import Operations
    from redrive.store.port import LetterRow

PAGE = 1000


@click.group()
def dlq() -> None:
    """Dead letters: what could not be applied, and what waits behind it."""


@dlq.command("list")
@click.option("-s", "--subscription", metavar="NAME", help="Only letters of this subscription.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Letters per page.")
@click.option("--after", default=0, type=click.IntRange(0), metavar="ID", help="The page after this letter.")
@reads
def list_letters(
    subscription: str | None, limit: int, after: int, store: str | None, program: str | None, as_json: bool
) -> int:
    """Dead letters at the head of their lane, oldest first."""
    with opened(store, program) as app:
        heads = app.operate().letters.heads(subscription, after, limit)
    if as_json:
        emit_json([_letter(letter, waiting) for letter, waiting in heads])
        return 0
    if not heads:
        click.echo("no dead letters" if not after else "no more dead letters")
        return 0
    rows = [
        (letter.id, letter.subscription, letter.type, letter.key or "", _error(letter), letter.attempts, waiting)
        for letter, waiting in heads
    ]
    columns = (">id", "subscription", "type", "key", "error", ">tries", ">waiting")
    table(columns, rows, keep=("subscription",))
    if len(heads) == limit:
        click.echo(f"\nnext page: --after {heads[-1][0].id}")
    return 0


@dlq.command()
@click.argument("letter_id", metavar="ID", type=click.IntRange(1))
@click.option("--payload", is_flag=True, help="Show the event's data and headers too.")
@reads
def show(letter_id: int, payload: bool, store: str | None, program: str | None, as_json: bool) -> int:
    """One letter: its event, its error, every attempt, what was done about it."""
    with opened(store, program) as app:
        letters = app.operate().letters
        letter = letters.get(letter_id)
        if letter is None:
            raise click.ClickException(f"there is no letter {letter_id}; `redrive dlq list` shows those there are")
        details = _details(app.operate(), letter, payload)
    if as_json:
        emit_json(details)
    else:
        _show(details)
    return 0


@dlq.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, type=click.IntRange(1))
@click.option("--all", "everything", is_flag=True, help="Every dead letter at the head of its lane.")
@click.option("-s", "--subscription", metavar="NAME", help="With --all: only of this subscription.")
@click.option("--wait", is_flag=True, help="Come back when they have run.")
@click.option("--reason", default="", help="Goes into the audit.")
@yes_option
@store_option
@program_option
@json_option
def replay(
    ids: tuple[int, ...], everything: bool, subscription: str | None, wait: bool, reason: str, yes: bool,
    store: str | None, program: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Send dead letters round once more: one attempt each, then dead again.

    What waits behind them follows by itself, in order. A running worker does it; where none runs, --app does it
    here. Exit code 3 if some were refused or failed again.
    """
    if bool(ids) == everything:
        raise click.UsageError("say which letters: one or more IDs, or --all")
    if subscription and not everything:
        raise click.UsageError("-s goes with --all; letters are named by their ID alone")
    with opened(store, program) as app:
        desk = app.operate()
        chosen: list[int | LetterRow] = [*ids] if ids else [*_all_heads(desk, subscription)]
        if everything and chosen:
            confirm(f"Replay {plural(len(chosen), 'dead letter')}?", yes)
        here, elsewhere = _who_runs(app, desk, chosen, program, wait)
        receipt = desk.letters.replay(chosen, reason)
        asked = set(receipt.done)
        if asked and (here or (wait and elsewhere)):
            waited = asked if wait else {one for one in asked if _subscription(desk, one) in here}
            finish(app, here, elsewhere if wait else (), lambda: not _unfinished(desk, waited))
        outcome = _outcome(desk, receipt)
        alone = sorted(name for name in elsewhere if owners(app)[name].owner is None)
    _report(outcome, receipt, alone, as_json)
    if receipt.refused and not receipt.done:
        return 1
    return 3 if receipt.refused or outcome["failed"] else 0


def _all_heads(desk: Operations, subscription: str | None) -> list[LetterRow]:
    """What is dead now; what dies later is not meant."""
    found: list[LetterRow] = []
    page = desk.letters.heads(subscription, 0, PAGE)
    while page:
        found += [letter for letter, _ in page]
        page = desk.letters.heads(subscription, found[-1].id, PAGE)
    return found


def _who_runs(
    app: App, desk: Operations, chosen: list[int | LetterRow], program: str | None, wait: bool
) -> tuple[set[str], set[str]]:
    """Subscriptions to run here, and those whose owner does it."""
    known = owners(app)
    wanted = {_subscription(desk, one) for one in chosen} & known.keys()
    lonely = {name for name in wanted if known[name].owner is None}
    if program:
        missing = sorted(lonely - app.subscriptions.keys())
        if missing:
            raise click.UsageError(f"{program} does not have {missing[0]!r}, and no worker runs it")
        return lonely, wanted - lonely
    if wait and lonely:
        raise click.UsageError(f"nobody runs {', '.join(sorted(lonely))}: start a worker, or add --app MODULE:APP")
    return set(), wanted


def _subscription(desk: Operations, one: int | LetterRow) -> str:
    letter = desk.letters.get(one) if isinstance(one, int) else one
    return "" if letter is None else letter.subscription


def _unfinished(desk: Operations, asked: set[int]) -> bool:
    """Has any of them still to run? Those that have are not asked again."""
    for one in list(asked):
        letter = desk.letters.get(one)
        if letter is not None and letter.state == "retrying":
            return True
        asked.discard(one)
    return False


def _outcome(desk: Operations, receipt: Receipt) -> dict[str, int]:
    states = [letter.state for letter in map(desk.letters.get, receipt.done) if letter is not None]
    return {
        "selected": len(receipt.done) + len(receipt.refused), "replayed": len(receipt.done),
        "applied": states.count("applied"), "failed": states.count("dead"), "discarded": states.count("discarded"),
        "waiting": states.count("retrying"), "refused": len(receipt.refused),
    }  # fmt: skip


def _report(outcome: dict[str, int], receipt: Receipt, alone: list[str], as_json: bool) -> None:
    refusals = [{"id": one.letter, "why": one.why} for one in receipt.refused]
    if as_json:
        emit_json({**outcome, "letters": list(receipt.done), "refusals": refusals})
        return
    if not outcome["selected"]:
        click.echo("no dead letters")
        return
    parts = [f"{outcome[name]:,} {name}" for name in ("applied", "failed", "discarded", "waiting", "refused")]
    click.echo(f"{plural(outcome['selected'], 'letter')}: " + ", ".join(part for part in parts if part[0] != "0"))
    for one in receipt.refused:
        click.echo(f"  letter {one.letter}: {plain(one.why)}", err=True)
    if outcome["waiting"] and alone:
        click.echo(f"nobody runs {plain(', '.join(alone))} now: start a worker, or add --app MODULE:APP")
    elif outcome["waiting"]:
        click.echo("the running worker takes them; `redrive dlq list` shows what is dead then")


def _error(letter: LetterRow) -> str:
    kind = letter.error_type.rpartition(".")[2] or letter.reason
    return f"{kind}: {letter.error_message}" if letter.error_message else kind


def _letter(letter: LetterRow, waiting: int) -> dict[str, Any]:
    return {
        "id": letter.id, "subscription": letter.subscription, "event_id": letter.event_id, "type": letter.type,
        "key": letter.key, "state": letter.state, "reason": letter.reason, "error_type": letter.error_type,
        "error_message": letter.error_message, "fingerprint": letter.fingerprint, "attempts": letter.attempts,
        "first_failed_at": moment(letter.first_failed_at), "last_failed_at": moment(letter.last_failed_at),
        "waiting": waiting,
    }  # fmt: skip


def _details(desk: Operations, letter: LetterRow, payload: bool) -> dict[str, Any]:
    letters, event = desk.letters, desk.letters.event(letter.id)
    found = _letter(letter, letters.waiting(letter)) | {
        "source": letter.source, "position": letter.position, "lane": letter.lane, "edits": letter.edits,
        "parked_at": moment(letter.parked_at), "due_at": moment(letter.due_at) if letter.state == "retrying" else None,
        "resolved_by": letter.resolved_by,
        "event_time": None if event is None else event.time.isoformat().replace("+00:00", "Z"),
        "history": [{**one._asdict(), "at": moment(one.at)} for one in letters.history(letter.id)],
        "revisions": [{"rev": one.rev, "bytes": len(one.data)} for one in letters.edits(letter)],
        "audit": [{**one._asdict(), "at": moment(one.at)} for one in letters.audit(letter)],
    }  # fmt: skip
    if payload:
        found |= {"data": _data(event), "headers": {} if event is None else event.headers}
    return found


def _data(event: Any) -> Any:
    """The data as JSON; bytes that are none are shown as they are."""
    import json

    if event is None:
        return None
    try:
        return json.loads(event.raw)
    except ValueError:
        return event.raw.decode("utf-8", "backslashreplace")


def _show(found: dict[str, Any]) -> None:
    import json

    named = ("subscription", "state", "reason", "type", "key", "event_id", "position", "event_time", "attempts")
    facts([("letter", found["id"]), *((name, found[name]) for name in named)])
    facts((name, found[name]) for name in ("waiting", "first_failed_at", "last_failed_at", "due_at", "resolved_by"))
    facts([("error", f"{found['error_type']}: {found['error_message']}" if found["error_type"] else "")])
    facts([("fingerprint", found["fingerprint"])])
    for one in found["history"]:
        when = clock_time_of(one["at"])
        click.echo(f"\nattempt {one['attempt']}  {when}  {plain(one['outcome'])}  by {plain(one['worker'])}")
        block(one["traceback"])
    for one in found["revisions"]:
        click.echo(f"\nedit {one['rev']}: {one['bytes']} bytes")
    for one in found["audit"]:
        click.echo(f"\n{clock_time_of(one['at'])}  {plain(one['who'])}  {one['action']}  {plain(one['reason'])}")
    if "data" in found:
        click.echo("\ndata")
        block(json.dumps(found["data"], indent=2, ensure_ascii=False))
        if found["headers"]:
            click.echo("headers")
            block(json.dumps(found["headers"], indent=2, ensure_ascii=False))


def clock_time_of(iso: str) -> str:
    """A time of ours, without the fraction of a second."""
    from datetime import datetime

    return clock_time(datetime.fromisoformat(iso).timestamp())
