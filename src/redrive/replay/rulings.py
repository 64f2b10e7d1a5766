"""Asking the rules of an app about an event that has not failed: what would become of its letter, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from redrive import cloudevents
from redrive.codec import NOT_JSON, from_json
from redrive.draft import draft
from redrive.errors import EventError, UsageError
from redrive.event import Event, NewEvent, from_row
from redrive.policy.action import REASONS
from redrive.policy.fingerprint import fingerprint
from redrive.policy.outcome import Failure
from redrive.policy.rules import Candidate, Drop, Rules, Step
from redrive.replay.deed import hint
from redrive.subscription import overruled_letters

if TYPE_CHECKING:
    from redrive.app import App

KEPT, DISCARDED = "kept", "discarded"
_EVENT = msgspec.json.Decoder(dict[str, Any])
_FIELDS = ("type", "data", "key", "id", "headers")


@dataclass(frozen=True, slots=True)
class Trouble:
    """How the event is imagined to have failed."""

    reason: str = "attempts_exhausted"
    error: str = "Exception"  # the type, and behind a colon the text
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the rules of one subscription say."""

    subscription: str
    asks: bool  # would it be called for this type at all?
    verdict: str  # kept or discarded
    rule: str | None  # the one that decided
    why: str
    steps: tuple[Step, ...]


def rulings(app: App, raw: bytes, trouble: Trouble, only: str | None = None) -> list[Ruling]:
    """One for each subscription: of the program, or, if it declares none, of the settings."""
    if trouble.reason not in REASONS:
        raise UsageError(f"no letter is dead for the reason {trouble.reason!r}; there are {', '.join(REASONS)}")
    app._import_included()
    event = _event(app, raw)
    kind, _, text = trouble.error.partition(":")
    failure = Failure(kind.strip(), text.strip(), "", fingerprint(kind.strip(), [], text.strip()))
    found = []
    settings = app.runtime.settings.subscriptions
    names = list(app.subscriptions) or list(settings)
    if only is not None and only not in names:
        raise UsageError(f"there is no subscription {only!r}; {hint(only, names)}")
    for name in names if only is None else [only]:
        declared = app.subscriptions.get(name)
        made = declared.policy.letters if declared else Rules()
        if name in settings:
            made = overruled_letters(made, settings[name].letters, f"settings: `subscriptions.{name}.letters")
        asks = declared is None or declared.wants(event.type)
        candidate = Candidate(name, event, trouble.attempts, trouble.reason, failure)
        found.append(_ruling(name, asks, made, candidate))
    return found


def _ruling(name: str, asks: bool, made: Rules, candidate: Candidate) -> Ruling:
    judged = made.explain(candidate.event.type, candidate)
    steps = judged.steps
    if isinstance(judged.verdict, Drop):
        return Ruling(name, asks, DISCARDED, judged.verdict.rule, f"{judged.verdict.rule} {steps[-1].answer}", steps)
    if broken := judged.verdict.broken_rule:
        return Ruling(name, asks, KEPT, steps[-1].rule, f"a rule that cannot answer keeps ({broken})", steps)
    if steps and steps[-1].answer in ("fits", "answered True"):
        return Ruling(name, asks, KEPT, steps[-1].rule, f"{steps[-1].rule} {steps[-1].answer}", steps)
    return Ruling(name, asks, KEPT, None, "no rule fits" if steps else "it has no rules", steps)


def _event(app: App, raw: bytes) -> Event[Any]:
    """A CloudEvent, or what `append` takes."""
    types, env = app.runtime.types, app.runtime.env
    try:
        fields = _EVENT.decode(raw)
    except (*NOT_JSON, RecursionError) as error:
        raise EventError(f"the event is not a JSON object: {error}") from None
    made: NewEvent
    if "specversion" in fields:
        made = cloudevents.decode(raw.strip(), int(env.clock.now() * 1e6))
    else:
        if unknown := set(fields) - set(_FIELDS):
            raise EventError(f"unknown field {min(unknown)!r}; an event has {', '.join(_FIELDS)}")
        if not isinstance(fields.get("type"), str):
            raise EventError("the event has no type")
        known = {name: fields[name] for name in ("key", "id", "headers") if fields.get(name) is not None}
        made = draft(types, env, fields["type"], from_json(msgspec.json.encode(fields.get("data"))), **known)
    version = None if made.key is None else 1
    row = (0, made.id, made.type, made.key, version, made.schema, made.time_us, made.headers_raw, made.data_raw)
    return from_row(row, types)
