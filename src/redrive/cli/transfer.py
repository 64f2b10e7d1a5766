"""`redrive export` and `redrive import`: logs as files of CloudEvents, one JSON object to a line."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from redrive.cli.logs import create_option, stdin
from redrive.cli.program import (
    app_option,
    check_target,
    complete_file,
    confirm,
    json_option,
    opened,
    store_option,
    yes_option,
)  # fmt: skip
from redrive.cli.progress import progress, quiet_option
from redrive.cli.render import emit_json, plain, plural, say

if TYPE_CHECKING:
    from redrive.replay.transfer import Imported

FLUSH_EVERY = 500  # events


@click.command("export")
@click.argument("log")
@click.option("--out", metavar="FILE", help="Write to this file, which appears when it is complete; else to stdout.")
@click.option("--key", metavar="KEY", help="Only events of this key.")
@click.option("--type", "kind", metavar="TYPE", help="Only events of this type; globs like order.*")
@click.option("--since", metavar="TIME", help="Only at or after this time, or of the last 2h.")
@click.option("--until", metavar="TIME", help="Only before this time, or older than 2h.")
@click.option("--after", default=0, type=click.IntRange(0, 2**62), metavar="POSITION", help="Only above this position.")
@quiet_option
@yes_option
@store_option
@app_option
def export_log(
    log: str, out: str | None, key: str | None, kind: str | None, since: str | None, until: str | None, after: int,
    quiet: bool, yes: bool, store: str | None, program: str | None,
) -> int:  # fmt: skip
    """Write a log's events as CloudEvents 1.0, one JSON object to a line, in order.

    It ends with the last event there is when it begins. Nothing is redacted: this is your data.
    """
    from redrive.cli.select import moment_of
    from redrive.replay.events import Wanted, last_position
    from redrive.replay.scheduled import scheduled_for
    from redrive.replay.transfer import export

    wanted = Wanted(log, key, kind, moment_of(since), moment_of(until))
    out = None if out == "-" else out
    check_target(out)
    if out is not None and os.path.isfile(out):
        confirm(f"Replace {plain(out)} ({os.path.getsize(out):,} bytes)?", yes)
    is_watched = out is None and sys.stdout is not None and sys.stdout.isatty()  # the events themselves are seen
    with opened(store, program) as app:
        waits = scheduled_for(app.runtime.store, log)
        lines = export(app.runtime.store, wanted, after)
        first = next(lines, None)  # an unknown log is an error before a file is made
        count, last = 0, after
        with (
            complete_file(out, app.runtime.settings.file_mode) as target,
            progress("export", "events", last_position(app.runtime.store) - after, quiet=quiet or is_watched) as show,
        ):
            shown = _escaped if is_watched else bytes
            for row, line in itertools.chain([] if first is None else [first], lines):
                target.write(shown(line) + b"\n")
                count, last = count + 1, row.position
                if count % FLUSH_EVERY == 0:
                    show(last - after, count=count)
    where = f" to {out}" if out is not None else ""
    until_position = f", the last at position {last}" if count else ""
    say(f"{plural(count, 'event')} exported{where}{until_position}", err=out is None)
    if waits:
        say(f"not exported: {plural(waits, 'event')} that the log waits for; see `redrive scheduled {log}`", err=True)
    return 0


@click.command("import")
@click.argument("log")
@click.argument("file", metavar="FILE|-")
@click.option("--skip-bad", is_flag=True, help="Leave bad lines out, count them, and go on.")
@click.option("--reason", default="", help="Why; goes into the audit.")
@create_option
@quiet_option
@store_option
@app_option
@json_option
def import_log(
    log: str, file: str, skip_bad: bool, reason: str, create: bool, quiet: bool, store: str | None, program: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Append the CloudEvents of a file to a log; ids, times, types, keys, schemas and headers are kept.

    Interrupted, run it again: what is there already is not added twice. A bad line ends it, unless --skip-bad; the exit
    code is 3 then if anything was imported or left out.
    """
    from redrive.replay.transfer import load

    with opened(store, program, create=create) as app, _source(file) as source:
        size = 0 if file == "-" else os.path.getsize(file)
        with progress("import", "lines", size or None, quiet=quiet or as_json) as show:
            result = load(
                app.operate().operator, log, source, skip_bad=skip_bad, reason=reason, create=create, name=file,
                told=lambda so_far: show(so_far.bytes, count=so_far.lines),
            )  # fmt: skip
    _report(result, log, skip_bad, as_json)
    if result.bad == 0:
        return 0
    return 3 if skip_bad or result.added or result.present else 1


def _report(result: Imported, log: str, skip_bad: bool, as_json: bool) -> None:
    if as_json:
        errors = [{"line": one.line, "why": one.why} for one in result.errors]
        numbers = {"lines": result.lines, "added": result.added, "present": result.present, "bad": result.bad}
        emit_json(numbers | {"complete": not result.stopped, "errors": errors})
        return
    for one in result.errors:
        say(f"line {one.line}: {one.why}", "  ", err=True)
    if result.bad > len(result.errors):
        click.echo(f"  … and {result.bad - len(result.errors):,} more", err=True)
    parts = [f"{plural(result.added, 'event')} added to {log}"]
    if result.present:
        parts.append(f"{result.present:,} were there already")
    if result.bad:
        parts.append(f"{plural(result.bad, 'bad line')}" + (" left out" if skip_bad else ""))
    say(", ".join(parts))
    if result.stopped:
        click.echo("stopped there: mend the file and import it again, or add --skip-bad")


@contextlib.contextmanager
def _source(file: str) -> Iterator[Iterator[bytes]]:
    from redrive.cloudevents import LINE_BYTES_MAX

    if file == "-":
        yield _lines(stdin(), LINE_BYTES_MAX)
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115  (closed below, where other errors are not its own)
    except OSError as error:
        raise click.UsageError(f"cannot read {file!r}: {error.strerror or error}") from None
    with stream:
        yield _lines(stream, LINE_BYTES_MAX)


def _lines(stream: BinaryIO, most: int) -> Iterator[bytes]:
    """Lines; of one that is far too long only the beginning is kept."""
    while line := stream.readline(most + 2):
        whole = line
        while not line.endswith(b"\n") and (line := stream.readline(most)):
            pass
        yield whole


def _escaped(line: bytes) -> bytes:
    """What is beyond ASCII as JSON escapes: a terminal is looking."""
    import json

    text = line.decode(errors="replace")
    return "".join(one if one < "\x7f" else json.dumps(one)[1:-1] for one in text).encode()
