"""`redrive dlq edit`: other data for a letter, shown as a difference before it is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.program import app_option, confirm, json_option, opened, store_option, yes_option
from redrive.cli.progress import counting, progress
from redrive.cli.receipt import exit_code, report, report_nothing
from redrive.cli.render import plural, say
from redrive.cli.select import covered, nothing_like, selects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redrive.app import App
    from redrive.replay.bulk import Deed
    from redrive.replay.deed import Receipt, Ticket
    from redrive.replay.letters import LetterDesk
    from redrive.replay.select import Selection
    from redrive.store.port import LetterRow

DIFFS_SHOWN = 3


@click.command()
@selects
@click.option("--patch", metavar="JSON", help="Fields to change (merge patch): null removes one.")
@click.option("--data", "file", type=click.File("rb"), metavar="FILE", help="The whole data; - reads it from stdin.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many, the oldest first.")
@click.option("--reason", required=True, help="Why; goes into the audit.")
@yes_option
@store_option
@app_option
@json_option
def edit(
    selection: Selection, patch: str | None, file: Any, limit: int | None, reason: str, yes: bool,
    store: str | None, program: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Give letters other data. Id and key stay; the log keeps the original, and every revision is kept.

    The difference is shown first. With --app, data that would change the key is refused. An edited letter is still
    dead: replay it.
    """
    from redrive.replay.deed import need_reason
    from redrive.replay.select import select

    selection.check()
    need_reason("edit", reason)
    change = _change(patch, file)
    with opened(store, program) as app:
        desk = app.operate()
        letters = select(app.runtime.store, selection, limit=limit)[:limit]
        if not letters:
            return report_nothing(app, "edit", reason, as_json, nothing_like(app, selection))
        if not as_json:
            _show_differences(app, letters, change)
        confirm(f"Edit {covered(selection, letters, reason, limit)}?", yes)
        number = desk.bulk.begin("edit", letters, reason)
        deed: Deed = lambda rows, ticket: edit_each(desk.letters, rows, lambda _, data: change(data), reason, ticket)  # noqa: E731
        with progress("edit", "letters", len(letters), quiet=as_json) as show:
            desk.bulk.ask(number, counting(deed, show))
        operation = desk.bulk.get(number)
        report(desk.bulk, operation, as_json)
    return exit_code(operation)


def edit_each(
    letters: LetterDesk, rows: Sequence[LetterRow], change: Callable[[LetterRow, Any], Any], reason: str, ticket: Ticket
) -> Receipt:
    """Each letter gets what `change` makes of its data; what would not change is left as it is."""
    from redrive.codec import encode_data
    from redrive.errors import EventError
    from redrive.replay.deed import Receipt, Refusal

    data: dict[int, Any] = {}
    refused: list[Refusal] = []
    for row in rows:
        before = _current(letters, row)
        after = change(row, before)
        try:
            encode_data(after)
        except EventError as error:
            refused.append(Refusal(row.id, str(error)))
            continue
        if after == before:
            refused.append(Refusal(row.id, "this changes nothing"))
        else:
            data[row.id] = after
    receipt = letters.edit_all([row for row in rows if row.id in data], data.__getitem__, reason, within=ticket)
    return Receipt("edit", receipt.done, (*refused, *receipt.refused))


def merged(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396).

    >>> merged({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    """
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _change(patch: str | None, file: Any) -> Callable[[Any], Any]:
    if (patch is None) == (file is None):
        raise click.UsageError("give --patch JSON or --data FILE")
    text = patch if patch is not None else file.read()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{'--patch' if patch is not None else '--data'} is no JSON: {error}") from None
    if patch is not None and not isinstance(value, dict):
        raise click.UsageError('--patch is a JSON object with the fields to change, like {"cents": 4200}')
    return (lambda data: merged(data, value)) if patch is not None else (lambda data: value)


def _current(letters: LetterDesk, row: LetterRow) -> Any:
    """The data now; None if it is no JSON at all, which a whole new one can repair."""
    event = letters.event(row.id)
    if event is None:
        return None
    try:
        return json.loads(event.raw)
    except (ValueError, RecursionError):
        return None


def _show_differences(app: App, letters: Sequence[LetterRow], change: Callable[[Any], Any]) -> None:
    from difflib import unified_diff

    from redrive.cli.payload import redacted

    rules, desk = app.runtime.settings.redact, app.operate().letters
    for row in letters[:DIFFS_SHOWN]:
        before = _current(desk, row)
        old, new = (
            json.dumps(redacted(one, rules), indent=2, ensure_ascii=False).splitlines()
            for one in (before, change(before))
        )
        say(f"letter {row.id}, {row.type}, key {row.key}:")
        lines = list(unified_diff(old, new, n=1, lineterm=""))[2:]
        for line in lines:
            if not line.startswith("@@"):
                say(line, "  ")
    if len(letters) > DIFFS_SHOWN:
        click.echo(f"… and {plural(len(letters) - DIFFS_SHOWN, 'more letter')} alike")
