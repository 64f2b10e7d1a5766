"""Every setting with the value that holds and where it came from: built in, program, file, profile, environment.

It reads what was loaded; it loads nothing itself. A password in the name of a store is never part of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import msgspec

from redrive.masking import mask
from redrive.policy.auto_replay import AutoReplay
from redrive.policy.retry import Retry
from redrive.policy.rules import named
from redrive.settings import LetterSettings, ReplaySettings, Settings, SubscriptionSettings, marks
from redrive.subscription import Subscription
from redrive.units import duration, show_duration, show_size

BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting, as it would be written in redrive.toml."""

    name: str
    value: Any
    source: str  # default, program, file, profile, environment or flag
    where: str  # the file, the variable or the flag; empty for the other two


def effective(
    settings: Settings, origins: Mapping[str, str], store: str | None, declared: Mapping[str, Subscription]
) -> list[Option]:
    """All options in the order of the reference; those of subscriptions after them.

    `store` is what the program says, `declared` are its subscriptions: both hold where the settings are silent.
    """
    hints = get_type_hints(Settings, include_extras=True)
    found = []
    for name in Settings.__struct_fields__:
        if name == "subscriptions":
            continue
        value, origin = getattr(settings, name), origins.get(name, BUILT_IN)
        if name == "store":
            value, origin = (value, origin) if value else (store, "program" if store else BUILT_IN)
            value = None if value is None else mask(value)
        found.append(_option(name, _written(value, hints[name]), origin))
    for name in dict.fromkeys([*declared, *settings.subscriptions]):
        found += _of_subscription(name, settings.subscriptions.get(name), origins, declared.get(name))
    return found


def _of_subscription(
    name: str, given: SubscriptionSettings | None, origins: Mapping[str, str], code: Subscription | None
) -> Iterator[Option]:
    mine = given or SubscriptionSettings()
    for prefix, values, in_code, built_in in (
        ("", mine, code, {field.name: field.default for field in fields(Subscription)}),
        ("retry.", mine.retry, _one_rule(code), msgspec.structs.asdict(Retry())),
    ):
        for field, hint in get_type_hints(type(values), include_extras=True).items():
            if field in ("retry", "letters", "replay"):
                continue
            full, value = f"subscriptions.{name}.{prefix}{field}", getattr(values, field)
            if value is not None:
                yield _option(full, _written(value, hint), origins.get(full, "program"))
            elif in_code is not None:
                value = getattr(in_code, field)
                origin = BUILT_IN if value == built_in[field] else "program"
                yield _option(full, _written(value, hint), origin)
            elif code is not None and prefix:
                yield _option(full, f"{len(code.policy.retry)} rules", "program")
    yield from _of_letters(name, mine.letters, origins, code)
    yield from _of_replay(name, mine.replay, origins, code)


def _of_letters(
    name: str, given: LetterSettings, origins: Mapping[str, str], code: Subscription | None
) -> Iterator[Option]:
    """Rules are listed where there are any; by their names, since some are functions."""
    for field in LetterSettings.__struct_fields__:
        full, value = f"subscriptions.{name}.letters.{field}", getattr(given, field)
        if value is not None:
            yield _option(full, _written(value, None), origins.get(full, "program"))
        elif code is not None and (rules := getattr(code.policy.letters, field)):
            yield _option(full, named(rules), "program")


def _of_replay(
    name: str, given: ReplaySettings, origins: Mapping[str, str], code: Subscription | None
) -> Iterator[Option]:
    """Listed where there is automatic replay, or somebody has said something about it."""
    rule = None if code is None else code.replay
    for field, hint in get_type_hints(ReplaySettings, include_extras=True).items():
        full, value = f"subscriptions.{name}.replay.{field}", getattr(given, field)
        if value is not None:
            yield _option(full, _written(value, hint), origins.get(full, "program"))
        elif rule is not None and field != "enabled":
            value = getattr(rule, field)
            origin = BUILT_IN if value == getattr(AutoReplay(), field) else "program"
            yield _option(full, _written(value, hint), origin)


def _one_rule(code: Subscription | None) -> Retry | None:
    """The retry rule of a subscription that has just one; several have several numbers."""
    return None if code is None or len(code.policy.retry) != 1 else code.policy.retry[0]


def from_program(settings: Settings) -> dict[str, str]:
    """Origins for settings that the program has made itself: what differs from the defaults is its own."""
    defaults = msgspec.structs.asdict(Settings())
    given = msgspec.structs.asdict(settings)
    return {name: BUILT_IN if value == defaults[name] else "program" for name, value in given.items()}


def _option(name: str, value: Any, origin: str) -> Option:
    if origin in (BUILT_IN, "program"):
        return Option(name, value, "default" if origin == BUILT_IN else origin, "")
    if origin.startswith("--"):
        return Option(name, value, "flag", origin)
    if origin.startswith("REDRIVE_"):
        return Option(name, value, "environment", origin)
    return Option(name, value, "profile" if origin.endswith("]") and " [profiles." in origin else "file", origin)


def _written(value: Any, hint: Any) -> Any:
    """A value as the file has it: durations and sizes with their unit."""
    if isinstance(value, tuple):
        return list(value)
    if value is None or isinstance(value, bool | str) or not (units := set(marks(hint))):
        return value
    if "duration" in units:
        shown = show_duration(value)
        return shown if duration(shown) == value else f"{value:g}s"
    if "rate" in units:
        return f"{value:g}/s" if value >= 1 else f"{value * 86_400:g}/d"
    if "size" in units:
        return show_size(value)
    return value
