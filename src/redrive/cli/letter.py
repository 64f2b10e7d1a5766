"""One letter, as people and machines read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.render import ago, block, clock_time, facts, moment, say
from redrive.policy.action import BEHIND_HEAD
from redrive.policy.letters import shown_state

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.store.port import LetterRow

FOLLOWERS_SHOWN = 10


def since(letter: LetterRow) -> float:
    """When it failed last, or was held if it was not called."""
    return letter.parked_at if letter.last_failed_at is None else letter.last_failed_at


def summary(letter: LetterRow, behind: int | None = None) -> str:
    """What happened to it, in a few words; `behind`: the letter that holds it back."""
    if letter.reason == BEHIND_HEAD:
        return f"waits behind letter {behind}" if behind else "it is its turn"
    kind = letter.error_type.rpartition(".")[2] or letter.reason
    return f"{kind}: {letter.error_message}" if letter.error_message else kind


def letter_json(letter: LetterRow, waiting: int) -> dict[str, Any]:
    return {
        "id": letter.id, "subscription": letter.subscription, "event_id": letter.event_id, "type": letter.type,
        "key": letter.key, "state": shown_state(letter.state, letter.reason), "reason": letter.reason,
        "error_type": letter.error_type, "error_message": letter.error_message, "fingerprint": letter.fingerprint,
        "attempts": letter.attempts, "first_failed_at": moment(letter.first_failed_at),
        "last_failed_at": moment(letter.last_failed_at), "waiting": waiting,
    }  # fmt: skip


def describe(app: App, letter: LetterRow, payload: bool) -> dict[str, Any]:
    """Everything there is to know about a letter; its data only if asked for, without what settings redact."""
    from redrive.cli.payload import redacted

    letters = app.operate().letters
    event, edits = letters.event(letter.id), letters.edits(letter)
    behind = letters.behind_whom([letter]).get(letter.id)
    found = letter_json(letter, letters.waiting(letter)) | {
        "behind": behind,
        "source": letter.source, "position": letter.position, "lane": letter.lane, "edits": letter.edits,
        "parked_at": moment(letter.parked_at), "due_at": moment(letter.due_at) if letter.state == "retrying" else None,
        "resolved_by": letter.resolved_by, "dependency": letter.dependency, "auto_replays": letter.auto_replays,
        "held": app.operate().holds.why(letter),
        "followers": [one.id for one in letters.behind(letter, FOLLOWERS_SHOWN)],
        "event_time": None if event is None else event.time.isoformat().replace("+00:00", "Z"),
        "history": [{**one._asdict(), "at": moment(one.at)} for one in letters.history(letter.id)],
        "revisions": [{"rev": one.rev, "bytes": len(one.data)} for one in edits],
        "audit": [{**one._asdict(), "at": moment(one.at), "details": _details(one.details)}
                  for one in letters.audit(letter)],
    }  # fmt: skip
    if payload:
        rules = app.runtime.settings.redact
        found |= {
            "data": redacted(_data(None if event is None else event.raw), rules),
            "headers": redacted(_headers(event), rules),
        }
        for shown, edit in zip(found["revisions"], edits, strict=True):
            shown["data"] = redacted(_data(edit.data), rules)
        if edits:
            found["original"] = redacted(_data(letters.original(letter)), rules)
    return found


def _data(raw: bytes | None) -> Any:
    """The data as JSON; bytes that are none are shown as they are."""
    from redrive.cli.payload import read

    if raw is None:
        return None
    try:
        return read(raw)
    except ValueError:
        return raw.decode("utf-8", "backslashreplace")


def _details(text: str) -> Any:
    """What the audit knows besides; a row that somebody spoilt is shown as it is."""
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _headers(event: Any) -> Any:
    from redrive.errors import Undecodable

    try:
        return {} if event is None else event.headers
    except Undecodable:
        return {}


def show_letter(found: dict[str, Any], now: float) -> None:
    """Print what `describe` found; beside its times stands how long ago they were."""
    import json

    found = found | {name: _beside(found[name], now) for name in ("first_failed_at", "last_failed_at", "due_at")}
    if found["behind"] or (found["held"] and (found["due_at"] or "").startswith("9999")):
        found["due_at"] = None  # it is due when it is its turn, or when its key is released
    if found["reason"] == BEHIND_HEAD:
        found["reason"] = f"waits behind letter {found['behind']}" if found["behind"] else "it is its turn"
    named = ("subscription", "state", "reason", "type", "key", "event_id", "position", "event_time", "attempts")
    facts([("letter", found["id"]), *((name, found[name]) for name in named)])
    facts(
        (name, found[name])
        for name in ("waiting", "first_failed_at", "last_failed_at", "due_at", "held", "resolved_by")
    )
    facts([("dependency", found["dependency"]), ("auto replays", found["auto_replays"] or None)])
    facts([("error", f"{found['error_type']}: {found['error_message']}" if found["error_type"] else "")])
    facts([("fingerprint", found["fingerprint"])])
    if found["followers"]:
        more = ", …" if found["waiting"] > len(found["followers"]) else ""
        noun = "letter" if len(found["followers"]) == 1 else "letters"
        facts([("behind it", f"{noun} {', '.join(map(str, found['followers']))}{more}")])
    for one in found["history"]:
        when = clock_time_of(one["at"])
        click.echo("")
        say(f"attempt {one['attempt']}  {when}  {one['outcome']}  by {one['worker']}")
        block(one["traceback"])
    if "original" in found:
        click.echo("\noriginal")
        block(json.dumps(found["original"], indent=2, ensure_ascii=False))
    for one in found["revisions"]:
        click.echo(f"\nedit {one['rev']}: {one['bytes']} bytes")
        if "data" in one:
            block(json.dumps(one["data"], indent=2, ensure_ascii=False))
    for one in found["audit"]:
        click.echo("")
        say(f"{clock_time_of(one['at'])}  {one['who']}  {one['action']}  {one['reason']}")
    if "data" in found:
        click.echo("\ndata")
        block(json.dumps(found["data"], indent=2, ensure_ascii=False))
        if found["headers"]:
            click.echo("headers")
            block(json.dumps(found["headers"], indent=2, ensure_ascii=False))


def _beside(iso: str | None, now: float) -> str | None:
    from datetime import datetime

    from redrive.units import show_duration

    if iso is None:
        return None
    seconds = datetime.fromisoformat(iso).timestamp()
    told = ago(seconds, now) if seconds <= now else f"in {show_duration(round(seconds - now))}"
    return f"{iso} ({told})"


def clock_time_of(iso: str) -> str:
    """A time of ours, without the fraction of a second."""
    from datetime import datetime

    return clock_time(datetime.fromisoformat(iso).timestamp())
