"""The engine of an app on a loop in virtual time: started once, run in slices, stopped or abandoned."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from redrive.app import App
from redrive.runner.supervise import Supervisor
from redrive.testing.virtual import FakeClock, VirtualLoop
from redrive.units import duration

T = TypeVar("T")

PATIENCE = duration("1h")  # virtual time after which something that is still running counts as hanging
TURNS = 10  # of the event loop, until one that stands by has looked at the lease


class Driver:
    """Runs an app's supervisor for as long as somebody waits, and not a moment longer."""

    def __init__(self, app: App, clock: FakeClock, only: Sequence[str] | None) -> None:
        self.loop = VirtualLoop(clock)
        self.supervisor: Supervisor | None = None
        self._app, self._only = app, only
        self._serving: asyncio.Task[None] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on our loop; from inside another loop on a thread, while that one waits."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self.loop.run_until_complete(work)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(contextvars.copy_context().run, self.loop.run_until_complete, work).result()

    async def work(self, seconds: float) -> None:
        """Let so much time pass, then go on until nothing is left to do."""
        await self._start()
        if seconds:
            await asyncio.sleep(seconds)
        supervisor, serving = self.supervisor, self._serving
        if supervisor is None or serving is None or serving.done():
            return
        healing = [one.wake for one in supervisor.healing.values()]
        for wake in (*supervisor.wakes.values(), supervisor.scheduler.wake, *healing):
            wake.ring()
        for _ in range(TURNS if supervisor.waiting else 0):
            await asyncio.sleep(0)
        idle = asyncio.ensure_future(supervisor._wait_idle())
        done, _ = await asyncio.wait({idle, serving}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if idle not in done:
            idle.cancel()
        if not done:
            busy = [name for name, loop in supervisor.loops.items() if not loop.idle]
            raise AssertionError(f"still busy after an hour of virtual time: {', '.join(busy)}; does a function hang?")
        if serving in done:
            serving.result()

    async def stop(self) -> None:
        """End gracefully, as by SIGTERM."""
        if self.supervisor is not None and self._serving is not None and not self._serving.done():
            self.supervisor.stop("the harness ends")
            await self._serving
        self.abandon()

    def abandon(self) -> None:
        """Forget the engine that ran here; the next slice starts another."""
        self._serving = self.supervisor = None

    def cancel_tasks(self) -> None:
        """End whatever still waits on our loop."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run(_ended(tasks))

    async def _start(self) -> None:
        if self._serving is not None and not self._serving.done():
            posts = self.supervisor.posts.values() if self.supervisor else ()
            known = {post.subscription.name for post in posts}
            declared = set(self._app.subscriptions if self._only is None else self._only)
            if known == declared and self.supervisor is not None and not self.supervisor.stopping:
                return
            await self.stop()  # something was declared since, or a function has asked for the end
        ready: asyncio.Future[None] = self.loop.create_future()
        self._serving = self.loop.create_task(self._serve(ready), name="harness")
        await asyncio.wait({ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._serving.result()

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        async with self._app._supervised(self._only, (), strict=True) as supervisor:
            self.supervisor = supervisor
            ready.set_result(None)
            await supervisor.run()


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at: Death is what they were told
