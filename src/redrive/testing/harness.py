"""Harness: an app under test, on a store of its own, in virtual time, single-threaded, the same every time.

The app is used as it is declared; while the harness lasts its store, clock and settings are the harness's,
and the real ones are untouched. The engine stays alive between calls, like a process that nobody disturbs.
"""

from __future__ import annotations

import asyncio
import contextvars
import shutil
import tempfile
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from redrive.app import App
from redrive.errors import UsageError
from redrive.event import Event
from redrive.observe.signals import Signal, Signals
from redrive.policy.letters import State
from redrive.replay.deed import Receipt
from redrive.runner.supervise import Supervisor
from redrive.runtime import store_path
from redrive.settings import Settings
from redrive.sources.log import Log
from redrive.store.port import LetterRow
from redrive.testing.crashing import Crashed, Death, MortalStore
from redrive.testing.fakes import FakeEnv
from redrive.testing.virtual import VirtualLoop
from redrive.units import duration

T = TypeVar("T")

_FOREVER = duration("366d")
PATIENCE = duration("1h")  # virtual time after which something that is still running counts as hanging
TURNS = 10  # of the event loop, until one that stands by has looked at the lease

_bound: weakref.WeakSet[Any] = weakref.WeakSet()


class Harness(AbstractContextManager["Harness"]):
    """Run an app in a test, without waiting and without touching its real store.

    >>> @app.on(logins, key_by="user", start="first")
    ... def watch(event, ctx):
    ...     ctx.state["failures"] = ctx.state.get("failures", 0) + 1
    ...     if ctx.state["failures"] == 3:
    ...         ctx.emit(alerts, "account.locked", {"user": ctx.key})
    >>> with Harness(app) as harness:
    ...     for _ in range(3):
    ...         _ = harness.append(logins, "login.failed", {"user": "ada"})
    ...     harness.run_until_idle()
    ...     harness.emitted(alerts)
    [('account.locked', {'user': 'ada'})]
    """

    def __init__(
        self,
        app: App,
        store: str | None = None,
        *,
        settings: Settings | None = None,
        env: FakeEnv | None = None,
        only: Sequence[str] | None = None,
    ) -> None:
        if app.runtime in _bound:
            raise UsageError("this app is in a harness already: close that one first")
        self.app, self.env = app, env or FakeEnv()
        self.clock = self.env.fake_clock
        self.signals: list[Signal] = []
        self.path = store_path(store) if store else _temporary_file(self)
        self._only = only
        self._loop = VirtualLoop(self.clock)
        self._serving: asyncio.Task[None] | None = None
        self._supervisor: Supervisor | None = None
        self._appended: set[tuple[str, str]] = set()
        self._incarnation = 1
        self._former = dict(vars(app.runtime))
        self._bind(settings)
        _bound.add(app.runtime)

    # ------------------------------------------------------------ using

    def append(self, log: Log | str, type: Any, data: Any = None, **rest: Any) -> Event[Any]:
        """Append to a log of the app; the arguments are those of `log.append`."""
        target = self.app.log(log) if isinstance(log, str) else log
        event = self._alive(lambda: target.append(type, data, **rest))
        assert isinstance(event, Event)
        self._appended.add((target.name, event.id))
        return event

    def run_until_idle(self) -> None:
        """Run until nothing is left to do now: what is due later waits for `advance`."""
        self._run(self._work(0.0))

    async def arun_until_idle(self) -> None:
        """The same for tests that are coroutines."""
        await asyncio.to_thread(self.run_until_idle)

    def advance(self, time: str | float | timedelta) -> None:
        """Let time pass while the engine runs: what falls due happens at its time."""
        self._run(self._work(duration(time)))

    async def aadvance(self, time: str | float | timedelta) -> None:
        """The same for tests that are coroutines."""
        await asyncio.to_thread(self.advance, time)

    # ------------------------------------------------------------ looking

    def query(self, sql: str, params: Mapping[str, Any] | Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of your own tables (or of redrive's)."""
        with self.app.reader() as tx:
            return list(tx.execute(sql, params).fetchall())

    def emitted(self, log: Log | str) -> list[tuple[str, Any]]:
        """(type, data) of the events in a log that were not put there by `harness.append`."""
        target = self.app.log(log) if isinstance(log, str) else log
        return [(event.type, event.data) for event in target.read() if (target.name, event.id) not in self._appended]

    def letters(self, state: str | None = None) -> list[LetterRow]:
        """Letters of one state, or all of them, by position."""
        found: list[LetterRow] = []
        with self.app.runtime.store.reading() as tx:
            for one in [state] if state else list(State):
                page = tx.letters.page(one, None, 0, 1000)
                while page:
                    found += page
                    page = tx.letters.page(one, None, page[-1].id, 1000)
        return sorted(found, key=lambda letter: (letter.position, letter.id))

    def replay(self, letters: Iterable[int | LetterRow] | None = None) -> Receipt:
        """Send dead letters round once more, the heads of all lanes unless some are named, and run."""
        desk = self.app.operate("a test").letters
        chosen = [letter for letter, _ in desk.heads(limit=1000)] if letters is None else list(letters)
        receipt = desk.replay(chosen, "a test asked for it")
        self.run_until_idle()
        return receipt

    @property
    def halted(self) -> dict[str, str]:
        """Subscriptions that do not run here, with the reason."""
        return dict(self._supervisor.waiting) if self._supervisor else {}

    # ------------------------------------------------------------ life and death

    def restart(self) -> None:
        """End gracefully, as a deploy does, and start again as another process."""
        self._stop()
        self.app.close()
        self._be_born()

    def crash(self) -> None:
        """Die as by SIGKILL: here, or inside a function or failpoint that calls this. The next call starts anew."""
        store = self.app.runtime.store
        assert isinstance(store, MortalStore)
        store.dead = True
        if self._loop.is_running():
            self._loop.stop()
            raise Death
        self._bury()

    def close(self) -> None:
        """Stop, and give the app back as it was."""
        if self._loop.is_closed():
            return
        try:
            self._stop()
        finally:
            self._cancel_tasks()
            self._loop.close()
            self.app.close()
            vars(self.app.runtime).update(self._former)
            _bound.discard(self.app.runtime)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def fault(self) -> BaseException | None:
        """While this is an exception, every write to the store raises it."""
        return self._store().fault

    @fault.setter
    def fault(self, error: BaseException | None) -> None:
        self._store().fault = error

    # ------------------------------------------------------------ private

    def _bind(self, settings: Settings | None) -> None:
        runtime = self.app.runtime
        chosen = settings or runtime._settings or Settings()
        if settings is None:  # nobody else is on this store: looking for others only costs time
            chosen = msgspec.structs.replace(chosen, lease=_FOREVER, poll_min=_FOREVER, poll_max=_FOREVER)
        self._settings = msgspec.structs.replace(chosen, store=None)
        runtime.inline = True
        runtime.signals = Signals(inline=True)
        for listener in self._former["signals"]._listeners:
            runtime.signals.listen(listener)
        runtime.signals.listen(self.signals.extend)
        runtime._url, runtime._settings, runtime._env, runtime._given_env = self.path, self._settings, self.env, True
        runtime._readers = None
        self._open()
        with self._store().reading() as tx:  # a second harness on a store must not give the same ids again
            ((last,),) = tx.connection.execute("SELECT coalesce(max(position), 0) FROM redrive_events").fetchall()
        self.env.dice.seed(f"{self.env.seed} {self.env.owner} {last}")

    def _open(self) -> None:
        limits = self._settings
        self.app.runtime._store = MortalStore(
            self.path, busy_timeout=limits.busy_timeout, checkpoint_pages=limits.checkpoint_pages
        )

    def _store(self) -> MortalStore:
        store = self.app.runtime.store
        assert isinstance(store, MortalStore)
        return store

    def _be_born(self) -> None:
        """Another process on the same file: its predecessor is known to be gone."""
        self.env.dead.add(self.env.owner)
        self._incarnation += 1
        self.env.owner = f"{self.env.owner.rpartition('-')[0] or self.env.owner}-{self._incarnation}"
        self._open()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._alive(lambda: self._drive(work))

    def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._loop.run_until_complete(work)
        # A coroutine called us: our loop runs on a thread of its own, and the caller's loop waits.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(contextvars.copy_context().run, self._loop.run_until_complete, work).result()

    def _alive(self, step: Callable[[], T]) -> T:
        """Whatever ends this incarnation becomes Crashed, and the next one is made ready."""
        try:
            return step()
        except (Death, RuntimeError) as error:  # RuntimeError: the loop was stopped in the middle
            if not self._store().dead:
                raise
            self._bury()
            raise Crashed("the engine died; call the harness again to start another") from error

    def _bury(self) -> None:
        self._cancel_tasks()
        self._serving = self._supervisor = None
        self.app.runtime._readers = None
        self.app.close()
        self._be_born()

    async def _work(self, seconds: float) -> None:
        await self._start()
        if seconds:
            await asyncio.sleep(seconds)
        supervisor, serving = self._supervisor, self._serving
        if supervisor is None or serving is None or serving.done():
            return
        for wake in supervisor.wakes.values():
            wake.ring()
        for _ in range(TURNS if supervisor.waiting else 0):
            await asyncio.sleep(0)
        idle = asyncio.ensure_future(supervisor._wait_idle())
        done, _ = await asyncio.wait({idle, serving}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            idle.cancel()
            busy = [name for name, loop in supervisor.loops.items() if not loop.idle]
            raise AssertionError(f"still busy after an hour of virtual time: {', '.join(busy)}; does a function hang?")
        if serving in done:
            idle.cancel()
            serving.result()

    async def _start(self) -> None:
        if self._serving is not None and not self._serving.done():
            if set(self._chosen()) == set(self._supervisor.work if self._supervisor else ()):
                return
            await self._wind_down()  # something was declared since
        ready: asyncio.Future[None] = self._loop.create_future()
        self._serving = self._loop.create_task(self._serve(ready), name="harness")
        await asyncio.wait({ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._serving.result()

    def _chosen(self) -> Sequence[str]:
        return list(self.app.subscriptions) if self._only is None else self._only

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        async with self.app._supervised(self._only, ()) as supervisor:
            self._supervisor = supervisor
            ready.set_result(None)
            await supervisor.run()

    async def _wind_down(self) -> None:
        if self._supervisor is not None and self._serving is not None and not self._serving.done():
            self._supervisor.stop("the harness ends")
            await self._serving

    def _stop(self) -> None:
        self._run(self._wind_down())
        self._serving = self._supervisor = None

    def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._drive(_ended(tasks))


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at: Death is what they were told


def _temporary_file(owner: object) -> str:
    """On a memory disk if there is one: a test needs no fsync."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="redrive-", dir=memory if memory.is_dir() else None)
    weakref.finalize(owner, shutil.rmtree, folder, True)
    return f"{folder}/test.db"
