"""`redrive explain`, `redrive lanes` and `redrive state`: what became of an event, who waits, what a key remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.letter import summary
from redrive.cli.program import opened, reads
from redrive.cli.render import block, clock_time, emit_json, facts, moment, say, short_time, table

if TYPE_CHECKING:
    from redrive.replay.explain import Fate
    from redrive.replay.lanes import Lane


@click.command()
@click.argument("event_id")
@click.option("--log", metavar="LOG", help="Only look in this log.")
@reads
def explain(event_id: str, log: str | None, store: str | None, program: str | None, as_json: bool) -> int:
    """One event's fate in every subscription, and why. The beginning of its id is enough if it is the only one."""
    from redrive.replay.explain import explain as explained

    with opened(store, program) as app:
        found = explained(app.runtime.store, app.runtime.env, event_id.removesuffix("…"), log)
    event = found.event
    about: dict[str, Any] = {
        "id": event.id, "log": event.log, "position": event.position, "type": event.type, "key": event.key,
        "version": event.version, "time": moment(event.time_us / 1e6),
    }  # fmt: skip
    if as_json:
        emit_json({**about, "fates": [_fate(fate) for fate in found.fates]})
        return 0
    facts([("event", event.id), *(pair for pair in about.items() if pair[0] != "id")])
    if not found.fates:
        say(f"no subscription reads the log {event.log}")
    for fate in found.fates:
        _show_fate(fate)
    return 0


@click.command()
@click.option("-s", "--subscription", metavar="NAME", help="Only lanes of this subscription.")
@click.option("--key", metavar="KEY", help="Only the lane of this key.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Lanes per page.")
@click.option("--after", type=click.IntRange(1, 2**62), metavar="LETTER", help="The page after the lane of this head.")
@reads
def lanes(
    subscription: str | None, key: str | None, limit: int, after: int | None, store: str | None, program: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Keys that are held back: by which letter, since when, and how many events wait behind it; worst first."""
    from redrive.replay.lanes import lanes as blocked
    from redrive.units import show_duration

    with opened(store, program) as app:
        now = app.runtime.env.clock.now()
        found = blocked(app.runtime.store, subscription, after, limit, key=key, now=now)
    if as_json:
        emit_json([_lane(one, now) for one in found])
        return 0
    if not found:
        if key is not None:
            say(f"no letter holds the key {key} back")
        else:
            click.echo("no key is held back" if after is None else "no more keys are held back")
        return 0
    rows = [
        (one.head.id, one.subscription, one.lane, one.head.state, one.head.reason, summary(one.head),
         short_time(one.head.parked_at), show_duration(round(one.age(now), 1)), one.waiting)
        for one in found
    ]  # fmt: skip
    columns = (">letter", "subscription", "key", "state", "reason", "error", ">since", ">age", ">waiting")
    table(columns, rows, keep=("key", "state"), drop=("reason", "error"))
    for one in found:
        if one.held is not None:
            say(f"{one.lane} of {one.subscription} is {one.held}")
    if len(found) == limit:
        click.echo(f"\nnext page: --after {found[-1].head.id}")
    return 0


@click.command()
@click.argument("subscription")
@click.argument("key")
@click.option("--payload", is_flag=True, help="Show the state itself too.")
@reads
def state(subscription: str, key: str, payload: bool, store: str | None, program: str | None, as_json: bool) -> int:
    """The keyed state that a handler keeps for a key: who wrote it last, and its size."""
    from redrive.cli.logs import payload_fields
    from redrive.cli.payload import show_payload
    from redrive.replay.keyed import state_of

    with opened(store, program) as app:
        found = state_of(app.runtime.store, subscription, key)
        redact = app.runtime.settings.redact
    about: dict[str, Any] = {
        "subscription": found.subscription, "key": found.key, "version": found.version, "bytes": len(found.data),
        "event_id": found.event_id, "event_type": found.event_type, "event_time": moment(found.event_time),
    }  # fmt: skip
    if as_json:
        shown = {"data": payload_fields(None, found.data, redact)["data"]} if payload else {}
        emit_json(about | shown)
        return 0
    facts(about.items())
    if payload:
        click.echo("\ndata")
        block(show_payload(found.data, redact))
    return 0


def _fate(fate: Fate) -> dict[str, Any]:
    return {
        "subscription": fate.subscription, "fate": fate.fate, "why": fate.why, "at": moment(fate.at),
        "letter": fate.letter, "lane": fate.lane, "behind": fate.behind, "ahead": fate.ahead, "error": fate.error,
        "attempts": fate.attempts, "superseded": list(fate.superseded),
        "emitted": [{"log": log, "id": made, "position": position} for log, made, position in fate.emitted],
    }  # fmt: skip


def _show_fate(fate: Fate) -> None:
    click.echo()
    say(f"{fate.subscription}: {fate.fate}")
    block(fate.why)
    known = "settled by" if fate.fate in ("applied", "settled") and fate.letter is None else "at"
    facts([(known, clock_time(fate.at)), ("lane", fate.lane), ("letter", fate.letter), ("behind letter", fate.behind)])
    facts([("letters ahead" if fate.letter else "events ahead", fate.ahead), ("attempts", fate.attempts or None)])
    facts([("superseded", ", ".join(f"letter {number}" for number in fate.superseded))])
    facts(("emitted", f"{made} (position {position} of {log})") for log, made, position in fate.emitted)


def _lane(one: Lane, now: float) -> dict[str, Any]:
    head = one.head
    return {
        "subscription": one.subscription, "lane": one.lane, "letter": head.id, "position": head.position,
        "event_id": head.event_id, "type": head.type, "state": head.state, "reason": head.reason,
        "error_type": head.error_type, "error_message": head.error_message, "attempts": head.attempts,
        "parked_at": moment(head.parked_at), "age_seconds": round(one.age(now), 3),
        "due_at": moment(head.due_at) if head.state == "retrying" else None, "waiting": one.waiting,
        "held": one.held,
    }  # fmt: skip
