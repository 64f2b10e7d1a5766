"""Harness: an app under test, on a store of its own, in virtual time, single-threaded, the same every time.

The app is used as it is declared; while the harness lasts its store, clock and settings are the harness's,
and the real ones are untouched. The engine stays alive between calls, like a process that nobody disturbs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from msgspec import UNSET

from redrive.app import App, Lifespan
from redrive.errors import UsageError
from redrive.event import Event
from redrive.observe.signals import Signal
from redrive.options import named_options
from redrive.policy.letters import State
from redrive.replay.deed import Receipt
from redrive.runtime import store_address
from redrive.settings import Settings
from redrive.sources.log import Log
from redrive.sources.port import Source
from redrive.store.port import LetterRow
from redrive.testing.binding import Binding, temporary_file
from redrive.testing.crashing import Crashed, Death
from redrive.testing.driver import Driver
from redrive.testing.fakes import FakeEnv
from redrive.units import duration

T = TypeVar("T")

_PAGE = 1000


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

    `settings` are those of the app, or the built-in ones: neither redrive.toml nor the environment has a say.
    `deps=` is what functions find in `ctx.deps`; the app's own lifespan is then not opened. `lifespan=` replaces the
    app's own, and is opened and closed as that would be, again at each `restart()`.
    """

    @named_options("Harness")
    def __init__(
        self,
        app: App,
        store: str | None = None,
        *,
        settings: Settings | None = None,
        env: FakeEnv | None = None,
        only: Sequence[str] | None = None,
        lifespan: Lifespan | None = None,
        deps: Any = UNSET,
    ) -> None:
        if deps is not UNSET:
            if lifespan is not None:
                raise UsageError("Harness takes deps= or lifespan=, not both: let the lifespan yield the deps")
            lifespan = partial(_yielding, deps)
        self.app, self.env = app, env or FakeEnv()
        self.clock = self.env.fake_clock
        self.signals: list[Signal] = []  # everything the engine told, in order
        self.fault: BaseException | None = None  # while this is an exception, every write to the store raises it
        self.path = store_address(store) if store else temporary_file(self)
        self._binding = Binding(
            app, self.path, self.env, settings, self.signals.extend, lambda: self.fault, lifespan or app._lifespan
        )
        self._driver = Driver(app, self.clock, only)
        self._appended: set[tuple[str, str]] = set()
        self._incarnation = 1
        self._inside = False  # is a call of ours under way?

    # ------------------------------------------------------------ using

    def append(self, log: Log | str, type: Any, data: Any = None, **rest: Any) -> Event[Any]:
        """Append to a log of the app; the arguments are those of `log.append`."""
        target = self._log(log)
        event = self._alive(lambda: target.append(type, data, **rest))
        assert isinstance(event, Event)
        self._appended.add((target.name, event.id))
        return event

    def run_until_idle(self) -> None:
        """Run until nothing is left to do now: what is due later waits for `advance`."""
        self._alive(lambda: self._driver.run(self._driver.work(0.0)))

    async def arun_until_idle(self) -> None:
        """The same for tests that are coroutines."""
        await asyncio.to_thread(self.run_until_idle)

    def advance(self, time: str | float | timedelta) -> None:
        """Let time pass while the engine runs: what falls due happens at its time."""
        seconds = duration(time)
        self._alive(lambda: self._driver.run(self._driver.work(seconds)))

    async def aadvance(self, time: str | float | timedelta) -> None:
        """The same for tests that are coroutines."""
        await asyncio.to_thread(self.advance, time)

    # ------------------------------------------------------------ looking

    def query(self, sql: str, params: Mapping[str, Any] | Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of your own tables (or of redrive's)."""
        with self.app.reader() as tx:
            return list(tx.execute(sql, params).fetchall())

    def emitted(self, log: Log | Source | str) -> list[tuple[str, Any]]:
        """(type, data) of the events in a log, or an outbox, that were not put there by `harness.append`."""
        target = self._log(log)
        return [(event.type, event.data) for event in target.read() if (target.name, event.id) not in self._appended]

    def letters(self, state: str | None = None) -> list[LetterRow]:
        """Letters of one state, or all of them, by position."""
        desk = self.app.operate("a test").letters
        found: list[LetterRow] = []
        for one in [state] if state else list(State):
            page = desk.list(one, limit=_PAGE)
            while page:
                found += page
                page = desk.list(one, after=page[-1].id, limit=_PAGE)
        return sorted(found, key=lambda letter: (letter.position, letter.id))

    def replay(self, letters: Iterable[int | LetterRow] | None = None) -> Receipt:
        """Send dead letters round once more, the heads of all lanes unless some are named, and run."""
        desk = self.app.operate("a test").letters
        chosen = [letter for letter, _ in desk.heads(limit=_PAGE)] if letters is None else list(letters)
        receipt = desk.replay(chosen, "a test asked for it")
        self.run_until_idle()
        return receipt

    @property
    def halted(self) -> dict[str, str]:
        """Subscriptions that do not run here now, with the reason."""
        return dict(self._driver.supervisor.waiting) if self._driver.supervisor else {}

    # ------------------------------------------------------------ life and death

    def restart(self) -> None:
        """End gracefully, as a deploy does, and start again as another process."""
        self._alive(lambda: self._driver.run(self._driver.stop()))
        self._be_born()

    def crash(self) -> None:
        """Die as by SIGKILL: here, or inside a function or failpoint that calls this. The next call starts anew."""
        self._binding.store.dead = True
        if self._inside:
            if self._driver.loop.is_running():  # it may also be an append of the test that dies
                self._driver.loop.stop()
            raise Death
        self._bury()

    def close(self) -> None:
        """Stop, and give the app back as it was."""
        if self._driver.loop.is_closed():
            return
        try:
            self._alive(lambda: self._driver.run(self._driver.stop()))
        finally:
            self._driver.cancel_tasks()
            self._driver.loop.close()
            self._binding.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ private

    def _log(self, log: Log | Source | str) -> Log:
        name = log.outbox if isinstance(log, Source) else log
        return self.app.log(name) if isinstance(name, str) else name

    def _alive(self, step: Callable[[], T]) -> T:
        """Whatever ends this incarnation becomes Crashed, and the next one is made ready."""
        self._inside = True
        try:
            return step()
        except (Death, RuntimeError) as error:  # RuntimeError: the loop was stopped in the middle
            if not self._binding.store.dead:
                raise
            self._bury()
            raise Crashed("the engine died; call the harness again to start another") from error
        finally:
            self._inside = False

    def _bury(self) -> None:
        self._driver.cancel_tasks()
        self._driver.abandon()
        self._be_born()

    def _be_born(self) -> None:
        self._incarnation += 1
        self._binding.reopen(f"{self.env.owner.rpartition('-')[0] or self.env.owner}-{self._incarnation}")


def _yielding(deps: Any, app: App) -> AbstractContextManager[Any]:
    """A lifespan that opens nothing."""
    return nullcontext(deps)
