"""Rehearse: run the current code on letters, inside transactions that are always rolled back.

Nothing is left behind: no row, no counter, no attempt, no signal. The write lock is held in slices, and given back for
as long as each of them took, so that a live worker on the same store goes on; it is never fenced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from redrive.errors import UsageError
from redrive.replay.rehearsal import Rehearsal
from redrive.replay.rehearsing.cast import Lane, by_lane, cannot
from redrive.replay.rehearsing.handling import Handling
from redrive.replay.rehearsing.projecting import Projecting
from redrive.replay.rehearsing.scene import HOLD_MAX, House, Report
from redrive.replay.rehearsing.threads import start_thread
from redrive.runner.embed import entered
from redrive.store.port import LetterRow
from redrive.subscription import Subscription

if TYPE_CHECKING:
    from redrive.app import App

PAUSE_MAX = 0.1  # seconds between two slices; SQLite's own waiting looks as seldom as that


def rehearse(
    app: App, letters: Sequence[LetterRow], *, lane: bool = False, told: Callable[[int], None] = lambda letters: None
) -> Rehearsal:
    """What one more attempt of these letters would come to; `lane`: also of those that wait behind them.

    Handlers take part only if they are declared `rehearsable=True`. Letters that are rehearsed in one slice see each
    other's effects, those of one lane always do. `told` is called with how many are rehearsed so far.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_rehearse(app, letters, lane, told))
    raise UsageError("a rehearsal waits for its functions: in a coroutine, await asyncio.to_thread(rehearse, …)")


async def _rehearse(app: App, letters: Sequence[LetterRow], followers: bool, told: Callable[[int], None]) -> Rehearsal:
    declared = {one.name: one for one in app._selected(None, ())}
    runtime, report = app.runtime, Report()
    lanes, settled = by_lane(runtime.store, letters, followers=followers)
    report.letters += settled
    for name in [*lanes]:
        why = _why_not(name, declared.get(name))
        if why:
            report.letters += [cannot(letter, why) for one in lanes.pop(name) for letter in one.chosen.values()]
    if lanes:
        async with entered(app._lifespan and app._lifespan(app)) as deps:
            with runtime.store.stage as stage:
                house = House(runtime.store, stage, runtime.env, runtime.settings, runtime.types, deps)
                for name, of_name in lanes.items():
                    await _play(house, declared[name], of_name, report, told)
    emitted: dict[str, dict[str, int]] = {}
    for (log, kind), count in sorted(report.emitted.items()):
        emitted.setdefault(log, {})[kind] = count
    return Rehearsal(tuple(report.letters), dict(sorted(report.tables.items())), emitted)


def _why_not(name: str, subscription: Subscription | None) -> str:
    if subscription is None:
        return f"this program has no subscription {name!r}"
    if subscription.kind != "projection" and not subscription.rehearsable:
        return f"handler {name!r} may talk to the world; declare rehearsable=True if it does not"
    return ""


async def _play(
    house: House, subscription: Subscription, lanes: Iterable[Lane], report: Report, told: Callable[[int], None]
) -> None:
    """Slice after slice; as long as one held the write lock, nobody of us asks for it again."""
    with house.store.reading() as tx:
        row = tx.progress.find(subscription.name)
    assert row is not None  # it has letters
    kind = Projecting if subscription.kind == "projection" else Handling
    scene = kind(house, subscription, row, lanes, report)

    async def in_thread(job: Callable[[], float]) -> float:
        future = start_thread(job, f"redrive rehearsal {subscription.name}")
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:  # Ctrl-C: what runs on the stage must be over before it is closed
            house.stopping.set()
            await asyncio.wait({future}, timeout=2 * HOLD_MAX)
            raise
        seconds, error = future.result()
        if error is not None:
            raise error
        assert seconds is not None
        return seconds

    while scene.waits:
        held = await scene.play(in_thread)
        told(len(report.letters))
        await asyncio.sleep(min(held, PAUSE_MAX) if scene.waits else 0)
