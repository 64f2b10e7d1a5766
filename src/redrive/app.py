"""The app: where a program declares logs and functions, and from where they run.

No I/O until first use; a fork starts afresh. Everything an app does is done by the layers below;
this file only says which.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.clock import Env
from redrive.context import Tx
from redrive.errors import CommitRefused, UsageError
from redrive.event import NewEvent, check_type
from redrive.observe.signals import Listener
from redrive.policy.decide import Policy
from redrive.policy.partitions import PARTITIONS_MAX
from redrive.policy.retry import Conflicts, Retry, tuned
from redrive.policy.rules import Rules
from redrive.runtime import Runtime
from redrive.settings import Settings, check_subscriptions
from redrive.sources.log import Log
from redrive.store.append import append_all
from redrive.store.port import StoreTx
from redrive.subscription import KeyBy, Order, Subscription, count_arguments
from redrive.units import duration

if TYPE_CHECKING:
    import asyncio

    from redrive.replay.operations import Operations
    from redrive.runner.supervise import Supervisor

F = TypeVar("F", bound=Callable[..., Any])
RetryGiven = Retry | Sequence[Retry] | None
Tables = Mapping[str, str] | Iterable[str]


class AppTx(Tx):
    """The transaction of `app.transaction()`: events given to it are appended when it commits."""

    __slots__ = ("pending",)

    def __init__(self, tx: StoreTx) -> None:
        super().__init__(tx)
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
        self.subscriptions: dict[str, Subscription] = {}
        self.runtime = Runtime(store, settings, env, inline=inline)
        self._include, self._lifespan = tuple(include), lifespan
        self._logs: dict[str, Log] = {}

    # ------------------------------------------------------------ declaring

    def log(self, name: str) -> Log:
        """The log of this name; it exists from its first event on."""
        check_type(name)
        return self._logs.setdefault(name, Log(self.runtime, name))

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
        partitions: int = 1,
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
                    arguments=arguments, partitions=_partitions(partitions, order, key_by, function),
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
        rehearsable: bool = False,
        partitions: int = 1,
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
                    rehearsable=rehearsable, partitions=_partitions(partitions, order, key_by, function),
                )
            )  # fmt: skip
            return function

        return declare

    def upcast(self, name: str, schema: int) -> Callable[[F], F]:
        """A function from data of this schema to data of the next, applied before decoding."""

        def declare(function: F) -> F:
            self.runtime.types.upcast(name, schema, function)
            return function

        return declare

    def listen(self, listener: Listener) -> Listener:
        """Hear of everything the engine does, a batch of signals at a time; never in its way."""
        return self.runtime.signals.listen(listener)

    # ------------------------------------------------------------ using

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """Business write and events in one transaction: `orders.append(…, tx=tx)` inside."""
        with _refused_in_the_drivers_words(), self.runtime.store.transaction() as tx:
            user = AppTx(tx)
            self.runtime.transacting = _current_task()
            try:
                yield user
            finally:
                self.runtime.transacting = None
            rows, _ = append_all(tx.logs, tx.sql, [(log, [event]) for log, event in user.pending])
            logs = {log: row[0] for (log, _), row in zip(user.pending, rows, strict=True)}
        for log, position in logs.items():
            self.runtime.notify(log, sum(1 for name, _ in user.pending if name == log), position)

    @contextmanager
    def reader(self) -> Iterator[Tx]:
        """A consistent snapshot for reading your own tables."""
        with self.runtime.store.reading() as tx:
            yield Tx(tx)

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
        import asyncio

        async with self._supervised(only, exclude) as supervisor:
            task = asyncio.create_task(supervisor.run())
            try:
                yield self
            finally:
                supervisor.stop("app.running() ended")
                await task

    def operate(self, who: str | None = None) -> Operations:
        """Letters, subscriptions, ledger and status, for an operator whose name goes into the audit."""
        from redrive.replay.operations import operate

        self._import_included()
        runtime = self.runtime
        return operate(
            runtime.store, runtime.env, runtime.signals, who, types=runtime.types, declared=self.subscriptions
        )

    def close(self) -> None:
        """Let go of the store; the next use opens it again."""
        self.runtime.close()

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
        names = [item if isinstance(item, str) else self.runtime.types.name_of(item) for item in types]
        return tuple(dict.fromkeys(names))

    def _import_included(self) -> None:
        for module in self._include:
            importlib.import_module(module)

    def _selected(self, only: Iterable[str] | None, exclude: Iterable[str]) -> list[Subscription]:
        """The subscriptions to run, with the overrides of the settings."""
        self._import_included()
        self.runtime.types.check()
        wanted, unwanted = None if only is None else set(only), set(exclude)
        for name in sorted((wanted or set()) | unwanted):
            if name not in self.subscriptions:
                raise UsageError(
                    f"there is no subscription {name!r}; this app has {', '.join(self.subscriptions) or 'none'}"
                )
        check_subscriptions(self.runtime.settings, self.subscriptions)
        return [
            _overridden(subscription, self.runtime.settings)
            for name, subscription in self.subscriptions.items()
            if (wanted is None or name in wanted) and name not in unwanted
        ]

    def _supervised(
        self, only: Iterable[str] | None, exclude: Iterable[str]
    ) -> AbstractAsyncContextManager[Supervisor]:
        from redrive.runner.embed import supervised  # with asyncio behind it: a producer never needs them

        return supervised(self.runtime, self._selected(only, exclude), lambda: self._lifespan and self._lifespan(self))


@contextmanager
def _refused_in_the_drivers_words() -> Iterator[None]:
    """Who writes a row that a constraint refuses hears of it the same way, whenever it is checked."""
    try:
        yield
    except CommitRefused as refused:
        raise refused.error from None


def _current_task() -> asyncio.Task[Any] | None:
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def _source(source: Any) -> str:
    if not isinstance(source, Log):
        raise UsageError(f"the first argument is a log, such as app.log('orders'), not {source!r}")
    return source.name


def _partitions(count: int, order: Order, key_by: KeyBy, function: Callable[..., Any]) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= PARTITIONS_MAX:
        raise UsageError(f"{_name(function)}: partitions={count!r}; give a number from 1 to {PARTITIONS_MAX:,}")
    if order == "total" and count > 1:
        raise UsageError(f'{_name(function)}: partitions={count} with order="total"; total order runs one at a time')
    if key_by is not None and count > 1:  # code may change, or fail once: nobody might own what somebody passed over
        raise UsageError(
            f"{_name(function)}: partitions={count} with key_by; partitions are cut by the key that an event was "
            "appended with. Let a handler emit the events into another log, with that key, and subscribe to it"
        )
    return count


def _policy(retry: RetryGiven, conflicts: Conflicts | None, letters: Rules | None) -> Policy:
    given: tuple[Any, ...] = (Retry(),) if retry is None else tuple(retry) if isinstance(retry, Iterable) else (retry,)
    if not all(isinstance(rule, Retry) for rule in given):
        raise UsageError("retry= takes retry(…) or a list of them")
    if not isinstance(conflicts, Conflicts | None) or not isinstance(letters, Rules | None):
        raise UsageError("conflicts= takes conflicts(…), letters= takes rules(…)")
    return Policy(given, conflicts or Conflicts(), letters or Rules())


def _overridden(subscription: Subscription, settings: Settings) -> Subscription:
    """What redrive.toml and the environment say beats the code."""
    policy = replace(subscription.policy, crash_charges_max=settings.crash_charges_max)
    found = settings.subscriptions.get(subscription.name)
    if found is None:
        return replace(subscription, policy=policy)
    if subscription.kind == "projection" and (found.timeout or found.concurrency):
        raise UsageError(
            f"settings: `subscriptions.{subscription.name}`: timeout and concurrency are for handlers; "
            "a projection runs inside its transaction, one event after the other"
        )
    if subscription.order == "total" and (found.concurrency or 1) > 1:
        raise UsageError(f"settings: `subscriptions.{subscription.name}.concurrency`: total order runs one at a time")
    given = found.retry.given()
    policy = replace(policy, retry=tuple(tuned(rule, **given) for rule in policy.retry))
    return replace(
        subscription,
        policy=policy,
        concurrency=found.concurrency or subscription.concurrency,
        timeout=found.timeout or subscription.timeout,
    )
