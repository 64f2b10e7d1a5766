"""What a function is handed beside its event: `Tx` inside a transaction, `Ctx` for a handler.

Neither writes by itself: `Tx.execute` is the driver's own, `Ctx` collects effects that the
settling transaction applies, all or none.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from redrive.codec import encode_data
from redrive.draft import derive
from redrive.errors import EventError, UsageError
from redrive.event import Event, NewEvent, emission_id, withdrawal
from redrive.observe.tracing import traced

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from redrive.clock import Env
    from redrive.types import EventTypes

SAME_KEY: Any = object()  # the default of emit's key: the one being handled


class Emission(msgspec.Struct, frozen=True, gc=False):
    """An event to append in the settling transaction."""

    log: str
    event: NewEvent


class Again(BaseException):
    """The transaction must begin again, and will go another way.

    Not an Exception: a user's `except Exception` must not swallow it.
    """


class Escalate(Again):
    """A projection emitted on a connection that a power cut may roll back: run it again on the durable one."""


class Ended(Again):
    """A call has made the database end the transaction: nothing is left of it, nor of those before it."""

    def __init__(self, subject: Any, error: BaseException) -> None:
        super().__init__(subject, error)
        self.subject = subject  # what it was called for
        self.error, self.trace = error, error.__traceback__  # what it has raised, and where
        self.is_retry = False  # was it one of several attempts in this transaction, and not the first?


class Opened(Protocol):
    """What a Tx shows of the store's transaction, and of whatever stands in for it."""

    @property
    def connection(self) -> Any: ...
    @property
    def execute(self) -> Callable[..., Any]:
        """Run a user's statement: `:name` or `?` parameters, a cursor as its result."""
        ...

    @property
    def executemany(self) -> Callable[..., Any]:
        """The same once for each set of parameters."""
        ...


class Tx:
    """An open transaction. `execute` takes `:name` parameters, `executemany` a list of them.

    Both are the same on every store; `connection` is the raw driver's.
    """

    __slots__ = ("_cancel", "_emit", "_opened", "event", "execute", "executemany")

    def __init__(
        self, tx: Opened, emit: Callable[..., str] | None = None, cancel: Callable[..., bool] | None = None
    ) -> None:
        self._opened = tx
        self.execute = tx.execute  # bound once: the hot path of every projection
        self.executemany = tx.executemany
        self._emit, self._cancel = emit, cancel
        self.event: Event[Any] | None = None  # the one a projection is called for

    @property
    def connection(self) -> Any:
        """The raw driver's connection, in this transaction."""
        return self._opened.connection

    def emit(
        self,
        log: Any,
        type: Any,
        data: Any = None,
        *,
        key: str | None = SAME_KEY,
        headers: Mapping[str, str] | None = None,
        expected_version: int | None = None,
        after: str | float | timedelta | None = None,
        at: datetime | None = None,
    ) -> str:
        """Append to a log, or to the outbox of a broker, once for this event however often it is tried; returns its id.

        With `after="30m"` or `at=` a time it is scheduled in this transaction, and appended when it is due.
        """
        if self._emit is None:
            raise UsageError("emit belongs to projections; here, use log.append(…, tx=tx)")
        assert self.event is not None
        return self._emit(
            self.event, log, type, data, key, headers=headers, expected_version=expected_version, after=after, at=at
        )

    def cancel(self, log: Any, id: str) -> bool:
        """Take a scheduled event back in this transaction: the id is what `emit` returned.

        False if it is not there: it has come due, or was taken back before. A rebuild takes nothing back, and says what
        was said then: False if the event is in the log.
        """
        if self._cancel is None:
            raise UsageError("cancel belongs to projections; here, use log.cancel(id, tx=tx)")
        assert self.event is not None
        return self._cancel(self.event, log, id)


class Emitter:
    """Makes emissions of one subscription, with ids derived from the event and the order of the calls."""

    __slots__ = ("_env", "_outboxes", "_runtime", "_types", "identity")

    def __init__(
        self, identity: str, types: EventTypes, env: Env, outboxes: Container[str] | None = None, runtime: Any = None
    ) -> None:
        """`outboxes`: the logs that deliveries carry to brokers; `runtime`: whose logs these are. None: nobody asks."""
        self.identity, self._types, self._env = identity, types, env
        self._outboxes, self._runtime = outboxes, runtime

    def make(
        self,
        event: Event[Any],
        ordinal: int,
        log: Any,
        type: Any,
        data: Any,
        *,
        key: str | None,
        headers: Mapping[str, str] | None,
        expected_version: int | None,
        after: str | float | timedelta | None = None,
        at: datetime | None = None,
    ) -> Emission:
        """Check and encode now, so that an error surfaces in the function that made it."""
        name = self.named(log, "emit")
        if self._outboxes is not None:
            self._check_carried(log, name, expected_version)
        made_id, headers = emission_id(self.identity, event.id, ordinal), traced(headers, event)
        made = derive(self._types, self._env, made_id, type, data, key, headers, expected_version, after, at)
        return Emission(name, made)

    def named(self, log: Any, verb: str) -> str:
        """The log that is meant. One of another store is refused: of its name there may be one here, too."""
        name = name_of(log, verb)
        if self._runtime is not None and (check_in := getattr(log, "check_in", None)) is not None:
            check_in(self._runtime)
        return name

    def _check_carried(self, log: Any, name: str, expected_version: int | None) -> None:
        """What goes to a broker must have somebody who carries it."""
        assert self._outboxes is not None
        if name in self._outboxes:
            check_unversioned(name, expected_version)
        elif getattr(log, "outbox", None) is not None:
            raise UsageError(f"nobody would carry what is emitted to {log!r}: declare it once, with app.outbox(…)")


class Office(Protocol):
    """What a ctx asks of the subscription it belongs to."""

    @property
    def name(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def deps(self) -> Any: ...
    @property
    def emitter(self) -> Emitter: ...
    def load_state(self, key: str) -> tuple[int, bytes]: ...
    def is_scheduled(self, log: str, id: str) -> bool: ...


_FIELDS: tuple[str, ...] = ()  # whoever is a Ctx has its own


class Ctx:
    """A handler's way to ask for effects; they commit together with the event, or not at all.

    >>> @app.on(logins, key_by="user", start="first")
    ... def watch(event, ctx):
    ...     ctx.state["failures"] = ctx.state.get("failures", 0) + 1
    """

    __slots__ = _FIELDS

    event: Event[Any]
    key: str | None
    attempt: int
    touched: bool
    _edits: int
    _office: Office
    _loaded: tuple[int, bytes] | None
    _state: dict[str, Any] | None
    _emissions: list[Emission] | None
    _statements: list[tuple[str, Any]] | None
    _dead: bool
    _over: bool
    _withdrawn: int

    @property
    def idempotency_key(self) -> str:
        """The same at every attempt of this event by this subscription; an edit of its data changes it."""
        edited = f":{self._edits}" if self._edits else ""
        return f"{self._office.name}:{self.event.id}{edited}"

    @property
    def epoch(self) -> int:
        """Grows with every change of ownership: lets the other side fence a dying owner's calls."""
        return self._office.epoch

    @property
    def deps(self) -> Any:
        """What the app's lifespan yielded."""
        return self._office.deps

    @property
    def state(self) -> dict[str, Any]:
        """State of this key, saved when the event is settled; left empty it is deleted."""
        self._check_alive()
        if self._loaded is None:
            if self.key is None:
                raise UsageError("ctx.state needs a key: append events with key=, or give the subscription key_by=")
            self._loaded = self._office.load_state(self.key)
            self.touched = True
        if self._state is None:
            self._state = msgspec.json.decode(self._loaded[1]) if self._loaded[1] else {}
        return self._state

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        if not isinstance(value, dict):
            raise EventError(f"ctx.state is a dict, not {type(value).__name__}")
        _ = self.state
        self._state = value

    def emit(
        self,
        log: Any,
        type: Any,
        data: Any = None,
        *,
        key: str | None = SAME_KEY,
        headers: Mapping[str, str] | None = None,
        expected_version: int | None = None,
        after: str | float | timedelta | None = None,
        at: datetime | None = None,
    ) -> str:
        """Append to a log, or to the outbox of a broker, when this event is settled; returns the id it will have.

        With `after="30m"` or `at=` a time it is scheduled when this event is settled, and appended when it is due.
        """
        self._check_alive()
        if self._emissions is None:
            self._emissions, self.touched = [], True
        chosen = self.key if key is SAME_KEY else key
        made = self._office.emitter.make(
            self.event, len(self._emissions) - self._withdrawn, log, type, data,
            key=chosen, headers=headers, expected_version=expected_version, after=after, at=at,
        )  # fmt: skip
        self._emissions.append(made)
        return made.event.id

    def cancel(self, log: Any, id: str) -> bool:
        """Take a scheduled event back when this event is settled: the id is what `emit` returned.

        False if it is not there: it has come due, or was taken back before. If it comes due between this call and the
        settling, the function runs again and is told so.
        """
        self._check_alive()
        name = self._office.emitter.named(log, "cancel")
        mine = any(one.log == name and one.event.id == id for one in self._emissions or ())
        wish = withdrawal(id, seen=not mine)
        if not mine and not self._office.is_scheduled(name, id):
            return False
        if self._emissions is None:
            self._emissions, self.touched = [], True
        self._withdrawn += 1  # not counted among the emissions, whose ids must not depend on it
        self._emissions.append(Emission(name, wish))
        return True

    def execute(self, sql: str, parameters: Any = ()) -> None:
        """Run a statement in the settling transaction; there are no results to look at."""
        self._check_alive()
        if self._statements is None:
            self._statements, self.touched = [], True
        self._statements.append((sql, parameters))

    def effects(self) -> Effects | None:
        """What was asked for; None if nothing was. Encodes the state, so errors in it are the function's."""
        saved = None
        if self._loaded is not None and self._state is not None:
            raw = encode_data(self._state) if self._state else b""
            if raw != self._loaded[1]:
                assert self.key is not None
                saved = (self.key, self._loaded[0], raw)
        if saved is None and self._emissions is None and self._statements is None:
            return None
        if self._statements is None:
            return _Plain((), tuple(self._emissions or ()), saved)
        return Effects(tuple(self._statements), tuple(self._emissions or ()), saved)

    def kill(self) -> None:
        """The function overran its timeout: whatever it still asks is refused."""
        self._dead = True

    def __repr__(self) -> str:
        return f"Ctx({self.event!r}, attempt={self.attempt})"  # without state and emissions: they may be personal

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("event", self.event), ("attempt", self.attempt)]

    def _check_alive(self) -> None:
        if self._dead:
            raise UsageError("this ctx is dead: the function overran its timeout and its result no longer counts")
        if self._over:
            raise UsageError("this ctx is over: the function has returned; it must wait for what it starts")


class LiveCtx(Ctx, msgspec.Struct, eq=False):
    """The one that the engine hands out. A Struct, because one is made per event, in a third of the time."""

    event: Event[Any]
    key: str | None
    attempt: int
    _edits: int
    _office: Office
    _loaded: tuple[int, bytes] | None = None
    _state: dict[str, Any] | None = None
    _emissions: list[Emission] | None = None
    _statements: list[tuple[str, Any]] | None = None
    _dead: bool = False  # it has overrun its timeout
    _over: bool = False  # the function has returned: whatever is asked for now, nobody would do
    _withdrawn: int = 0
    touched: bool = False  # was anything asked for?


class Effects(msgspec.Struct, frozen=True):
    """What a handler asked of `ctx`: written in the settling transaction, all or nothing."""

    statements: tuple[tuple[str, Any], ...] = ()
    emissions: tuple[Emission, ...] = ()
    state: tuple[str, int, bytes] | None = None  # key, the version it was read at, encoded ("" deletes)


class _Plain(Effects, frozen=True, gc=False):
    """Effects without anything of the user's in them: they cannot be part of a circle."""


def check_unversioned(outbox: str, expected_version: int | None) -> None:
    """An outbox forgets what it has delivered, and with it how many events a key had."""
    if expected_version is not None:
        raise UsageError(f"{outbox}: an outbox keeps no versions: leave out expected_version=")


def name_of(log: Any, verb: str) -> str:
    """The log that is meant; of a broker's stream or topic, the one where what goes there waits."""
    name = getattr(log, "outbox", None) or getattr(log, "name", None)
    if not isinstance(name, str):
        raise UsageError(f"{verb} takes a log as its first argument, not {log!r}")
    return name
