"""`redrive hold` and `redrive release`: keep the events of a key back, and let them go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.program import F, app_option, json_option, opened, store_option
from redrive.cli.render import clock_time, emit_json, moment, plural, say

if TYPE_CHECKING:
    from redrive.replay.holds import HoldStatus


def _about_a_key(command: F) -> F:
    """The arguments that say which key of which subscription is meant."""
    key = click.option("--key", metavar="KEY", help="The key; with a star at the end ('tenant-7/*') every such key.")
    everywhere = click.option("--all", "everywhere", is_flag=True, help="In every subscription, also in later ones.")
    name = click.argument("name", metavar="[SUBSCRIPTION]", required=False)
    return name(everywhere(key(command)))


@click.command()
@_about_a_key
@click.option("--until", metavar="TIME", help="For so long (2h), or until this time. Without it: until `release`.")
@click.option("--reason", default="", help="Why; goes into the audit. Needed.")
@store_option
@app_option
@json_option
def hold(
    name: str | None, everywhere: bool, key: str | None, until: str | None, reason: str, store: str | None,
    program: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Keep the events of one key back; without --key, list what is held.

    The key's next event becomes a letter that is not called and spends no attempt; what follows waits behind it, and
    other keys go on. A call that is under way ends. Retries of the key wait too.
    """
    if key is None:
        if until is not None or reason or everywhere:
            raise click.UsageError("name the key to hold: --key KEY, or --key 'tenant-7/*' for all that begin so")
        return _list(name, store, program, as_json)
    subscription = _subscription(name, everywhere)
    with opened(store, program) as app:
        held = app.operate().holds.hold(subscription, reason, **_pattern(key), until=until)
    if as_json:
        emit_json(_fields(held))
        return 0
    say(f"{_where(held.subscription)}: {_what(held)} held {_end(held)}")
    return 0


@click.command()
@_about_a_key
@click.option("--reason", default="", help="Why; goes into the audit.")
@store_option
@app_option
@json_option
def release(
    name: str | None, everywhere: bool, key: str | None, reason: str, store: str | None, program: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """End a hold: the letters that wait because of it run now, in order.

    Name the key, or the prefix, as it was held.
    """
    if key is None:
        raise click.UsageError("name the key to release: --key KEY; `redrive hold` lists what is held")
    subscription = _subscription(name, everywhere)
    with opened(store, program) as app:
        desk = app.operate().holds
        changed = desk.release(subscription, reason, **_pattern(key))
        others = [one for one in desk.list(subscription) if _covers(one, key)]
    if as_json:
        still = [_fields(one) for one in others]
        emit_json({"subscription": subscription, "key": key, "changed": changed, "still_held_by": still})
        return 0
    what, now, then = (f"the keys {key}", "are", "were") if key.endswith("*") else (f"key {key}", "is", "was")
    say(f"{_where(subscription)}: {what} {f'{now} released' if changed else f'{then} not held'}")
    for one in others:
        again = "--all" if one.subscription is None else one.subscription
        say(f"still held ({one.reason}): redrive release {again} --key {_quoted(one.key)}")
    return 0


def _list(name: str | None, store: str | None, program: str | None, as_json: bool) -> int:
    with opened(store, program) as app:
        found = app.operate().holds.list(name)
    if as_json:
        emit_json([_fields(one) for one in found])
        return 0
    if not found:
        click.echo("no key is held")
        return 0
    for one in found:
        waits = f" ({plural(one.letters, 'letter')})" if one.letters else ""
        told = f"held by {one.who} since {clock_time(one.since)}, {_end(one)}: {one.reason}{waits}"
        say(f"{_where(one.subscription)}: {_what(one)} {told}")
    return 0


def _subscription(name: str | None, everywhere: bool) -> str | None:
    """The subscription that is meant; None: every one."""
    if everywhere == (name is not None) or name == "*":
        raise click.UsageError("name one subscription, or say --all for every one")
    return name


def _pattern(key: str) -> dict[str, str]:
    return {"prefix": key[:-1]} if key.endswith("*") else {"key": key}


def _covers(one: HoldStatus, key: str) -> bool:
    """Does this hold keep back some of the keys that were to be released?"""
    if one.is_prefix:
        return key.removesuffix("*").startswith(one.key.removesuffix("*"))
    return one.key.startswith(key[:-1]) if key.endswith("*") else one.key == key


def _where(subscription: str | None) -> str:
    return subscription or "all subscriptions"


def _what(one: HoldStatus) -> str:
    return f"the keys {one.key} are" if one.is_prefix else f"key {one.key} is"


def _end(one: HoldStatus) -> str:
    if one.until is None:
        return "until they are released" if one.is_prefix else "until it is released"
    return f"until {clock_time(one.until)}"


def _quoted(key: str) -> str:
    import shlex

    return shlex.quote(key)


def _fields(one: HoldStatus) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(one), "until": moment(one.until), "since": moment(one.since)}
