"""`redrive migrate`: bring a database to the storage format of this version."""

from __future__ import annotations

import click

from redrive.cli.program import app_option, json_option, opened, store_option
from redrive.cli.render import emit_json, facts


@click.command()
@click.option("--check", is_flag=True, help="Only say whether anything is to be done; exit code 3 if so.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the statements instead of running them.")
@store_option
@app_option
@json_option
def migrate(check: bool, as_sql: bool, store: str | None, program: str | None, as_json: bool) -> int:
    """Bring a Postgres database to the storage format of this version.

    An empty database becomes a store by itself when a program first uses it; this is for a role that may make tables
    where the program's may not, and for a new version of redrive. Each step is one transaction: whatever happens, the
    database has the format before it or the one after it. A file is brought up to date whenever it is opened.
    """
    if check and as_sql:
        raise click.UsageError("--check and --sql are two questions: ask one")
    if as_sql and as_json:
        raise click.UsageError("--sql prints statements, which are no JSON: leave one of the two out")
    with opened(store, program, create=True) as app, app.runtime.migration() as migration:
        before, newest = migration.present, migration.newest
        migration.check()
        if as_sql:
            click.echo(migration.sql() or f"-- storage format {before}: nothing to do\n", nl=False)
            return 0
        done = [] if check else list(migration.run())
        where = app.runtime.shown
    missing = max(0, newest - (done[-1] if done else before))
    if as_json:
        emit_json({"store": where, "before": before, "format": newest, "steps": done, "missing": missing})
    else:
        facts([("store", where), ("format", _told(before, done, newest if missing else 0))])
    return 3 if missing else 0


def _told(before: int, done: list[int], needed: int) -> str:
    found = str(before or "none")
    if done:
        return f"{found} -> {done[-1]}"
    return f"{found}, this version needs {needed}: redrive migrate" if needed else f"{found}, up to date"
