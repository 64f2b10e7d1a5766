"""`redrive copy`: move a stopped app from one store to another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from redrive.cli.program import json_option
from redrive.cli.progress import progress, quiet_option
from redrive.cli.render import emit_json, facts, plural, say

if TYPE_CHECKING:
    from redrive.replay.copy import Copied
    from redrive.replay.deed import Operator
    from redrive.runtime import Runtime


@click.command()
@click.option("--from", "source", required=True, metavar="STORE", help="The store there is, e.g. shop.db.")
@click.option("--to", "target", required=True, metavar="STORE", help="An empty one, e.g. postgresql://db/shop.")
@click.option("--tables-moved", is_flag=True, help="You move the tables of projections yourself: no rebuild.")
@quiet_option
@json_option
def copy(source: str, target: str, tables_moved: bool, quiet: bool, as_json: bool) -> int:
    """Copy everything that redrive keeps from one store to another, in either direction.

    Logs, progress, letters with their history, keyed state and audit arrive as they were: positions, ids and epochs
    go on. Every worker and producer must be stopped. Your own tables are not copied: a projection's are filled by
    `redrive rebuild`, unless you bring them over yourself, with --tables-moved. Interrupted, run it again: it goes on.
    The target cannot be used before the accounts of both stores are equal. The source is only read.
    """
    from redrive.replay.copy import copy as copy_store
    from redrive.runtime import store_address

    if store_address(source) == store_address(target):
        raise click.UsageError("--from and --to are the same store")
    with _runtime(source) as old, _runtime(target) as new:
        old.check_exists()
        with progress("copy", "rows", quiet=quiet or as_json) as show:
            result = copy_store(
                _operator(old), _operator(new, fill=True), lease=old.settings.lease, tables_moved=tables_moved,
                told=lambda done, total: show(done, max(1, total)),
            )  # fmt: skip
        if as_json:
            emit_json(_fields(result, old.shown, new.shown))
        else:
            _report(result, old.shown, new.shown)
    return 0


@contextmanager
def _runtime(store: str) -> Iterator[Runtime]:
    """This store, whatever the environment and redrive.toml call the store."""
    import msgspec

    from redrive.runtime import Runtime

    settings = Runtime(None, None, None, inline=False).settings
    runtime = Runtime(None, msgspec.structs.replace(settings, store=store), None, inline=False)
    try:
        yield runtime
    finally:
        runtime.close()


def _operator(runtime: Runtime, *, fill: bool = False) -> Operator:
    from redrive.replay.deed import Operator, whoami

    return Operator(runtime.store_to_fill if fill else runtime.store, runtime.env, runtime.signals, whoami())


def _fields(result: Copied, source: str, target: str) -> dict[str, object]:
    from dataclasses import asdict

    accounts = [{**asdict(one), "sound": one.sound} for one in result.accounts]
    return {
        "from": source, "to": target, "rows": result.rows, "copied": result.copied, "resumed": result.resumed,
        "subscriptions": accounts, "audit": {**asdict(result.audit), "sound": result.audit.sound},
        "rebuild": list(result.rebuild),
    }  # fmt: skip


def _report(result: Copied, source: str, target: str) -> None:
    there = "nothing, it was there already" if not result.copied else plural(result.copied, "row")
    facts([
        ("from", source), ("to", target), ("copied", there), ("accounts", _accounts(result)),
        ("audit", f"{plural(result.audit.rows, 'row')}, each fits the one before it"),
    ])  # fmt: skip
    for name in result.rebuild:
        say(f"its tables are empty: redrive rebuild {name} --app MODULE:APP")


def _accounts(result: Copied) -> str:
    names = plural(len(result.accounts), "subscription")
    return f"{names}, the same on both sides" if result.copied else names
