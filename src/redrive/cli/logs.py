"""`redrive events` and `redrive append`: what is in the logs, and one more event by hand."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from redrive.cli.program import app_option, json_option, opened, reads, store_option
from redrive.cli.render import block, clock_time, emit_json, moment, say, table

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.replay.events import EventRow, Wanted

LOOK_EVERY = 0.05  # seconds between two questions whether anything was committed
FOLLOW_PAGE = 1000

create_option = click.option("--create", is_flag=True, help="Make the log, and the store, if there is none.")


@click.command()
@click.argument("log", required=False)
@click.option("--key", metavar="KEY", help="Only events of this key.")
@click.option("--type", "kind", metavar="TYPE", help="Only events of this type; globs like order.*")
@click.option("--since", metavar="TIME", help="Only at or after this time, or of the last 2h.")
@click.option("--until", metavar="TIME", help="Only before this time, or older than 2h.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Events per page.")
@click.option("--after", type=click.IntRange(0, 2**62), metavar="POSITION", help="The page after this position.")
@click.option("--follow", is_flag=True, help="Then show new events as they come, until Ctrl-C.")
@click.option("--payload", is_flag=True, help="Show data and headers too.")
@reads
def events(
    log: str | None, key: str | None, kind: str | None, since: str | None, until: str | None, limit: int,
    after: int | None, follow: bool, payload: bool, store: str | None, program: str | None, as_json: bool,
) -> int:  # fmt: skip
    """The newest events of a log, or of all logs, in order.

    --after 0 begins with the first, --after POSITION goes on from there. With --follow and --json, each event is one
    line.
    """
    from redrive.cli.select import moment_of
    from redrive.replay.events import Wanted, following, newest

    wanted = Wanted(log, key, kind, moment_of(since), moment_of(until))
    with opened(store, program) as app:
        show = Listing(wanted, payload, as_json, app.runtime.settings.redact)
        if follow:
            _follow(app, show, wanted, after, limit, payload)
            return 0
        if after is None:
            rows = newest(app.runtime.store, wanted, limit, payload=payload)
        else:
            rows = following(app.runtime.store, wanted, after, limit, payload=payload)
    if as_json:
        emit_json([show.fields(row) for row in rows])
        return 0
    show.page(rows)
    if not rows:
        click.echo("no events" if not after else "no more events")
    elif len(rows) == limit and not payload:
        click.echo(f"\nnext page: --after {rows[-1].position}" if after is not None else "\nfrom the first: --after 0")
    return 0


@click.command()
@click.argument("log")
@click.argument("kind", metavar="TYPE")
@click.argument("data", metavar="[DATA|-|@FILE]", required=False)
@click.option("--key", metavar="KEY", help="What the event is about; events of one key stay in order.")
@click.option("--id", "event_id", metavar="ID", help="Its id; the same event appended twice is stored once.")
@click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="A header; may be repeated.")
@click.option("--expected-version", type=click.IntRange(0), metavar="N", help="Only if the key's last version is N.")
@click.option("--after", metavar="TIME", help="Not now, but in 30m, say.")
@click.option("--reason", default="", help="Why; goes into the audit.")
@create_option
@store_option
@app_option
@json_option
def append(
    log: str, kind: str, data: str | None, key: str | None, event_id: str | None, headers: Sequence[str],
    expected_version: int | None, after: str | None, reason: str, create: bool, store: str | None,
    program: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Append one event, durably. DATA is JSON; - reads it from stdin, @FILE from a file; without it, null.

    With --app, data that the type's class cannot read is refused.
    """
    from redrive.replay.transfer import append as append_event

    given = _headers(headers)
    raw = _data(data)
    with opened(store, program, create=create) as app:
        event, is_new = append_event(
            app.operate().operator, app.runtime.types, log, kind, raw, key=key, id=event_id, headers=given,
            expected_version=expected_version, after=after, reason=reason, create=create,
        )  # fmt: skip
    if as_json:
        fields = {"position": event.position, "log": log, "id": event.id, "type": event.type, "key": event.key}
        emit_json(fields | {"version": event.version, "time": moment(event.time_us / 1e6), "new": is_new})
        return 0
    if event.due is not None:
        said = "scheduled" if is_new else "it is scheduled already:"
        say(f"{said} {event.id} for {clock_time(event.due.timestamp())} in {log}")
        return 0
    said = "appended" if is_new else "it was there already:"
    of_key = f", version {event.version} of key {event.key}" if event.key is not None else ""
    say(f"{said} {event.id} at position {event.position} of {log}{of_key}")
    return 0


class Listing:
    """Events as rows of a table, as blocks with their payload, or as JSON."""

    def __init__(self, wanted: Wanted, payload: bool, as_json: bool, redact: Sequence[str]) -> None:
        self._all_logs = wanted.log is None
        self._payload, self._json, self._redact = payload, as_json, redact

    def page(self, rows: Sequence[EventRow]) -> None:
        """Rows for people."""
        if not rows:
            return
        if self._payload:
            for row in rows:
                self._block(row)
            return
        logs = ("log",) if self._all_logs else ()
        cells = [
            (row.position, *((row.log,) if self._all_logs else ()), clock_time(row.time_us / 1e6), row.type,
             row.key or "", row.id)
            for row in rows
        ]  # fmt: skip
        table((">position", *logs, "time", "type", "key", "id"), cells, keep=("time",))

    def line(self, row: EventRow) -> None:
        """One event that has just come."""
        if self._json:
            click.echo(json.dumps(self.fields(row)))
        elif self._payload:
            self._block(row)
        else:
            log = f"{row.log}  " if self._all_logs else ""
            parts = (row.type, row.key or "", row.id)
            say(f"{row.position:>8}  {log}{clock_time(row.time_us / 1e6)}  {'  '.join(parts)}")

    def fields(self, row: EventRow) -> dict[str, Any]:
        """The documented fields."""
        found = {
            "position": row.position, "log": row.log, "id": row.id, "type": row.type, "key": row.key,
            "version": row.version, "schema": row.schema, "time": moment(row.time_us / 1e6), "bytes": row.size,
        }  # fmt: skip
        return found | payload_fields(row.headers_raw, row.data_raw, self._redact) if self._payload else found

    def _block(self, row: EventRow) -> None:
        from redrive.cli.payload import show_payload

        version = f"  version {row.version}" if row.version is not None else ""
        say(f"{row.position}  {row.log}  {clock_time(row.time_us / 1e6)}  {row.type}")
        say(f"id {row.id}" + (f"  key {row.key}" if row.key is not None else "") + version, "  ")
        for name, raw in (("headers", row.headers_raw), ("data", row.data_raw)):
            if raw is not None:
                click.echo(f"  {name}")
                block(show_payload(raw, self._redact), "    ")


def payload_fields(headers: bytes | None, data: bytes | None, redact: Sequence[str]) -> dict[str, Any]:
    """`data` and `headers` without what is redacted; bytes that are no JSON are shown as text."""
    from redrive.cli.payload import read, redacted

    found: dict[str, Any] = {}
    for name, raw in (("data", data), ("headers", b"{}" if headers is None else headers)):
        try:
            found[name] = None if raw is None else redacted(read(raw), redact)
        except ValueError:
            found[name] = (raw or b"").decode("utf-8", "backslashreplace")
    return found


def _follow(app: App, show: Listing, wanted: Wanted, after: int | None, limit: int, payload: bool) -> None:
    """What there is, then what comes: every commit of anybody moves the store's change counter."""
    from redrive.replay.events import EVERYWHERE, following, last_position, newest

    store = app.runtime.store
    try:
        store.changed()  # before the first look, so that nothing falls between the two
        if after is None:
            after = last_position(store)
            for row in newest(store, wanted, limit, payload=payload):
                show.line(row)
                after = max(after, row.position)
        sys.stdout.flush()
        while True:
            # In one log nothing comes below the last any more: what was passed over is not read again.
            upto = EVERYWHERE if wanted.log is None else last_position(store, wanted.log)
            rows = following(store, wanted, after, FOLLOW_PAGE, upto=upto, payload=payload)
            for row in rows:
                show.line(row)
                after = row.position
            if wanted.log is not None and len(rows) < FOLLOW_PAGE:
                after = max(after, upto)
            sys.stdout.flush()
            while len(rows) < FOLLOW_PAGE and not store.changed():
                time.sleep(LOOK_EVERY)
    except KeyboardInterrupt:  # the way to end it
        return


def stdin() -> BinaryIO:
    """What is typed or piped in."""
    if sys.stdin is None or sys.stdin.closed:
        raise click.UsageError("there is no stdin to read from: name a file")
    return sys.stdin.buffer


def _headers(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--header {one!r}: write NAME=TEXT")
        if name in found:
            raise click.UsageError(f"--header {name!r} is given twice")
        found[name] = text
    return found


def _data(given: str | None) -> bytes:
    """The JSON of an event, from the line, a file or stdin."""
    if given is None:
        return b"null"
    if given == "-":
        return stdin().read()
    if given.startswith("@"):
        from pathlib import Path

        try:
            return Path(given[1:]).read_bytes()
        except OSError as error:
            raise click.UsageError(f"cannot read {given[1:]!r}: {error.strerror or error}") from None
    return given.encode()
