"""One way to say which letters are meant, on every `dlq` command."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.replay.select import Selection

F = TypeVar("F", bound=Callable[..., Any])


def moment_of(text: str | None) -> float | None:
    """`2h` ago, or a time like 2026-01-31T03:00Z, in seconds since 1970."""
    from redrive.units import duration

    if text is None:
        return None
    try:
        return time.time() - duration(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is neither a duration like 2h nor a time like 2026-01-31T03:00Z") from None
    if found.tzinfo is None:
        raise click.UsageError(f"{text!r} has no time zone; append Z or +01:00")
    return found.timestamp()


def filters(command: F, because: tuple[str, ...] = ("--reason", "--because")) -> F:
    """`-s --type --key --reason --error --fingerprint --since --until`, handed on as one `selection`.

    Where `--reason` says why something is done, letters are chosen by `--because`.
    """

    @wraps(command)
    def with_selection(
        subscription: str | None, event_type: str | None, key: str | None, why: str | None, error: str | None,
        fingerprint: str | None, since: str | None, until: str | None, *arguments: Any, **options: Any,
    ) -> Any:  # fmt: skip
        from redrive.replay.select import Selection

        ids = tuple(options.pop("ids", ()))
        everything = bool(options.pop("everything", False))
        selection = Selection(
            ids, subscription, event_type, key, why, error, fingerprint, moment_of(since), moment_of(until), everything
        )
        return command(*arguments, selection=selection, **options)

    decorated: Any = with_selection
    for option in (
        click.option("--until", metavar="TIME", help="Failed last before this time, or so long ago (2h)."),
        click.option("--since", metavar="TIME", help="Failed last at or after this time, or within 2h."),
        click.option("--fingerprint", metavar="F", help="Of this cause; its beginning is enough."),
        click.option("--error", metavar="TEXT", help="With this in their error's type or message."),
        click.option(*because, "why", metavar="REASON", help="Dead for this reason, e.g. rejected."),
        click.option("--key", metavar="KEY", help="Of this key."),
        click.option("--type", "event_type", metavar="TYPE", help="Of this event type; globs like order.*"),
        click.option("-s", "--subscription", metavar="NAME", help="Of this subscription."),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def chooses(command: F) -> F:
    """The filters, and beside them `ID…` and `--all`: for commands that only look."""
    return _with_ids(filters(command))


def selects(command: F) -> F:
    """The same for commands that do something and say why."""
    return _with_ids(filters(command, ("--because",)))


def nothing_like(app: App, selection: Selection, because: str) -> str:
    """What to say where nothing was found: a type or a reason that no letter ever had may be mistyped."""
    import difflib

    from redrive.policy.action import REASONS

    stats = app.operate().letters.stats()
    for option, given, known in (
        ("--type", selection.type, stats.by("type")),
        (because, selection.reason, REASONS),
    ):
        if given is not None and given not in known:
            near = difflib.get_close_matches(given, known, n=1)
            if near:
                return f"no dead letters; did you mean {option} {near[0]}?"
    return "no dead letters"


def _with_ids(command: F) -> F:
    decorated: Any = click.option("--all", "everything", is_flag=True, help="Every dead letter.")(command)
    return click.argument("ids", metavar="[ID]...", nargs=-1)(decorated)  # type: ignore[no-any-return]
