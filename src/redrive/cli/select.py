"""One way to say which letters are meant, on every `dlq` command."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.cli.render import plain, plural

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.replay.bulk import Operation
    from redrive.replay.select import Selection
    from redrive.store.port import LetterRow

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


def filters(command: F) -> F:
    """Add `-s --type --key --dlq-reason --error --fingerprint --since --until`, passed on as one `selection`.

    `--reason` is the text for the audit on every command, and never filters. A command that only reads has no audit
    text, so it refuses `--reason` and names the filter.
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
        click.option("--dlq-reason", "why", metavar="REASON", help="Dead for this reason, e.g. rejected."),
        _refused("--because"),
        click.option("--key", metavar="KEY", help="Of this key."),
        click.option("--type", "event_type", metavar="TYPE", help="Of this event type; globs like order.*"),
        click.option("-s", "--subscription", metavar="NAME", help="Of this subscription."),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def chooses(command: F) -> F:
    """The filters, and beside them `ID…` and `--all`: for commands that only look."""
    return _with_ids(reads_only(filters(command)))


def reads_only(command: F) -> F:
    """Refuse `--reason`, which the reading commands of former versions took for the filter."""
    return _refused("--reason")(command)


def selects(command: F) -> F:
    """The same for commands that do something and say why."""
    return _with_ids(filters(command))


def nothing_like(app: App, selection: Selection) -> str:
    """What to say where nothing was found: a type or a reason that no letter ever had may be mistyped."""
    import difflib

    from redrive.policy.action import REASONS

    stats = app.operate().letters.stats()
    for option, given, known in (
        ("--type", selection.type, stats.by("type")),
        ("--dlq-reason", selection.reason, REASONS),
    ):
        if given is not None and given not in known:
            near = difflib.get_close_matches(given, known, n=1)
            if near:
                return f"no dead letters; did you mean {option} {near[0]}?"
            if option == "--dlq-reason":
                return f"no dead letters; there is no reason {given}, there are: {', '.join(REASONS)}"
    under_way = app.operate().bulk.waiting(limit=1)
    return f"no dead letters; {_told(under_way[0])}" if under_way else "no dead letters"


def _told(operation: Operation) -> str:
    """Letters that were dead and have been asked for are not dead any more: they wait for their turn."""
    return (
        f"operation {operation.id} has {plural(operation.waiting, 'letter')} that wait for their turn: "
        f"{operation.selected:,} selected, {operation.applied:,} applied, {operation.failed:,} failed "
        f"(redrive ops {operation.id})"
    )


def covered(selection: Selection, letters: Sequence[LetterRow], reason: str, limit: int | None = None) -> str:
    """The selected letters in the words of a confirmation: how many, and of which subscription if it is all of them.

    An audit text that reads like a filter is pointed out: with `--all` it excludes no letter.
    """
    from redrive.policy.action import REASONS

    if not selection.everything or len(letters) == limit:
        return plural(len(letters), "letter")
    of = "" if selection.subscription is None else f" of {plain(selection.subscription)}"
    told = f"all {plural(len(letters), 'dead letter')}{of}"
    if reason in REASONS:
        chosen = sum(letter.reason == reason for letter in letters)
        told += f" (--reason is only the text for the audit; --dlq-reason {reason} would choose {chosen:,} of them)"
    return told


def _refused(option: str) -> Callable[[F], F]:
    """A former spelling of `--dlq-reason`: not listed, and refused with the name that it has now."""

    def refuse(context: click.Context, parameter: click.Parameter, given: str | None) -> None:
        if given is not None:
            what = "is the text for the audit of a change" if option == "--reason" else "has another name"
            raise click.UsageError(
                f"{option} {what}; to choose letters by why they are dead, write --dlq-reason {given}", context
            )

    return click.option(option, f"former_{option[2:]}", hidden=True, expose_value=False, callback=refuse)


def _with_ids(command: F) -> F:
    decorated: Any = click.option("--all", "everything", is_flag=True, help="Every dead letter.")(command)
    return click.argument("ids", metavar="[ID]...", nargs=-1)(decorated)  # type: ignore[no-any-return]
