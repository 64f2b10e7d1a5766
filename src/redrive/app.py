"""The app: where a program declares logs and functions, and from where they run.

No I/O until first use; a fork starts afresh. Everything an app does is done by the layers below;
this file only says which.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from msgspec import structs

from redrive.clock import Env, SystemClock
from redrive.context import Tx
from redrive.declare import Declarations, takes
from redrive.errors import CommitRefused, UsageError
from redrive.event import NewEvent
from redrive.observe.signals import Listener
from redrive.options import named_options
from redrive.policy.auto_replay import tuned_replay
from redrive.policy.retry import tuned
from redrive.runtime import Runtime
from redrive.settings import Settings, check_subscriptions
from redrive.store.port import Store, StoreTx
from redrive.store.sql import Row
from redrive.subscription import Subscription, overruled_letters

if TYPE_CHECKING:
    import asyncio

    from redrive.policy.auto_replay import AutoReplay
    from redrive.replay.healing import Healer
    from redrive.replay.operations import Operations
    from redrive.replay.upkeep import Upkeep
    from redrive.runner.duty import Duty
    from redrive.runner.supervise import Supervisor


Lifespan = Callable[["App"], Any]  # returns a context manager; what that yields is `ctx.deps`


class AppTx(Tx):
    """The transaction of `app.transaction()`: events given to it are appended when it commits."""

    __slots__ = ("is_over", "pending", "runtime", "store_tx")

    def __init__(self, tx: StoreTx, runtime: Runtime) -> None:
        super().__init__(tx)
        self.store_tx, self.runtime = tx, runtime
        self.is_over = False
        self.pending: list[tuple[str, NewEvent]] = []

    def end(self) -> None:
        """The block is left: what is asked for now would be part of nothing."""
        self.is_over, self.execute, self.executemany = True, _refused_as_over, _refused_as_over


class App(Declarations):
    """Declare logs and functions on one store, and run them.

    >>> app = App("shop.db")
    >>> orders = app.log("orders")
    """

    @named_options("App")
    def __init__(
        self,
        store: str | PathLike[str] | None = None,
        *,
        name: str = "app",
        include: Sequence[str] = (),
        lifespan: Lifespan | None = None,
        settings: Settings | None = None,
        env: Env | None = None,
        inline: bool = False,
    ) -> None:
        if isinstance(include, str):
            raise UsageError(f"include= takes names of modules: include=[{include!r}]")
        if odd := [one for one in include if not isinstance(one, str)]:
            raise UsageError(f"include= takes names of modules, not {odd[0]!r}")
        super().__init__(Runtime(store, settings, env, inline=inline), name)
        self._include, self._lifespan = tuple(include), lifespan

    def listen(self, listener: Listener) -> Listener:
        """Hear of everything the engine does, a batch of signals at a time; never in its way."""
        if not takes(listener, 1) or inspect.iscoroutinefunction(listener):
            raise UsageError(f"a listener is a plain def (signals), not {listener!r}: it runs on a thread of its own")
        return self.runtime.signals.listen(listener)

    # ------------------------------------------------------------ using

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """Business write and events in one transaction: `orders.append(…, tx=tx)` inside."""
        with _refused_in_the_drivers_words(), self.runtime.store.transaction() as tx:
            if tx.lend is not None:
                tx.lend()
            user = AppTx(tx, self.runtime)
            self.runtime.transacting = _current_task() or True
            try:
                with _as_lent(tx.connection):
                    yield user
            finally:
                self.runtime.transacting = False
                user.end()
            from redrive.store.append import append_all  # with the store that it is for

            rows, _ = append_all(tx.logs, tx.sql, [(log, [event]) for log, event in user.pending])
        by_log: dict[str, list[Row]] = {}
        for (log, _), row in zip(user.pending, rows, strict=True):
            by_log.setdefault(log, []).append(row)
        for log, mine in by_log.items():
            self.runtime.notify(log, mine)

    @contextmanager
    def reader(self) -> Iterator[Tx]:
        """A consistent snapshot for reading your own tables."""
        with self.runtime.store.reading() as tx:
            user = Tx(tx)
            try:
                yield user
            finally:  # its connection is lent to others, who see other things
                user.execute = user.executemany = _refused_as_over

    def run(
        self,
        *,
        until_idle: bool = False,
        only: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        strict: bool = False,
    ) -> None:
        """Run until SIGTERM or SIGINT (or until nothing is left to do); a second signal ends at once.

        A subscription that does not fit the store, such as a projection whose table has another definition now, is
        halted, and the others run. With `strict=True` nothing starts then.

        Raises:
            UsageError: A new subscription cannot start as it is declared; with `strict=True`, also a known one.
            Halted: With `until_idle=True`, if a source or subscription is halted when nothing else is left to do.
        """
        from redrive.runner.process import run_process

        run_process(self, until_idle=until_idle, only=only, exclude=exclude, strict=strict)

    async def serve(
        self,
        *,
        until_idle: bool = False,
        only: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        strict: bool = False,
    ) -> None:
        """Run inside your event loop, until cancelled; installs no signal and no log handlers. `strict`: see `run`.

        Raises:
            Halted: With `until_idle=True`, if a source or subscription is halted when nothing else is left to do.
        """
        async with self._supervised(only, exclude, strict=strict) as supervisor:
            await supervisor.run(until_idle=until_idle)
        supervisor.check_end()

    @asynccontextmanager
    async def running(
        self, *, only: Iterable[str] | None = None, exclude: Iterable[str] = (), strict: bool = False
    ) -> AsyncIterator[App]:
        """Run in the background of your event loop: `async with app.running(): yield`. `strict`: see `run`."""
        import asyncio

        async with self._supervised(only, exclude, strict=strict) as supervisor:
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
        is_real = isinstance(runtime.env.clock, SystemClock)  # no waiting helps where time does not pass by itself
        return operate(
            runtime.store, runtime.env, runtime.signals, who, types=runtime.types, declared=self.subscriptions,
            patience=runtime.settings.operator_timeout if is_real else 0.0,
            runs_here=runtime.runs,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the store; the next use opens it again."""
        self.runtime.close()

    # ------------------------------------------------------------ private

    def _import_included(self) -> None:
        for module in self._include:
            importlib.import_module(module)

    def _selected(self, only: Iterable[str] | None, exclude: Iterable[str]) -> list[Subscription]:
        """The subscriptions to run, with the overrides of the settings."""
        self._import_included()
        self.runtime.types.check()
        for option, given in (("only", only), ("exclude", exclude)):
            if isinstance(given, str):  # its letters would be taken for names
                raise UsageError(f"{option}= takes names of subscriptions: {option}=[{given!r}]")
        wanted, unwanted = None if only is None else set(only), set(exclude)
        for name in sorted((wanted or set()) | unwanted):
            if name not in self.subscriptions:
                from redrive.replay.deed import hint

                raise UsageError(f"there is no subscription {name!r} in this app; {hint(name, [*self.subscriptions])}")
        for one in self.subscriptions.values():
            if missing := [name for name in one.only if name not in self.subscriptions]:
                raise UsageError(f"mirror {one.name!r}: only= names {missing[0]!r}, which this app does not have")
        for log in self._read_from:
            log.check_in(self.runtime)
        check_subscriptions(self.runtime.settings, self.subscriptions)
        chosen = {name for name in self.subscriptions if (wanted is None or name in wanted) and name not in unwanted}
        if wanted and not chosen:
            raise UsageError("nothing is left to run: what is asked for is left out as well")
        fed = {self.subscriptions[name].source for name in chosen} - unwanted  # from a broker: somebody has to fetch it
        chosen |= {name for name in fed if name in self.subscriptions and self.subscriptions[name].kind == "intake"}
        return [
            _overridden(subscription, self.runtime.settings)
            for name, subscription in self.subscriptions.items()
            if name in chosen
        ]

    def _supervised(
        self, only: Iterable[str] | None, exclude: Iterable[str], *, strict: bool = False
    ) -> AbstractAsyncContextManager[Supervisor]:
        from redrive.runner.embed import supervised  # with asyncio behind it: a producer never needs them

        lifespan = lambda: self._lifespan and self._lifespan(self)  # noqa: E731
        chosen = self._selected(only, exclude)
        upkeep = _upkeep(self.runtime, self._retained())
        return supervised(self.runtime, chosen, lifespan, _heal, _trim, upkeep, strict=strict)

    def _retained(self) -> dict[str, float]:
        return {name: log.retention for name, log in self._logs.items() if log.retention is not None}

    def _watched(self) -> AbstractContextManager[Any]:
        """Metrics and health over HTTP, while a block lasts."""
        from redrive.watch import serving  # with a web server behind it

        return serving(self)


def _heal(duty: Duty, rule: AutoReplay) -> Healer:
    """Loaded when a subscription asks for automatic replay: most do not, and it takes as long as opening the store."""
    from redrive.replay.healing import Healer

    return Healer(duty, rule)


def _trim(store: Store, log: str, before: float) -> bool:
    """Loaded when there is an outbox."""
    from redrive.replay.prune_events import trim

    return trim(store, log, before)


def _upkeep(runtime: Runtime, logs: Mapping[str, float]) -> Upkeep | None:
    """Loaded when something is to be pruned by itself."""
    settings = runtime.settings
    if settings.prune_cron is None and not logs:
        return None
    from redrive.replay.deed import Operator
    from redrive.replay.upkeep import Upkeep

    operator = Operator(runtime.store, runtime.env, runtime.signals)
    return Upkeep(operator, settings.prune_cron, settings.prune_older_than, logs)


def _refused_as_over(*_: Any) -> Any:
    raise UsageError("tx is over: use it inside of the block of `with … as tx`")


@contextmanager
def _refused_in_the_drivers_words() -> Iterator[None]:
    """Who writes a row that a constraint refuses hears of it the same way, whenever it is checked."""
    try:
        yield
    except CommitRefused as refused:
        raise refused.error from None


@contextmanager
def _as_lent(connection: Any) -> Iterator[None]:
    """How a program wants its rows is its own affair: the engine reads on the same connection."""
    found = {name: getattr(connection, name) for name in ("row_factory", "text_factory") if hasattr(connection, name)}
    try:
        yield
    finally:
        for name, factory in found.items():
            setattr(connection, name, factory)


def _current_task() -> asyncio.Task[Any] | None:
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return None


def _overridden(subscription: Subscription, settings: Settings) -> Subscription:
    """What redrive.toml and the environment say beats the code."""
    policy = structs.replace(subscription.policy, crash_charges_max=settings.crash_charges_max)
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
    letters = overruled_letters(policy.letters, found.letters, f"settings: `subscriptions.{subscription.name}.letters")
    policy = structs.replace(policy, retry=tuple(tuned(rule, **given) for rule in policy.retry), letters=letters)
    where = f"settings: `subscriptions.{subscription.name}.replay`"
    has_breaker = subscription.breaker is not None and subscription.breaker.per is None
    return replace(
        subscription,
        policy=policy,
        replay=tuned_replay(where, subscription.replay, found.replay.given(), has_breaker=has_breaker),
        concurrency=found.concurrency or subscription.concurrency,
        timeout=found.timeout or subscription.timeout,
    )
