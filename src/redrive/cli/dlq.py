"""`redrive dlq`: the dead letters. What broke, who waits behind it, and the story of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from redrive.cli.attention import check_option, report_needs
from redrive.cli.lazy import Commands
from redrive.cli.letter import describe, letter_json, show_letter, since, summary
from redrive.cli.program import opened, reads
from redrive.cli.render import ago, beside, emit_json, fit, moment, plain, plural, say, short_time, table
from redrive.cli.select import chooses, filters, nothing_like, reads_only

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.replay.attention import Need
    from redrive.replay.causes import Cause
    from redrive.replay.select import Selection

COMMANDS = {
    "list": ("dlq:list_letters", "Dead letters at the head of their lane, oldest first."),
    "show": ("dlq:show", "One letter: its event, its error, every attempt, who waits, what was done."),
    "stats": ("dlq:stats", "How many letters there are and were, from counters."),
    "replay": ("deeds:replay", "Send dead letters round once more: one attempt each, then dead again."),
    "now": ("due:now", "Try retrying letters again at once; the attempts that they have made stay counted."),
    "postpone": (
        "due:postpone",
        "Try retrying letters again later; no attempt is spent, and the letters behind them go on waiting.",
    ),
    "edit": ("edit:edit", "Give letters other data."),
    "discard": ("deeds:discard", "Give letters up for good; what waits behind them runs."),
    "resolve": ("deeds:resolve", "What these letters ask for was done elsewhere: close them, and let others go on."),
    "note": ("dlq:note", "Write down what is known about a cause; it is shown with it from now on."),
    "export": ("carry:export_letters", "Dead letters with their data as JSON lines, nothing redacted."),
    "import": ("carry:import_letters", "Take the data of exported letters back, as edits; or letters from a mirror."),
    "replay-all": ("deeds:replay_all", ""),
    "purge": ("deeds:purge", ""),
}
SHOWN = 20


@click.group(cls=Commands, table=COMMANDS, invoke_without_command=True)
@reads_only
@filters
@click.option("--limit", default=SHOWN, show_default=True, type=click.IntRange(1, 1000), help="Causes shown.")
@check_option
@reads
@click.pass_context
def dlq(
    context: click.Context, limit: int, check: bool, store: str | None, program: str | None, as_json: bool,
    selection: Selection,
) -> int:  # fmt: skip
    """Dead letters by cause: what broke, how often, and who waits behind it.

    With filters: the causes that such letters have. With --check only what needs an operator is told, and the exit
    code is 4 if anything does: dead letters count if the filters choose them.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context.invoked_subcommand, context)
        return 0
    from redrive.replay.causes import causes

    with opened(store, program) as app:
        if check:
            return report_needs(_needs(app, selection), as_json)
        found, total, exact = causes(app.runtime.store, selection, limit)
        now = app.runtime.env.clock.now()
        nothing = "" if found else nothing_like(app, selection)
    if not exact:
        click.echo("only the first letters that match were looked at; there may be more causes", err=True)
    if as_json:
        emit_json([_cause_json(one) for one in found])
        return 0
    if not found:
        say(nothing)
        return 0
    for one in found:
        _show_cause(one, now)
    if total > len(found):
        click.echo(f"… and {plural(total - len(found), 'more cause')}: --limit {total}")
    worst = fit(found[0].fingerprint[:8], 10)
    click.echo(f"look:     redrive dlq list --fingerprint {worst}")
    say(f"rehearse: redrive dlq replay --fingerprint {worst} --rehearse --app MODULE:APP")
    return 0


@click.command("list")
@chooses
@click.option("--parked", is_flag=True, help="What waits behind dead letters, instead of these.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Letters per page.")
@click.option("--after", default=0, type=click.IntRange(0), metavar="ID", help="The page after this letter.")
@reads
def list_letters(
    parked: bool, limit: int, after: int, store: str | None, program: str | None, as_json: bool, selection: Selection
) -> int:
    """Dead letters at the head of their lane, oldest first."""
    from redrive.policy.action import HELD
    from redrive.replay.select import select_held, select_parked, select_with_waiting

    selection.check_names()
    with opened(store, program) as app:
        chosen = select_held if selection.reason == HELD else select_parked if parked else select_with_waiting
        heads = chosen(app.runtime.store, selection, after=after, limit=limit)
        behind = app.operate().letters.behind_whom([letter for letter, _ in heads])
        now = app.runtime.env.clock.now()
        nothing = "" if heads else nothing_like(app, selection)
    if as_json:
        emit_json([letter_json(letter, waiting) | {"behind": behind.get(letter.id)} for letter, waiting in heads])
        return 0
    if not heads:
        what = "nothing waits behind dead letters" if parked else nothing
        say(what if not after else f"no more: {what}")
        return 0
    rows = [
        (letter.id, letter.subscription, letter.type, letter.key or "", summary(letter, behind.get(letter.id)),
         letter.attempts, short_time(since(letter)), ago(since(letter), now), waiting)
        for letter, waiting in heads
    ]  # fmt: skip
    columns = (">id", "subscription", "type", "key", "error", ">tries", ">at", ">ago", ">waiting")
    keep = ("subscription", "error") if behind else ("subscription",)
    table(columns, rows, keep=keep, drop=("type", "tries", "at"))
    if len(heads) == limit:
        click.echo(f"\nnext page: --after {heads[-1][0].id}")
    return 0


@click.command()
@chooses
@click.option("--payload", is_flag=True, help="Show the event's data and headers too.")
@click.option("--limit", default=1, show_default=True, type=click.IntRange(1, 100),
              help="Letters shown, where they are not named by IDs.")  # fmt: skip
@reads
def show(payload: bool, limit: int, store: str | None, program: str | None, as_json: bool, selection: Selection) -> int:
    """One letter: its event, its error, every attempt, who waits, what was done.

    Without letters to choose, the one that failed last; with filters, the oldest of them.
    """
    from redrive.replay.select import newest, select

    selection.check_names()
    with opened(store, program) as app:
        if selection.is_empty:
            found = newest(app.runtime.store, limit + 1)
        else:
            found = select(app.runtime.store, selection, limit=limit + 1)
        now = app.runtime.env.clock.now()
        more = not selection.ids and len(found) > limit
        details = [describe(app, letter, payload) for letter in (found[:limit] if more else found)]
        nothing = "" if found else nothing_like(app, selection)
    if as_json:
        emit_json(details[0] if len(selection.ids) == 1 else details)
        return 0
    for number, one in enumerate(details):
        if number:
            click.echo("")
        show_letter(one, now)
    if more:
        after = "" if selection.is_empty else f" --after {details[-1]['id']}"
        click.echo(f"\nthere are more: --limit, or redrive dlq list{after}")
    if nothing:
        say(nothing)
    return 0


@click.command()
@chooses
@click.option("--by", default="state", show_default=True, help="subscription, state, reason, type or fingerprint.",
              type=click.Choice(["subscription", "state", "reason", "type", "fingerprint"]))  # fmt: skip
@click.option("--limit", default=1_500, show_default=True, type=click.IntRange(1, 10_000_000),
              help="Letters looked at by --key, --error, --since, --until.")  # fmt: skip
@reads
def stats(by: str, limit: int, store: str | None, program: str | None, as_json: bool, selection: Selection) -> int:
    """How many letters there are and were, from counters.

    By key, error and time the dead ones are looked at and counted.
    """
    from redrive.replay.tally import tally

    selection.check_names()
    with opened(store, program) as app:
        found = tally(app.runtime.store, selection, limit)
    if not found.exact:
        click.echo(f"only the first {limit} letters that match were counted; there are more: --limit", err=True)
    if as_json:
        emit_json([one._asdict() for one in found.counts])
        return 0
    totals = sorted(found.by(by).items(), key=lambda pair: (-pair[1], pair[0]))
    if not totals:
        click.echo("no letters yet" if selection.is_empty else "no such letters")
        return 0
    table((by, ">letters"), [(name or "(none)", count) for name, count in totals])
    return 0


@click.command()
@click.argument("fingerprint")
@click.argument("text")
@click.option("--resolved", is_flag=True, help="The cause is fixed: if it comes back, it is shown as regressed.")
@reads
def note(fingerprint: str, text: str, resolved: bool, store: str | None, program: str | None, as_json: bool) -> int:
    """Write down what is known about a cause; it is shown with it from now on."""
    from redrive.replay import causes

    with opened(store, program) as app:
        whole = causes.note(app.operate().operator, fingerprint, text, resolved=resolved)
    if as_json:
        emit_json({"fingerprint": whole, "resolved": resolved})
    else:
        click.echo(f"noted with {plain(whole)}" + (", which counts as fixed from now on" if resolved else ""))
    return 0


def _needs(app: App, selection: Selection) -> list[Need]:
    """What needs an operator; of dead letters, those that the filters choose."""
    from redrive.replay.attention import attention, dead_letters
    from redrive.replay.tally import tally

    operations = app.operate()
    found = attention(operations.operator.store, operations.operator.env, operations.status())
    if selection.subscription is not None:
        found = [one for one in found if one.subscription in (None, selection.subscription)]
    if selection.is_empty:
        return found
    counts: dict[str, int] = {}
    for one in tally(app.runtime.store, selection).counts:
        if one.state == "dead":
            counts[one.subscription] = counts.get(one.subscription, 0) + one.n
    others = [one for one in found if one.check != "dead letters"]
    return [*others, *(dead_letters(name, count) for name, count in sorted(counts.items()))]


def _refuse_options_before(verb: str, context: click.Context) -> None:
    """`dlq -s orders list` would list everything: what is said of a verb stands behind it."""
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        (option,) = [one.opts[-1] for one in context.command.params if one.name == given[0]]
        raise click.UsageError(f"{option} goes behind the verb: redrive dlq {verb} {option} …")


def _show_cause(one: Cause, now: float) -> None:
    standing = f"  [{one.standing}]" if one.standing else ""
    click.echo(f"{plural(one.dead, 'letter')}  {fit(one.subscription, 40)}  {plain(one.fingerprint[:8])}{standing}")
    kind = one.error_type.rpartition(".")[2] or ", ".join(one.reasons)
    click.echo("  " + fit(f"{kind}: {one.error_message}" if one.error_message else kind, 78))
    click.echo(f"  {plural(one.lanes, 'lane')} held back, {plural(one.waiting, 'event')} waiting")
    say(f"first {beside(one.first_seen, now)}, last {beside(one.last_seen, now)}", "  ")
    click.echo("  " + fit(f"types: {', '.join(one.types)}", 78))
    for entry in one.notes:
        click.echo("  " + fit(f"{'fixed' if entry.resolved else 'note'} by {entry.who}: {entry.text}", 78))
    click.echo("")


def _cause_json(one: Cause) -> dict[str, Any]:
    return {
        "fingerprint": one.fingerprint, "subscription": one.subscription, "dead": one.dead, "lanes": one.lanes,
        "waiting": one.waiting, "error_type": one.error_type,
        "error_message": one.error_message, "reasons": list(one.reasons), "types": list(one.types),
        "first_seen": moment(one.first_seen), "last_seen": moment(one.last_seen), "standing": one.standing,
        "notes": [{"at": moment(n.at), "who": n.who, "text": n.text, "resolved": bool(n.resolved)} for n in one.notes],
    }  # fmt: skip
