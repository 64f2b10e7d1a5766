"""Subscriptions under supervision, for as long as a block of the caller's lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from redrive.clock import short_name
from redrive.errors import UsageError
from redrive.mirrors.port import LETTERS
from redrive.observe.logs import log_signals
from redrive.observe.tracing import is_tracing, with_spans
from redrive.runner.bridge import Bridge
from redrive.runner.duty import Engine
from redrive.runner.enroll import enroll
from redrive.runner.healing import Heal, Steps
from redrive.runner.supervise import Supervisor
from redrive.runner.trimming import Trim
from redrive.sinks.port import Sink
from redrive.subscription import Subscription

if TYPE_CHECKING:
    from redrive.runtime import Runtime


@asynccontextmanager
async def supervised(
    runtime: Runtime,
    subscriptions: Iterable[Subscription],
    lifespan: Callable[[], Any],
    heal: Heal,
    trim: Trim,
    upkeep: Steps | None,
    *,
    strict: bool = False,
) -> AsyncIterator[Supervisor]:
    """Enrol the subscriptions, enter the lifespan, and hand over a supervisor that is woken by this process.

    `strict`: nothing runs unless every subscription fits the store.
    """
    loop = asyncio.get_running_loop()
    if runtime.is_running:
        raise UsageError("this app is running already in this process")
    if not runtime.inline:
        log_signals(runtime.signals)
    stoppable: list[Supervisor] = []

    def request_stop(why: str) -> None:
        loop.call_soon_threadsafe(lambda: stoppable[0].stop(why))

    subscriptions = list(subscriptions)
    is_mirrored = any(subscription.source == LETTERS for subscription in subscriptions)

    def appended(log: str) -> None:
        if log != LETTERS or is_mirrored:  # else nobody reads them, and a wake-up takes as long as writing one
            runtime.wake(log)

    engine = Engine(
        store=runtime.store, env=runtime.env, settings=runtime.settings, types=runtime.types,
        signals=runtime.signals, deps=lambda: runtime.deps, request_stop=request_stop, appended=appended,
        worker=short_name(runtime.env.owner),
    )  # fmt: skip
    if is_tracing():
        subscriptions = [with_spans(subscription) for subscription in subscriptions]
    enrolled = enroll(engine, subscriptions, strict=strict)
    sinks = [subscription.sink for subscription, _ in enrolled.rows.values() if subscription.sink is not None]
    async with entered(lifespan()) as runtime.deps, opened(sinks):
        supervisor = Supervisor(engine, Bridge(runtime.store), enrolled, heal, trim, upkeep, threads=not runtime.inline)
        stoppable.append(supervisor)
        runtime.read_by(supervisor.appended, loop)
        runtime.supervisor = supervisor
        try:
            yield supervisor
        finally:
            runtime.read_by(None, None)
            runtime.supervisor = None
            runtime.is_left = runtime.is_left or supervisor.is_left
            runtime.signals.flush(1.0)


@asynccontextmanager
async def opened(sinks: Iterable[Sink]) -> AsyncIterator[None]:
    """Sinks that are ready to be sent to."""
    async with AsyncExitStack() as stack:
        for sink in sinks:
            stack.push_async_callback(sink.close)
            await sink.open()
        yield


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """What a lifespan yields; it may be an ordinary context manager, too."""
    if manager is None:
        yield None
    elif hasattr(manager, "__aenter__"):
        async with manager as deps:
            yield deps
    elif hasattr(manager, "__enter__"):
        with manager as deps:
            yield deps
    else:
        raise UsageError("lifespan= takes a function of the app that returns a context manager (@asynccontextmanager)")
