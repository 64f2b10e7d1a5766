"""The app: where a program declares logs and functions, and from where they run.

No I/O until first use; a fork starts afresh. Everything an app does is done by the layers below;
this file only says which.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from redrive.clock import Env
from redrive.context import Tx
from redrive.errors import UsageError
from redrive.event import NewEvent, check_type
from redrive.observe import signals as sig
from redrive.observe.signals import Listener, Signals
from redrive.policy.decide import Policy
from redrive.policy.retry import Conflicts, Retry
from redrive.policy.rules import Rules
from redrive.runner.bridge import Bridge
from redrive.runner.duty import Engine
from redrive.runner.enroll import enroll
from redrive.runner.supervise import Supervisor
from redrive.settings import Settings, check_subscriptions, load_settings, settings_path
from redrive.sources.log import Log
from redrive.store.sqlite import SqliteStore
from redrive.subscription import KeyBy, Order, Subscription, count_arguments
from redrive.types import EventTypes
from redrive.units import duration

F = TypeVar("F", bound=Callable[..., Any])
RetryGiven = Retry | Sequence[Retry] | None
Tables = Mapping[str, str] | Iterable[str]


class AppTx(Tx):
    """The transaction of `app.transaction()`: events given to it are appended when it commits."""

    __slots__ = ("pending",)

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.pending: list[tuple[str, NewEvent]] = []


class App:
    """Declare logs and functions on one store, and run them.

    >>> app = App("shop.db")
    >>> orders = app.log("orders")
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        name: str = "app",
        include: Sequence[str] = (),
        lifespan: Callable[[App], Any] | None = None,
        settings: Settings | None = None,
        env: Env | None = None,
        inline: bool = False,
    ) -> None:
        self.name = name
        self.types = EventTypes()
        self.signals = Signals(inline=inline)
        self.subscriptions: dict[str, Subscription] = {}
        self._url, self._include, self._lifespan = store, tuple(include), lifespan
        self._given_settings, self._given_env, self._inline = settings, env, inline
        self._logs: dict[str, Log] = {}
        self._lock = threading.Lock()
        self._pid = 0
        self._store: SqliteStore | None = None
        self._env: Env | None = None
        self._settings: Settings | None = None
        self._running: tuple[Supervisor, asyncio.AbstractEventLoop] | None = None
        self._deps: Any = None

    # ------------------------------------------------------------ declaring

    def log(self, name: str) -> Log:
        """The log of this name; it exists from its first event on."""
        check_type(name)
        return self._logs.setdefault(name, Log(self, name))

    def projection(
        self,
        source: Log,
        *types: str | type,
        name: str | None = None,
        tables: Tables = (),
        batch: bool = False,
        order: Order = "key",
        key_by: KeyBy = None,
        start: str | None = None,
        retry: RetryGiven = None,
        conflicts: Conflicts | None = None,
        letters: Rules | None = None,
        on_error: Callable[..., Any] | None = None,
    ) -> Callable[[F], F]:
        """A function `(event, tx)` that touches only the database: it runs inside the transaction, in batches."""

        def declare(function: F) -> F:
            if inspect.iscoroutinefunction(function):
                raise UsageError(
                    f"{_name(function)} is async; a projection is a plain def: it runs inside a transaction"
                )
            arguments = count_arguments(function, "(events, tx)" if batch else "(event, tx)")
            owned = dict(tables) if isinstance(tables, Mapping) else dict.fromkeys(tables)
            self._declare(
                Subscription(
                    name or _name(function), "projection", function, _source(source), self._types(types), order, key_by,
                    start, _policy(retry, conflicts, letters), batch=batch, tables=owned, on_error=on_error,
                    arguments=arguments,
                )
            )  # fmt: skip
            return function

        return declare

    def on(
        self,
        source: Log,
        *types: str | type,
        name: str | None = None,
        order: Order = "key",
        key_by: KeyBy = None,
        start: str | None = None,
        retry: RetryGiven = None,
        conflicts: Conflicts | None = None,
        letters: Rules | None = None,
        concurrency: int = 1,
        timeout: str | float | None = None,
        on_error: Callable[..., Any] | None = None,
    ) -> Callable[[F], F]:
        """A function `(event, ctx)`, `def` or `async def`, that may talk to the world."""

        def declare(function: F) -> F:
            if concurrency < 1 or (order == "total" and concurrency > 1):
                raise UsageError(
                    f'{_name(function)}: concurrency={concurrency} with order="{order}"; total order runs one at a time'
                )
            arguments = count_arguments(function, "(event, ctx)")
            self._declare(
                Subscription(
                    name or _name(function), "handler", function, _source(source), self._types(types), order, key_by,
                    start, _policy(retry, conflicts, letters), concurrency=concurrency,
                    timeout=None if timeout is None else duration(timeout), on_error=on_error, arguments=arguments,
                )
            )  # fmt: skip
            return function

        return declare

    def upcast(self, name: str, schema: int) -> Callable[[F], F]:
        """A function from data of this schema to data of the next, applied before decoding."""

        def declare(function: F) -> F:
            self.types.upcast(name, schema, function)
            return function

        return declare

    def listen(self, listener: Listener) -> Listener:
        """Hear of everything the engine does, a batch of signals at a time; never in its way."""
        return self.signals.listen(listener)

    # ------------------------------------------------------------ using

    @contextmanager
    def transaction(self) -> Iterator[AppTx]:
        """Business write and events in one transaction: `orders.append(…, tx=tx)` inside."""
        logs: dict[str, int] = {}
        with self.store.transaction() as tx:
            user = AppTx(tx.connection)
            yield user
            for log, event in user.pending:
                rows, _ = tx.logs.append(log, [event])
                logs[log] = rows[-1][0]
        for log, position in logs.items():
            self.notify(log, sum(1 for name, _ in user.pending if name == log), position)

    @contextmanager
    def reader(self) -> Iterator[Tx]:
        """A consistent snapshot for reading your own tables."""
        with self.store.reading() as tx:
            yield Tx(tx.connection)

    def run(self, *, until_idle: bool = False, only: Iterable[str] | None = None, exclude: Iterable[str] = ()) -> None:
        """Run until SIGTERM or SIGINT (or until nothing is left to do); a second signal ends at once."""
        from redrive.runner.process import run_process

        run_process(self, until_idle=until_idle, only=only, exclude=exclude)

    async def serve(
        self, *, until_idle: bool = False, only: Iterable[str] | None = None, exclude: Iterable[str] = ()
    ) -> None:
        """Run inside your event loop, until cancelled; installs no signal and no log handlers."""
        async with self._supervised(only, exclude) as supervisor:
            await supervisor.run(until_idle=until_idle)

    @asynccontextmanager
    async def running(self, *, only: Iterable[str] | None = None, exclude: Iterable[str] = ()) -> AsyncIterator[App]:
        """Run in the background of your event loop: `async with app.running(): yield`."""
        async with self._supervised(only, exclude) as supervisor:
            task = asyncio.create_task(supervisor.run())
            try:
                yield self
            finally:
                supervisor.stop("app.running() ended")
                await task

    def close(self) -> None:
        """Let go of the store; the next use opens it again."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None and self._pid == os.getpid():
            store.close()

    # ------------------------------------------------------------ what the layers below ask for

    @property
    def settings(self) -> Settings:
        """The effective settings."""
        if self._settings is None:
            path = settings_path(Path.cwd(), os.environ)
            self._settings = self._given_settings or load_settings(path, os.environ)[0]
        return self._settings

    @property
    def env(self) -> Env:
        """Clocks, dice, identity; renewed after a fork."""
        if self._given_env is not None:
            return self._given_env
        if self._env is None or self._pid != os.getpid():
            self._env = Env()
        return self._env

    @property
    def store(self) -> SqliteStore:
        """The store, opened at first use. A forked child opens its own: SQLite handles must not cross a fork."""
        if self._store is None or self._pid != os.getpid():
            if self._pid not in (0, os.getpid()):
                self._lock = threading.Lock()  # the parent's may be held for ever in this copy
                self._store, self._env, self._running = None, None, None
                self.signals = _heirs(self.signals, self._inline)
            with self._lock:
                if self._store is None:
                    settings = self.settings
                    path = store_path(settings.store or self._url)
                    self._store = SqliteStore(
                        path,
                        busy_timeout=settings.busy_timeout,
                        checkpoint_pages=settings.checkpoint_pages,
                        inline=self._inline,
                    )
                    self._pid = os.getpid()
        return self._store

    def notify(self, log: str, count: int, position: int) -> None:
        """Events were appended by this process: wake our loops at once, tell listeners."""
        self.signals.tell((sig.Appended(log, count, position),))
        self._wake(log)

    def refuse_inside_projection(self) -> None:
        """An append beside an open transaction of this thread would wait for itself."""
        if self.store.inside_transaction():
            raise UsageError(
                "append inside a transaction: use tx.emit in a projection, append(…, tx=tx) in app.transaction()"
            )

    def engine(self, request_stop: Callable[[str], None] = lambda why: None) -> Engine:
        """What the runner needs."""
        return Engine(
            store=self.store, env=self.env, settings=self.settings, types=self.types, signals=self.signals,
            deps=lambda: self._deps, request_stop=request_stop, appended=self._wake,
            worker=self.env.owner.replace("|", " "),
        )  # fmt: skip

    # ------------------------------------------------------------ private

    def _declare(self, subscription: Subscription) -> None:
        known = self.subscriptions.get(subscription.name)
        if known is not None and known.function is not subscription.function:
            raise UsageError(f"two functions are called {subscription.name!r}: give one of them name=")
        if subscription.order not in ("key", "none", "total"):
            raise UsageError(f'{subscription.name}: order is "key", "none" or "total", not {subscription.order!r}')
        if subscription.on_error is not None and inspect.iscoroutinefunction(subscription.on_error):
            raise UsageError(f"{subscription.name}: on_error is a plain def (event, error)")
        self.subscriptions[subscription.name] = subscription

    def _types(self, types: tuple[str | type, ...]) -> tuple[str, ...]:
        names = [item if isinstance(item, str) else self.types.name_of(item) for item in types]
        return tuple(dict.fromkeys(names))

    def _wake(self, log: str) -> None:
        if self._running is None:
            return
        supervisor, loop = self._running
        try:
            loop.call_soon_threadsafe(supervisor.appended, log)
        except RuntimeError:  # that loop is closed: nobody is running
            self._running = None

    def selected(self, only: Iterable[str] | None, exclude: Iterable[str]) -> list[Subscription]:
        """The subscriptions to run, with the overrides of the settings."""
        for module in self._include:
            importlib.import_module(module)
        self.types.check()
        wanted, unwanted = None if only is None else set(only), set(exclude)
        for name in sorted((wanted or set()) | unwanted):
            if name not in self.subscriptions:
                raise UsageError(
                    f"there is no subscription {name!r}; this app has {', '.join(self.subscriptions) or 'none'}"
                )
        check_subscriptions(self.settings, self.subscriptions)
        return [
            _overridden(subscription, self.settings)
            for name, subscription in self.subscriptions.items()
            if (wanted is None or name in wanted) and name not in unwanted
        ]

    @asynccontextmanager
    async def _supervised(self, only: Iterable[str] | None, exclude: Iterable[str]) -> AsyncIterator[Supervisor]:
        if self._running is not None and self._pid == os.getpid():
            raise UsageError("this app is running already in this process")
        loop = asyncio.get_running_loop()
        chosen = self.selected(only, exclude)
        stopper: list[Supervisor] = []

        def request_stop(why: str) -> None:
            loop.call_soon_threadsafe(lambda: stopper[0].stop(why))

        engine = self.engine(request_stop)
        work = enroll(engine, chosen)
        async with self._lifespan_entered():
            supervisor = Supervisor(engine, Bridge(self.store), work, threads=not self._inline)
            stopper.append(supervisor)
            self._running = (supervisor, loop)
            try:
                yield supervisor
            finally:
                self._running = None
                self.signals.flush(1.0)

    @asynccontextmanager
    async def _lifespan_entered(self) -> AsyncIterator[None]:
        if self._lifespan is None:
            yield
            return
        manager = self._lifespan(self)
        if hasattr(manager, "__aenter__"):
            async with manager as self._deps:
                yield
        elif hasattr(manager, "__enter__"):
            with manager as self._deps:
                yield
        else:
            raise UsageError(
                "lifespan= takes a function of the app that returns a context manager (@asynccontextmanager)"
            )


def store_path(url: str | None) -> str:
    """The file behind a store's name."""
    if not url:
        raise UsageError(
            'no store: write App("shop.db"), set REDRIVE_STORE, or put store = "shop.db" into redrive.toml'
        )
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    if scheme == "sqlite":
        return rest.removeprefix("/") or ":memory:"
    raise UsageError(f"store {scheme}://…: this version knows SQLite only: a path, or sqlite:///path")


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def _source(source: Any) -> str:
    if not isinstance(source, Log):
        raise UsageError(f"the first argument is a log, such as app.log('orders'), not {source!r}")
    return source.name


def _policy(retry: RetryGiven, conflicts: Conflicts | None, letters: Rules | None) -> Policy:
    given = (Retry(),) if retry is None else (retry,) if isinstance(retry, Retry) else tuple(retry)
    if not all(isinstance(rule, Retry) for rule in given):
        raise UsageError("retry= takes retry(…) or a list of them")
    return Policy(given, conflicts or Conflicts(), letters or Rules())


def _overridden(subscription: Subscription, settings: Settings) -> Subscription:
    """What redrive.toml and the environment say beats the code."""
    policy = replace(subscription.policy, crash_charges_max=settings.crash_charges_max)
    found = settings.subscriptions.get(subscription.name)
    if found is None:
        return replace(subscription, policy=policy)
    given = found.retry.given()
    policy = replace(policy, retry=tuple(replace(rule, **given) for rule in policy.retry))
    return replace(
        subscription,
        policy=policy,
        concurrency=found.concurrency or subscription.concurrency,
        timeout=found.timeout or subscription.timeout,
    )


def _heirs(signals: Signals, inline: bool) -> Signals:
    """Listeners survive a fork, the thread that calls them does not."""
    fresh = Signals(inline=inline)
    for listener in signals._listeners:
        fresh.listen(listener)
    return fresh


__all__ = ["App", "AppTx", "store_path"]
