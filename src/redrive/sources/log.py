"""The embedded log as users see it: append durably, read in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, overload

from redrive.context import Tx, check_unversioned
from redrive.draft import draft, draft_item
from redrive.errors import UsageError
from redrive.event import Event, NewEvent, appended, from_row, scheduled_from, withdrawal
from redrive.store.address import is_same
from redrive.store.port import Appending
from redrive.store.rehearsing import check_off_stage
from redrive.tracking.intake import Door, Intake
from redrive.tracking.track import FLUSH_SECONDS, misfit, track
from redrive.units import duration

if TYPE_CHECKING:
    from redrive.runtime import Runtime
    from redrive.sources.answers import Answers
    from redrive.types import EventTypes

After = str | float | timedelta | None  # "30m", seconds or a timedelta

PAGE = 500  # events read at a time by `read`
EVERY = 2**62  # no limit
F = TypeVar("F", bound=Callable[..., Any])
APPEND_MANY_MAX = 100_000  # events in one transaction: bounds the time the write lock is held


def _forgiving(method: F) -> F:
    """Inside `quiet()`, arguments that do not fit raise nothing either; all else is looked at where it is tracked."""

    @wraps(method)
    def call(log: Log, *given: Any, **named: Any) -> Any:
        try:
            return method(log, *given, **named)
        except TypeError as error:
            return misfit(log._runtime, log.name, given, named, error)

    return call  # type: ignore[return-value]


class Log:
    """A named, ordered, durable sequence of events.

    >>> orders.append("order.placed", {"cents": 4200}, key="order-1").version
    1
    """

    outbox: str | None = None  # brokers have one; looked at for every emission
    retention: float | None = None  # seconds that its events are kept; None: for ever
    _keeps_versions = True

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.name = name
        self._runtime = runtime
        self._door: Door | None = None
        self._answers: Answers | None = None

    def __repr__(self) -> str:
        return f"Log({self.name!r})"

    @overload
    def append(
        self, type: Any, data: Any = ..., *, key: str | None = ..., id: str | None = ...,
        headers: Mapping[str, str] | None = ..., time: datetime | None = ..., expected_version: int | None = ...,
        after: After = ..., at: datetime | None = ..., tx: None = ...,
    ) -> Event[Any]: ...  # fmt: skip
    @overload
    def append(
        self, type: Any, data: Any = ..., *, key: str | None = ..., id: str | None = ...,
        headers: Mapping[str, str] | None = ..., time: datetime | None = ..., expected_version: int | None = ...,
        after: After = ..., at: datetime | None = ..., tx: Any,
    ) -> None: ...  # fmt: skip
    def append(
        self,
        type: Any,
        data: Any = None,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        time: datetime | None = None,
        expected_version: int | None = None,
        after: After = None,
        at: datetime | None = None,
        tx: Any = None,
    ) -> Event[Any] | None:
        """Store one event, durably, and return it; with `tx=` it is appended when that transaction commits.

        With `after="30m"` or `at=` a time it is scheduled, as durably, and appended by a worker when it is due: what is
        returned has a `due` time and no position.

        On Postgres `tx` may also be a transaction of your own: a psycopg connection, or a Connection or Session of
        SQLAlchemy's. The log then waits for your commit: append last.
        """
        event = draft(
            self._runtime.types, self._runtime.env, type, data, key=key, id=id, headers=headers, time=time,
            expected_version=expected_version, after=after, at=at,
        )  # fmt: skip
        if tx is not None:
            self._later(tx, [event])
            return None
        return self._store([event])[0]

    def append_many(self, events: Iterable[Any], *, tx: Any = None) -> list[Event[Any]]:
        """Store many, all or none, in one transaction: dicts with the arguments of `append`, or typed events."""
        if isinstance(events, Mapping | str):
            raise UsageError("append_many takes a list of events; one alone is for append")
        drafts = [draft_item(self._runtime.types, self._runtime.env, item) for item in events]
        if len(drafts) > APPEND_MANY_MAX:
            raise UsageError(
                f"append_many takes {APPEND_MANY_MAX:,} events at most, not {len(drafts):,}: split the list"
            )
        if tx is not None:
            self._later(tx, drafts)
            return []
        return self._store(drafts) if drafts else []

    async def append_async(
        self,
        type: Any,
        data: Any = None,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        time: datetime | None = None,
        expected_version: int | None = None,
        after: After = None,
        at: datetime | None = None,
    ) -> Event[Any]:
        """Like `append`, without blocking the event loop; calls that wait together share one commit."""
        # A hundred producers wait for each other's turn here: what each does is done a hundred times per commit.
        runtime = self._runtime
        event = draft(runtime.types, runtime.env, type, data, key, id, headers, time, expected_version, after, at)
        if not self._keeps_versions:
            check_unversioned(self.name, expected_version)
        check_off_stage()
        if runtime.transacting is not False and runtime.is_transacting():
            raise UsageError("append_async inside app.transaction() would wait for itself: append(…, tx=tx) instead")
        answers = self._answers
        if answers is None or answers.loop is not answers.running():
            answers = self._answers_here()
        row = await answers.ask(event)
        return _event(row, runtime.types)

    def _answers_here(self) -> Answers:
        """Those that go to the loop that runs now."""
        from redrive.sources.answers import Answers  # a producer that never awaits need not load asyncio

        self._answers = answers = Answers(self._runtime, self.name)
        return answers

    def cancel(self, id: str, *, tx: Any = None) -> bool:
        """Take a scheduled event back. False if there is none: it has come due, or was taken back before.

        With `tx=`, a transaction as `append` takes it: it is taken back if and when that one commits. In a handler, use
        `ctx.cancel`.
        """
        wish = withdrawal(id)
        if tx is None:
            return bool(self._append([wish])[0][1])
        pending = self._pending(tx)
        if pending is not None:
            mine = [one for one in pending if one[0] == self.name and one[1].id == id and one[1].due is not None]
            tx.pending = [one for one in pending if one not in mine]
            return bool(tx.store_tx.logs.append(self.name, [wish])[0][0][1]) or bool(mine)
        if isinstance(tx, Tx):
            raise UsageError("tx= takes the transaction of `with app.transaction() as tx`, not a projection's")
        return bool(self._runtime.store.append_into(tx, self.name, [wish])[0][1])

    @_forgiving
    def track(
        self,
        type: Any,
        data: Any = None,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        time: datetime | None = None,
    ) -> str | None:
        """Record one event without waiting for the store, and return its id.

        What is wrong with the event is raised, unless `redrive.quiet()` is on; trouble of the store never is, unless
        `redrive.strict()` is. The event is in the store a few milliseconds later: `append` is the durable call.

        >>> event_id = orders.track("page.seen", {"path": "/"}, key="visitor-1")
        """
        return track(self._runtime, self.name, self._door, self._store, type, data, key, id, headers, time)

    def flush(self, timeout: str | float = FLUSH_SECONDS) -> bool:
        """Wait until everything that this process has tracked, in any log, is stored; False if that did not happen."""
        return self._runtime.tracker.flush(duration(timeout))

    def limit(self, intake: Intake | None) -> None:
        """Set the intake limit, if one is given; two different ones are a mistake."""
        if intake is None:
            return
        if self._door is not None and self._door.intake != intake:
            raise UsageError(f"log {self.name!r} has an intake limit already: give it in one place")
        if self._door is None:
            self._door = Door(self.name, intake, self._runtime.types)

    def read(self, after: int = 0) -> Iterator[Event[Any]]:
        """All events above a position, in order, a page at a time."""
        if not isinstance(after, int) or abs(after) >= 1 << 63:
            raise UsageError(f"after= is a position, a whole number, not {after!r}")
        while True:
            with self._runtime.store.reading() as tx:
                rows = tx.logs.after(tx.logs.id_of(self.name), after, PAGE)
            for row in rows:
                yield from_row(row, self._runtime.types)
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def read_key(self, key: str, after_version: int = 0) -> list[Event[Any]]:
        """The events of one key above a version, oldest first.

        What landed from a broker has none, and counts as above the version of what came before it.
        """
        with self._runtime.store.reading() as tx:
            rows = tx.logs.of_key(tx.logs.id_of(self.name), key, after_version, EVERY)
        return [from_row(row, self._runtime.types) for row in rows]

    def _store(self, events: list[NewEvent]) -> list[Event[Any]]:
        rows = self._append(events)
        self._runtime.notify(self.name, rows)
        return [appended(row, self._runtime.types) for row in rows]

    def _check(self, events: Sequence[NewEvent]) -> None:
        """Whether they may be stored here."""
        if not self._keeps_versions:
            for event in events:
                check_unversioned(self.name, event.expected_version)

    def _append(self, events: list[NewEvent]) -> list[Any]:
        self._check(events)
        if self._runtime.store.inside_transaction():  # it would wait for itself
            raise UsageError(
                "append inside a transaction: use tx.emit in a projection, append(…, tx=tx) in app.transaction()"
            )
        answered = threading.Event()
        answer: list[Any] = []

        def done(rows: Any, error: BaseException | None) -> None:
            answer.extend((rows, error))
            answered.set()

        self._runtime.store.append(Appending(self.name, events, done), here=True)
        answered.wait()
        rows, error = answer
        if error is not None:
            raise error
        assert isinstance(rows, list)
        return rows

    def check_in(self, runtime: Runtime) -> None:
        """Is it in the store of this program? What is read from or emitted to another's would be one of the same name.

        In a test the store is the harness's, and that of others is not asked for.
        """
        mine = self._runtime
        if mine is not runtime and not runtime.inline and not is_same(mine.address, runtime.address):
            raise UsageError(
                f"log {self.name!r} is in {mine.shown}, and this app is on {runtime.shown}: functions read, emit and "
                "cancel in their own store. Use a log of this app; a handler may append to the other one, which "
                "happens at once"
            )

    def _later(self, tx: Any, events: list[NewEvent]) -> None:
        self._check(events)
        pending = self._pending(tx)
        if pending is not None:
            pending.extend((self.name, event) for event in events)
        elif isinstance(tx, Tx):
            raise UsageError("tx= takes the transaction of `with app.transaction() as tx`; in a projection use tx.emit")
        else:
            self._runtime.store.append_into(tx, self.name, events)

    def _pending(self, tx: Any) -> list[tuple[str, NewEvent]] | None:
        """What a transaction of `app.transaction()` is to append when it commits; None for any other."""
        pending: list[tuple[str, NewEvent]] | None = getattr(tx, "pending", None)
        if pending is None:
            return None
        if tx.is_over:
            raise UsageError("tx= is over: append inside of the block of `with app.transaction() as tx`")
        mine, its = self._runtime, tx.runtime
        if its is not mine and not is_same(its.address, mine.address):
            raise UsageError(f"tx= is a transaction of {its.shown}, and log {self.name!r} is in {mine.shown}")
        return pending


class Outbox(Log):
    """The log where what is to be sent to a broker waits, and is kept for a while; see `App.outbox`."""

    _keeps_versions = False

    def __repr__(self) -> str:
        return f"Outbox({self.name!r})"


def _event(row: Any, types: EventTypes) -> Event[Any]:
    """What a row has become: an event of the log, or one that waits for its time."""
    return Event(*row, types) if row[0] is not None else scheduled_from(row, types)  # type: ignore[call-arg]
