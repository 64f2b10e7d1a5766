"""Shell completion: the names of subscriptions, logs, causes and operations, as the store has them now.

It reads with a connection of its own, so that pressing Tab imports no program, makes no store, migrates none, and says
nothing if there is none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

ITEMS_MAX = 200  # offered at once: more are not looked at
SECONDS_MAX = 1  # to reach a server, or to wait for a lock: somebody waits with a finger on the key

# What an argument or an option names, by its own name or by the word that stands for it in the help.
_NAMES = {"subscription": "subscriptions", "no_rebuild": "subscriptions", "log": "logs", "logs": "logs",
          "fingerprint": "fingerprints", "number": "operations", "why": "reasons"}  # fmt: skip
_WORDS = {"SUBSCRIPTION": "subscriptions", "LOG": "logs"}
_QUERIES = {"subscriptions": "complete_subscriptions", "logs": "complete_logs",
            "fingerprints": "complete_fingerprints", "operations": "complete_operations"}  # fmt: skip

Row = Sequence[Any]


class _Named(click.types.StringParamType):
    """Text that names something in the store."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return complete(self._kind, ctx, incomplete)


class _Number(click.IntRange):
    """A number that names something in the store."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return complete("operations", ctx, incomplete)


def attach(command: click.Command) -> click.Command:
    """Let the parameters of a command, and of the commands below it, complete what they name."""
    for parameter in command.params:
        word = (parameter.metavar or "").strip("[].…")
        kind = _NAMES.get(parameter.name or "") or _WORDS.get(word)
        if parameter.name in ("store", "file"):
            parameter.type = click.Path()
        elif isinstance(parameter.type, click.IntRange) and kind == "operations":
            parameter.type = _Number(parameter.type.min, parameter.type.max)
        elif isinstance(parameter.type, click.types.StringParamType) and kind is not None:
            parameter.type = _Named(kind)
    if isinstance(command, click.Group):
        for inner in command.commands.values():  # those that are loaded when they are named come here by themselves
            attach(inner)
    return command


def complete(kind: str, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """What begins like this; nothing if there is no store, or if it cannot be read at once."""
    try:
        if kind == "reasons":
            from redrive.policy.action import REASONS

            rows: Sequence[Row] = [(reason, "") for reason in REASONS]
        else:
            rows = _rows(_QUERIES[kind], _store_of(ctx))
    except Exception:  # the line that is being typed is no place for an error
        return []
    return [CompletionItem(str(name), help=str(told)) for name, told in rows if str(name).startswith(incomplete)]


def _store_of(ctx: click.Context) -> str | None:
    """The store that the line names so far, else the environment's or that of redrive.toml."""
    from redrive.settings import store_named

    named = ctx.params.get("store") or next((one.params.get("store") for one in _outwards(ctx)), None)
    return named or store_named(Path.cwd(), os.environ)


def _outwards(ctx: click.Context) -> Sequence[click.Context]:
    found = [ctx]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return [one for one in found if one.params.get("store")]


def _rows(query: str, store: str | None) -> Sequence[Row]:
    from redrive.runtime import glance

    return () if store is None else glance(store, query, {"limit": ITEMS_MAX}, SECONDS_MAX)
