"""Waiting for a worker, or being one for a while, so that a replay or rebuild is over when the command ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import click

from redrive.cli.render import plain

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.replay.status import SubscriptionStatus

LOOK_EVERY = 0.1  # seconds between two looks at the store; each takes a few milliseconds
OWNERS_EVERY = 5  # looks until the owners are looked at again, which may take longer
UNOWNED_MAX = 5.0  # seconds without any owner after which nobody is coming


def owners(app: App) -> dict[str, SubscriptionStatus]:
    """Every subscription by name, with who owns it."""
    return {one.subscription: one for one in app.operate().status()}


def finish(app: App, here: Collection[str], elsewhere: Collection[str], is_done: Callable[[], bool]) -> None:
    """Until `is_done`: run some subscriptions in this process, wait for the owners of others."""
    asyncio.run(_finish(app, here, elsewhere, is_done))


async def _finish(app: App, here: Collection[str], elsewhere: Collection[str], is_done: Callable[[], bool]) -> None:
    if here:
        async with app.running(only=here, strict=True):
            await _watch(app, {*here, *elsewhere}, is_done)
    else:
        await _watch(app, set(elsewhere), is_done)


async def _watch(app: App, names: set[str], is_done: Callable[[], bool]) -> None:
    """Look again and again; a subscription that stands still ends the waiting with its reason."""
    unowned, looks = 0.0, 0
    while not is_done():
        if looks % OWNERS_EVERY == 0:
            lonely = _lonely(app, names)
            unowned = unowned + OWNERS_EVERY * LOOK_EVERY if lonely else 0.0
            if unowned > UNOWNED_MAX:
                raise click.ClickException(
                    f"nobody runs {', '.join(map(plain, lonely))} any more; what was asked stays asked"
                )
        looks += 1
        await asyncio.sleep(LOOK_EVERY)


def _lonely(app: App, names: set[str]) -> list[str]:
    """Those of these subscriptions that have no owner; one that stands still is an error."""
    found = [one for name, one in owners(app).items() if name in names]
    for one in found:
        if one.halted is not None:
            raise click.ClickException(f"{plain(one.subscription)} is halted: {one.halted}")
        if one.paused:
            raise click.ClickException(f"{plain(one.subscription)} is paused; nothing runs until it is resumed")
    return [one.subscription for one in found if one.owner is None]
