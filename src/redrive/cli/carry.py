"""`redrive dlq export` and `import`: letters out into a file, repaired data back in; and letters from a mirror."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from redrive.cli.edit import edit_each
from redrive.cli.letter import letter_json
from redrive.cli.program import app_option, complete_file, confirm, json_option, opened, reads, store_option, yes_option
from redrive.cli.progress import counting, progress, quiet_option
from redrive.cli.receipt import exit_code, report, report_nothing
from redrive.cli.render import emit_json, plural, say
from redrive.cli.select import chooses

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redrive.replay.bringing import Brought
    from redrive.replay.letters import LetterDesk
    from redrive.replay.select import Selection
    from redrive.store.port import LetterRow

SHOW_EVERY = 500  # letters of an export
SHOWN = 10  # letters that were skipped; --json has all of them


class _Line(NamedTuple):
    """One letter of a file, and the line it is in."""

    place: int
    letter: int
    rev: int
    event_id: str | None
    data: Any


@click.command("export")
@chooses
@click.option("--out", metavar="FILE", help="Write to this file, which appears when it is complete; else to stdout.")
@quiet_option
@reads
def export_letters(
    selection: Selection, out: str | None, quiet: bool, store: str | None, program: str | None, as_json: bool
) -> int:
    """Dead letters with their data as JSON lines, nothing redacted."""
    from redrive.replay.select import select

    selection.check_names()
    with opened(store, program) as app:
        desk = app.operate().letters
        letters = select(app.runtime.store, selection)
        lines = (_exported(desk, letter) for letter in letters)
        if out in (None, "-"):
            for line in lines:
                click.echo(line)
            return 0
        with (
            complete_file(out, app.runtime.settings.file_mode) as file,
            progress("export", "letters", len(letters), quiet=quiet or as_json) as show,
        ):
            for count, line in enumerate(lines, 1):
                file.write(line.encode() + b"\n")
                if count % SHOW_EVERY == 0:
                    show(count)
    if not as_json:
        click.echo(f"{plural(len(letters), 'letter')} exported", err=True)
    return 0


@click.command("import")
@click.argument("source", metavar="FILE|FOLDER|REDIS")
@click.option("--reason", required=True, help="Why; goes into the audit.")
@quiet_option
@yes_option
@store_option
@app_option
@json_option
def import_letters(
    source: str, reason: str, quiet: bool, yes: bool, store: str | None, program: str | None, as_json: bool
) -> int:
    """Take the data of exported letters back, as edits; or letters from a mirror.

    Each line of an export names its letter by `id` and the `rev` it was exported at; one that has changed since is
    skipped, and so is one whose data is the same.

    Of a mirror (a file, its folder, or redis://HOST/DB/STREAM) letters that were still open are imported, with their
    events, where the store does not have these. Run again, it imports nothing twice.
    """
    from redrive.mirrors.reading import is_mirror
    from redrive.replay.deed import need_reason

    need_reason("import", reason)
    if is_mirror(source):
        return _bring_back(source, reason, quiet, yes, store, program, as_json)
    try:
        with click.open_file(source, "r", encoding="utf-8") as file:
            lines = list(_lines(file))
    except OSError as error:
        raise click.UsageError(f"cannot read {source!r}: {error.strerror or error}") from None
    return _edit_back(lines, reason, quiet, yes, store, program, as_json)


def _bring_back(
    source: str, reason: str, quiet: bool, yes: bool, store: str | None, program: str | None, as_json: bool
) -> int:
    from redrive.mirrors.lines import Damage
    from redrive.mirrors.reading import read
    from redrive.replay.bringing import bring_back, newest

    damaged, entries = 0, []
    for one in read(source):
        if isinstance(one, Damage):
            damaged += 1
        else:
            entries.append(one)
    found, settled = newest(entries)
    with opened(store, program) as app:
        desk = app.operate()
        if found:
            confirm(f"Import {plural(len(found), 'open letter')}, where they are not here already?", yes)
        with progress("import", "letters", len(found), quiet=quiet or as_json) as show:
            brought = bring_back(desk.operator, desk.letters, entries, reason, show)
    if as_json:
        skipped = [
            {"subscription": one.subscription, "letter": one.letter, "event_id": one.event_id, "why": why}
            for one, why in brought.skipped
        ]
        numbers = {"open": len(found), "imported": brought.imported, "edited": brought.edited}
        emit_json(numbers | {"settled": settled, "damaged": damaged, "skipped": skipped})
    else:
        _report(brought, settled, damaged)
    return 0 if not (brought.skipped or damaged) else 3 if brought.imported or brought.edited else 1


def _report(brought: Brought, settled: int, damaged: int) -> None:
    for entry, why in brought.skipped[:SHOWN]:
        say(f"letter {entry.letter} of {entry.subscription} skipped: {why}", "  ")
    if len(brought.skipped) > SHOWN:
        click.echo(f"  … and {len(brought.skipped) - SHOWN:,} more")
    parts = [f"{plural(brought.imported, 'letter')} imported"]
    parts += [f"{count:,} {what}" for count, what in (
        (brought.edited, "edited"), (len(brought.skipped), "skipped"), (settled, "settled before"),
    ) if count]  # fmt: skip
    click.echo(", ".join(parts))
    if damaged:
        click.echo(f"{plural(damaged, 'damaged line')} left out", err=True)


def _edit_back(
    lines: Sequence[_Line], reason: str, quiet: bool, yes: bool, store: str | None, program: str | None, as_json: bool
) -> int:
    with opened(store, program) as app:
        desk = app.operate()
        letters = _letters(desk.letters, lines)
        data = {one.letter: one.data for one in lines}
        if not letters:
            return report_nothing(app, "edit", reason, as_json, "the file holds no letters with data")
        confirm(f"Edit {plural(len(letters), 'letter')}?", yes)
        number = desk.bulk.begin("edit", letters, reason)

        def deed(rows: Any, ticket: Any) -> Any:
            return edit_each(desk.letters, rows, lambda row, _: data[row.id], reason, ticket)

        with progress("import", "letters", len(letters), quiet=quiet or as_json) as show:
            desk.bulk.ask(number, counting(deed, show))
        operation = desk.bulk.get(number)
        report(desk.bulk, operation, as_json)
    return exit_code(operation)


def _letters(desk: LetterDesk, lines: Sequence[_Line]) -> list[LetterRow]:
    """The letters that the lines mean, each once: numbers alone may be those of another store."""
    seen: dict[int, int] = {}
    found = []
    for one in lines:
        letter = desk.get(one.letter)
        if letter is None:
            raise click.UsageError(f"there is no letter {one.letter} in this store: nothing was imported")
        if one.event_id not in (None, letter.event_id):
            raise click.UsageError(
                f"line {one.place} holds event {one.event_id}, but letter {one.letter} of this store holds "
                f"{letter.event_id}: was it exported from another store? nothing was imported"
            )
        before = seen.setdefault(one.letter, one.place)
        if before != one.place:
            raise click.UsageError(
                f"letter {one.letter} is in line {before} and in line {one.place}: nothing was imported"
            )
        found.append(letter._replace(rev=one.rev))
    return found


def _exported(desk: LetterDesk, letter: LetterRow) -> str:
    line = letter_json(letter, desk.waiting(letter)) | {"rev": letter.rev, "lane": letter.lane}
    return json.dumps(line | _payload(desk.event(letter.id)))


def _payload(event: Any) -> dict[str, Any]:
    """The data as JSON, or as base64 where it is none."""
    if event is None:
        return {}
    try:
        return {"data": json.loads(event.raw)}
    except (ValueError, RecursionError):
        return {"data_base64": base64.b64encode(event.raw).decode()}


def _lines(file: Any) -> Iterable[_Line]:
    try:
        for place, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
                number, rev = found["id"], found["rev"]
                if not (type(number) is int and type(rev) is int and 0 < number < 2**62 and 0 <= rev < 2**62):
                    raise ValueError("id and rev are numbers")
                if "data" not in found and "data_base64" not in found:
                    raise ValueError("it has no data")
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise click.UsageError(f"line {place} is no exported letter ({error}): nothing was imported") from None
            if "data" in found:
                yield _Line(place, number, rev, found.get("event_id"), found["data"])
    except UnicodeDecodeError:
        raise click.UsageError("the file is not UTF-8: nothing was imported") from None
