"""Declaring: what a program says about its logs, functions and sinks, checked when it is said."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from redrive.errors import UsageError
from redrive.event import check_log, check_subscription
from redrive.mirrors.port import LETTERS, Mirror
from redrive.options import named_options
from redrive.policy.auto_replay import AutoReplay, settled_for
from redrive.policy.breaker import Rule
from redrive.policy.decide import Policy
from redrive.policy.limiter import paced
from redrive.policy.partitions import PARTITIONS_MAX
from redrive.policy.retry import Conflicts, Retry, seconds_of
from redrive.policy.rules import Rules
from redrive.runtime import Runtime
from redrive.sinks.port import Sink, check_sink
from redrive.sources.log import Log, Outbox
from redrive.sources.port import Source
from redrive.sources.refusal import guarded
from redrive.store.states import States
from redrive.subscription import KeyBy, Order, Subscription, check_breaker, check_state, count_arguments
from redrive.tracking.intake import Patterns
from redrive.tracking.intake import intake as limited
from redrive.units import duration

F = TypeVar("F", bound=Callable[..., Any])
RetryGiven = Retry | Sequence[Retry] | None
Tables = Mapping[str, str] | Iterable[str]
DEFAULT_BREAKER = Rule()
COURIERS = 10  # calls of a sink side by side, where nothing is said: they wait for an answer most of the time
VERSION_MAX = 200  # characters: a version is shown in a line of `status`
OUTBOX_KEEP = "7d"  # what was delivered: long enough to see what was said last week


class Declarations:
    """The part of an app that a program is written with."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.runtime, self.name = runtime, name
        self.subscriptions: dict[str, Subscription] = {}
        self._logs: dict[str, Log] = {}
        self._outboxes: set[str] = set()
        self._read_from: list[Log] = []

    @named_options("app.log")
    def log(
        self,
        name: str,
        *,
        intake: str | None = None,
        keep: Rules | Patterns | None = None,
        bypass: Patterns | None = None,
        retention: str | float | timedelta | None = None,
    ) -> Log:
        """The log of this name; it exists from its first event on.

        `intake="1000/s"` limits what `track` brings in, by each process; `append` is never limited. What is over it
        goes to the log `NAME:limited`; with `keep=`, only what fits; `bypass=` passes at any rate.

        `retention="90d"`: workers delete events that are older and that no subscription needs, see `redrive prune`.
        """
        check_log(name)
        if intake is None and (keep is not None or bypass is not None):
            raise UsageError(f'log {name!r}: keep= and bypass= go with a limit: add intake="1000/s"')
        log = self._logs.setdefault(name, Log(self.runtime, name))
        log.limit(None if intake is None else limited(intake, keep, bypass))
        if retention is not None:
            try:
                log.retention = duration(retention)
            except ValueError as why:
                raise UsageError(f"log {name!r}: retention: {why}") from why
        return log

    @named_options("app.projection")
    def projection(
        self,
        source: Log | Source,
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
        replay: AutoReplay | None = None,
        on_error: Callable[..., Any] | None = None,
        partitions: int = 1,
        version: str | int | None = None,
    ) -> Callable[[F], F]:
        """A function `(event, tx)` that touches only the database: it runs inside the transaction, in batches."""

        self._check_source(source)
        if isinstance(tables, str):
            raise UsageError(f"tables= takes a list of names, or what is in each: tables=[{tables!r}]")

        def declare(function: F) -> F:
            if inspect.iscoroutinefunction(_called(function)):
                raise UsageError(
                    f"{_name(function)} is async; a projection is a plain def: it runs inside a transaction"
                )
            arguments = count_arguments(function, "(events, tx)" if batch else "(event, tx)")
            owned = dict(tables) if isinstance(tables, Mapping) else dict.fromkeys(tables)
            self._declare(
                Subscription(
                    name or _name(function), "projection", _guarded(source, function, batch=batch),
                    self._read(source, order), self._types(types), order, key_by, start,
                    _policy(retry, conflicts, letters), batch=batch, tables=owned, on_error=on_error,
                    arguments=arguments, partitions=_partitions(partitions, order, key_by, function),
                    replay=settled_for(name or _name(function), replay, has_breaker=False),
                    version=_version(name or _name(function), version),
                )
            )  # fmt: skip
            return function

        return declare

    @named_options("app.on")
    def on(
        self,
        source: Log | Source,
        *types: str | type,
        name: str | None = None,
        order: Order = "key",
        key_by: KeyBy = None,
        start: str | None = None,
        retry: RetryGiven = None,
        conflicts: Conflicts | None = None,
        letters: Rules | None = None,
        replay: AutoReplay | None = None,
        concurrency: int = 1,
        timeout: str | float | None = None,
        breaker: Rule | None = None,
        limit: str | None = None,
        on_error: Callable[..., Any] | None = None,
        rehearsable: bool = False,
        partitions: int = 1,
        state: States | None = None,
        version: str | int | None = None,
    ) -> Callable[[F], F]:
        """A function `(event, ctx)`, `def` or `async def`, that may talk to the world."""

        self._check_source(source)

        def declare(function: F) -> F:
            called = _called(function)
            if not isinstance(state, States | None):
                raise UsageError(f"{_name(function)}: state= takes RocksDB(path), or nothing: then it is in the store")
            arguments = count_arguments(called, "(event, ctx)")
            self._declare(
                Subscription(
                    name or _name(function), "handler", _guarded(source, called), self._read(source, order),
                    self._types(types), order, key_by, start, _policy(retry, conflicts, letters),
                    concurrency=_concurrency(name or _name(function), concurrency, order),
                    timeout=_timeout(name or _name(function), timeout),
                    on_error=on_error, arguments=arguments, state=state,
                    rehearsable=rehearsable, partitions=_partitions(partitions, order, key_by, function),
                    breaker=_breaker(breaker), limit=None if limit is None else paced(limit),
                    replay=settled_for(name or _name(function), replay, has_breaker=_is_one(breaker)),
                    version=_version(name or _name(function), version),
                )
            )  # fmt: skip
            return function

        return declare

    @named_options("app.deliver")
    def deliver(
        self,
        source: Log | Source,
        *types: str | type,
        to: Sink | Source | Iterable[Sink | Source],
        order: Order = "key",
        key_by: KeyBy = None,
        start: str | None = None,
        retry: RetryGiven = None,
        letters: Rules | None = None,
        replay: AutoReplay | None = None,
        concurrency: int | None = None,
        timeout: str | float | None = "30s",
        breaker: Rule | None = DEFAULT_BREAKER,
        limit: str | None = None,
        on_error: Callable[..., Any] | None = None,
        partitions: int = 1,
        version: str | int | None = None,
    ) -> None:
        """Send events to sinks. Each is a subscription of its own, called like the sink: one delays no other."""
        given: Any = to
        targets = list(given) if isinstance(given, Iterable) and not isinstance(given, str | Sink) else [given]
        if not targets:
            raise UsageError("deliver: to= is empty, nothing would go anywhere; name a sink: webhook(url, name=…)")
        for target in targets:
            log = self._read(source, order)
            sink = target.sink(f"{log}:{target.outbox}") if isinstance(target, Source) else target
            if not isinstance(sink, Sink):
                raise UsageError(f"to= takes sinks, such as webhook(url, name=…), not {sink!r}")
            check_sink(sink)
            sink.log = log
            self._declare(
                Subscription(
                    sink.name, "delivery", sink.send, sink.log, self._types(types), order, key_by, start,
                    _policy(retry, None, letters), concurrency=_concurrency(sink.name, concurrency, order, COURIERS),
                    timeout=_timeout(sink.name, timeout), on_error=on_error, sink=sink,
                    partitions=_partitions(partitions, order, key_by, sink.send), breaker=_breaker(breaker),
                    limit=None if limit is None else paced(limit),
                    replay=settled_for(sink.name, replay, has_breaker=_is_one(breaker)),
                    version=_version(sink.name, version),
                )
            )  # fmt: skip

    @named_options("app.outbox")
    def outbox(
        self,
        target: Source,
        *,
        keep: str | float | timedelta = OUTBOX_KEEP,
        order: Order = "key",
        retry: RetryGiven = None,
        letters: Rules | None = None,
        replay: AutoReplay | None = None,
        concurrency: int | None = None,
        timeout: str | float | None = "30s",
        breaker: Rule | None = DEFAULT_BREAKER,
        limit: str | None = None,
        on_error: Callable[..., Any] | None = None,
        partitions: int = 1,
    ) -> Outbox:
        """Where what is to be sent to a broker waits: a log, and the delivery that carries it there.

        What is appended to it, or emitted to it or to the broker, is stored with the effects around it and published
        afterwards, with the same id however often. What was delivered is kept for as long as `keep` says.
        """
        if not isinstance(target, Source):
            raise UsageError(f"outbox takes what a broker has, such as redrive.redis.Stream(…), not {target!r}")
        name = target.outbox
        if name in self._outboxes:
            raise UsageError(f"{name}: there is an outbox of this name; declare it once, and use it in all places")
        try:
            kept = duration(keep)
        except ValueError as error:
            raise UsageError(f"{name}: keep: {error}") from None
        self._logs[name] = outbox = Outbox(self.runtime, name)
        self.deliver(
            outbox, to=target.sink(name), order=order, start="first", retry=retry, letters=letters, replay=replay,
            concurrency=concurrency, timeout=timeout, breaker=breaker, limit=limit, on_error=on_error,
            partitions=partitions,
        )  # fmt: skip
        self.subscriptions[name] = replace(self.subscriptions[name], keep=kept)
        self._outboxes.add(name)
        return outbox

    @named_options("app.mirror")
    def mirror(self, *, to: Mirror | Iterable[Mirror], only: Iterable[str] = ()) -> None:
        """Mirror the letters elsewhere, all of them or those of some subscriptions. Each mirror is one of its own."""
        mirrors = list(to) if isinstance(to, Iterable) else [to]
        if not mirrors:
            raise UsageError("mirror: to= is empty; name a mirror: mirrors.files('dead', name=…)")
        if isinstance(only, str):
            raise UsageError(f"only= takes names of subscriptions: only=[{only!r}]")
        for mirror in mirrors:
            if not isinstance(mirror, Mirror):
                raise UsageError(f"to= takes mirrors, such as mirrors.files('dead', name=…), not {mirror!r}")
            for other in self.subscriptions.values():
                there = None if other.mirror is None or other.name == mirror.name else other.mirror.place
                if there is not None and there == mirror.place:
                    raise UsageError(
                        f"mirrors {other.name!r} and {mirror.name!r} write to the same place: give each its own"
                    )
            self._declare(
                Subscription(
                    mirror.name, "mirror", mirror.write, LETTERS, order="none", mirror=mirror, only=tuple(only)
                )
            )  # fmt: skip

    @named_options("app.upcast")
    def upcast(self, name: str, schema: int) -> Callable[[F], F]:
        """A function from data of this schema to data of the next, applied before decoding."""

        def declare(function: F) -> F:
            self.runtime.types.upcast(name, schema, function)
            return function

        return declare

    def _declare(self, subscription: Subscription) -> None:
        known = self.subscriptions.get(check_subscription(subscription.name))
        if known is not None and inspect.unwrap(known.function) is not inspect.unwrap(subscription.function):
            raise UsageError(f"two functions are called {subscription.name!r}: give one of them name=")
        if known is not None and _place(known) != _place(subscription):
            raise UsageError(f"{subscription.name!r} is declared twice, and not as the same: give one of them name=")
        if subscription.order not in ("key", "none", "total"):
            raise UsageError(f'{subscription.name}: order is "key", "none" or "total", not {subscription.order!r}')
        _check_hooks(subscription)
        check_state(subscription)
        check_breaker(subscription, [one for name, one in self.subscriptions.items() if name != subscription.name])
        self.subscriptions[subscription.name] = replace(subscription, outboxes=self._outboxes, runtime=self.runtime)

    def _check_source(self, source: Any) -> None:
        if not isinstance(source, Log | Source):
            raise UsageError(f"the first argument is a log, such as app.log('orders'), not {source!r}")

    def _read(self, source: Any, order: Order) -> str:
        """The log to read; where the messages of a broker land is decided here, and that somebody has to fetch them."""
        if isinstance(source, Log):
            self._read_from.append(source)
            return source.name
        self._check_source(source)
        assert isinstance(source, Source)
        source.check_order(order)
        known = self.subscriptions.get(source.log)
        if known is None:
            self._declare(
                Subscription(
                    source.log, "intake", source.open, source.log, order="none", origin=source,
                    group=f"{self.name}.{source.name}",
                )
            )  # fmt: skip
        elif known.origin is not source:
            raise UsageError(f"{source.log}: two objects name one {source.scheme} source; make one, and use it twice")
        return source.log

    def _types(self, types: tuple[str | type, ...]) -> tuple[str, ...]:
        names = [_pattern(item) if isinstance(item, str) else self.runtime.types.name_of(item) for item in types]
        return tuple(dict.fromkeys(names))


def _pattern(name: str) -> str:
    """A name or a glob that some type can fit."""
    if not name or any(map(str.isspace, name)):
        raise UsageError(f"{name!r} fits no event: types have no white space; write it like order.placed or order.*")
    return name


def _check_hooks(subscription: Subscription) -> None:
    """What is called beside the function, or in its place: looked at now, not at the first event."""
    name, key_by, on_error = subscription.name, subscription.key_by, subscription.on_error
    if on_error is not None and (inspect.iscoroutinefunction(on_error) or not takes(on_error, 2)):
        raise UsageError(f"{name}: on_error is a plain def (event, error)")
    if not isinstance(key_by, str | None) and (inspect.iscoroutinefunction(key_by) or not takes(key_by, 1)):
        raise UsageError(f"{name}: key_by is a plain def (event), or the name of a field")
    if not isinstance(subscription.start, str | None):
        raise UsageError(
            f'{name}: start={subscription.start!r}; write "first", "now" or a time as text, "2026-01-31T00:00:00Z"'
        )


def takes(function: Any, count: int) -> bool:
    """Can it be called with so many arguments, as far as anybody can tell?"""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # written in C, and does not say
        return True
    return True


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs when it is called: an object may have a coroutine for that."""
    call = getattr(function, "__call__", None)  # noqa: B004
    return call if inspect.ismethod(call) and inspect.iscoroutinefunction(call) else function


def _place(subscription: Subscription) -> tuple[object, ...]:
    return subscription.kind, subscription.source, subscription.types


def _timeout(name: str, given: str | float | None) -> float | None:
    if given is None:
        return None
    seconds = seconds_of(f"{name}: timeout", given)
    if not seconds:
        raise UsageError(f"{name}: timeout: 0 leaves no time; leave it out for no limit")
    return seconds


def _guarded(source: Any, function: Callable[..., Any], *, batch: bool = False) -> Callable[..., Any]:
    """What a broker gives may be no event at all."""
    return function if isinstance(source, Log) else guarded(function, batch=batch)


def _concurrency(name: str, count: int | None, order: Order, usual: int = 1) -> int:
    if count is None:
        return 1 if order == "total" else usual
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UsageError(f"{name}: concurrency={count!r}; give a number from 1 on")
    if order == "total" and count > 1:
        raise UsageError(
            f'{name}: concurrency={count} with order="total"; total order runs one at a time: leave concurrency out, '
            'or say order="key"'
        )
    return count


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


def _version(name: str, version: str | int | None) -> str | None:
    """As the store keeps it: 2 and "2" are the same version."""
    if version is None:
        return None
    text = str(version)
    if isinstance(version, bool) or not isinstance(version, str | int) or not text or len(text) > VERSION_MAX:
        raise UsageError(
            f"{name}: version={version!r}; give a number or a text of at most {VERSION_MAX} characters, such as 2 or "
            '"2026-01"'
        )
    return text


def _is_one(given: Rule | None) -> bool:
    """Is there one breaker for all, whose recovery may start a replay? Of a key's own no letter dies."""
    return isinstance(given, Rule) and given.per is None


def _breaker(given: Any) -> Rule | None:
    if given is not None and not isinstance(given, Rule):
        raise UsageError("breaker= takes breaker(…)")
    return given


def _policy(retry: RetryGiven, conflicts: Conflicts | None, letters: Rules | None) -> Policy:
    given: tuple[Any, ...] = (Retry(),) if retry is None else tuple(retry) if isinstance(retry, Iterable) else (retry,)
    if not given or not all(isinstance(rule, Retry) for rule in given):
        raise UsageError("retry= takes retry(…) or a list of them")
    if not isinstance(conflicts, Conflicts | None) or not isinstance(letters, Rules | None):
        raise UsageError("conflicts= takes conflicts(…), letters= takes rules(…)")
    return Policy(given, conflicts or Conflicts(), letters or Rules())
