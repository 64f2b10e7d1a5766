"""`redrive config show`: which settings hold, and who said so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.program import app_option, json_option, opened, store_option
from redrive.cli.render import emit_json, facts, plain, table

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.replay.effective import Option


@click.group()
def config() -> None:
    """The settings that hold, and where each came from."""


@config.command()
@click.argument("names", metavar="[OPTION]...", nargs=-1)
@store_option
@app_option
@json_option
def show(names: tuple[str, ...], store: str | None, program: str | None, as_json: bool) -> int:
    """Every setting with its value and where it came from.

    default: built in; program: the code; file or profile: redrive.toml; environment: a REDRIVE_ variable; flag:
    this command line. With --app, those of the program's subscriptions too. OPTION shows just these, uncut.
    Needs no store.
    """
    flagged = store or click.get_current_context().find_object(str)
    with opened(store, program, create=True) as app:
        options = _options(app, bool(flagged))
    if names:
        options = _chosen(options, names)
    if as_json:
        emit_json([{"name": o.name, "value": o.value, "source": o.source, "where": o.where or None} for o in options])
    elif names:
        for one in options:
            facts([("option", one.name), ("value", _shown(one)), ("source", one.source), ("where", one.where)])
    else:
        rows = [(one.name, _shown(one), one.source, one.where) for one in options]
        table(("option", "value", "source", "where"), rows, keep=("option", "source"))
    return 0


def _options(app: App, flagged: bool) -> list[Option]:
    from redrive.replay.effective import effective, from_program

    runtime = app.runtime
    settings = runtime.settings
    origins = from_program(settings) if runtime.origins is None else dict(runtime.origins)
    if flagged and origins.get("store") == "REDRIVE_STORE":
        origins["store"] = "--store"
    return effective(settings, origins, runtime.url, app.subscriptions)


def _chosen(options: list[Option], names: tuple[str, ...]) -> list[Option]:
    from difflib import get_close_matches

    known = {one.name: one for one in options}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "`redrive config show` lists them"
            raise click.UsageError(f"there is no option {plain(name)!r}; {hint}")
    return [known[name] for name in dict.fromkeys(names)]


def _shown(one: Option) -> str:
    if one.value is None:
        return "not set"
    return ", ".join(one.value) if isinstance(one.value, list) else str(one.value)
