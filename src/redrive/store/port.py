"""The store port: a transaction with facets, and the values that cross it.

Two writes that must agree are in one `with store.transaction()`. A backend is certified by
`redrive.testing.contracts.store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct

from redrive.context import Opened, Tx

if TYPE_CHECKING:
    from redrive.event import NewEvent
    from redrive.store.ahead import Lookout
    from redrive.store.books import Books
    from redrive.store.guards import Guards
    from redrive.store.keyed import Keyed
    from redrive.store.letters import Letters
    from redrive.store.log import Logs
    from redrive.store.news import News
    from redrive.store.points import Points
    from redrive.store.progress import Progress
    from redrive.store.sql import Row, Sql


Function = Callable[[Any, Any], Any]  # a projection, and what it is called with


class Subscribed(Struct, frozen=True):
    """A subscription as the store knows it."""

    id: int
    name: str
    kind: str
    source: str
    ordering: str


class ProgressRow(NamedTuple):
    """The hot row of one partition of a subscription, or what all of them come to."""

    member: int
    subscription: int
    position: int
    anchor: str | None
    epoch: int
    parked_version: int
    applied: int
    ignored: int
    started_from: int
    quiet_until: int
    paused: int
    halted: str | None
    owner: str | None
    lease_until: float
    lease_set_at: float
    unclean: int
    boot: str | None
    settled_at: float | None
    last_type: str | None
    last_time_us: int | None


class LetterRow(NamedTuple):
    """A letter as operators see it."""

    id: int
    subscription: str
    subscription_id: int
    position: int
    lane: str | None
    event_id: str
    type: str
    key: str | None
    state: str
    reason: str
    rev: int
    attempts: int
    replaying: int
    due_at: float
    parked_at: float
    first_failed_at: float | None
    last_failed_at: float | None
    error_type: str
    error_message: str
    fingerprint: str
    edits: int
    touched_at: float
    resolved_by: str | None
    source: str
    dependency: str | None  # which is to blame for its last failure: a breaker's name
    auto_replays: int


class Counts(NamedTuple):
    """Rows of one table that were written; a REPLACE is an insert."""

    inserted: int
    updated: int
    deleted: int


class Appending(Struct, frozen=True):
    """One caller's append, waiting to be committed with others."""

    log: str
    events: Sequence[NewEvent]
    done: Callable[[Any, BaseException | None], Callable[[], None] | None]  # returns what to call when all are answered
    apart: bool = False  # each event is another caller's, who gets a row or an error of its own: `done` is given both


class LateError(Exception):
    """A statement failed of a call that was believed to have gone well. Nothing was written: run each with care."""


class Disbelief(Exception):
    """Progress is not what we believed it to be. Nothing was written: look, and settle by what is there."""


class Holding(Opened, Protocol):
    """Where statements wait until the call that made them has ended. To be handed to the function instead of the tx."""

    def begin(
        self, user: Tx, puts_off: Callable[[BaseException], bool] | None = None, *, is_trial: bool = False
    ) -> None:
        """Calls follow that are handed this: one ends where `user.event` is another.

        `answers` must follow before anything is concluded from them. One that raises leaves nothing behind, unless it
        had to know what came of a statement: see `takes_back`.
        `puts_off`: after such an error the caller itself sees whether what was asked for would have gone well.
        `is_trial`: one call follows, of which nothing is to be left, however it ends: see `has_repeated`.
        """
        ...

    def forget(self) -> None:
        """There are no more such calls. What was not answered for is not done."""
        ...

    def put_off(self) -> Sequence[Any] | None:
        """What the call asked for that has just raised, once, if nobody knows yet whether it would have gone well."""
        ...

    def goes_well(self, asked: Sequence[Any]) -> bool:
        """Would it go well now? Nothing of it is left."""
        ...

    def has_repeated(self, asked: Sequence[Any]) -> bool:
        """The trial has ended: did it ask for the same and for nothing else?"""
        ...


class StoreTx(Opened, Protocol):
    """One open transaction. Facets share it; leaving the `with` block commits or rolls back."""

    sql: Sql
    logs: Logs
    progress: Progress
    letters: Letters
    keyed: Keyed
    guards: Guards
    books: Books

    @property
    def hold(self) -> Holding | None:
        """Who holds the statements of calls; None: nothing is gained by it."""
        ...

    def checked(self, function: Function) -> Function:
        """A function as it is to be called in here.

        Where an error that it passed over spoils whatever follows, the call fails instead of its innocent successor.
        """
        ...

    def strict(self, function: Function) -> Function:
        """A function that fails if it leaves behind what a constraint would refuse at the commit.

        Costs a round trip for each call: for those of a transaction whose commit was refused.
        """
        ...

    def pipelined(self, function: Function) -> Function:
        """A function as `checked` gives it, whose statements need not wait for each other's answers.

        Calls are counted from here on. `answers` must follow before anything is concluded from how they ended.
        """
        ...

    def answers(self, *, late: bool = False) -> int | None:
        """Wait for what was sent. The number of the call whose statement failed, from 0; None: none did.

        The error itself is unknown to the function, which may want to do something about it: undo, and call it again
        as `checked`, after those before it. What is the world's fault is raised.
        `late`: do not wait now. If a statement fails, then whatever waits next raises LateError, at last the commit.
        """
        ...

    @property
    def calls(self) -> int:
        """How many calls were made of what `pipelined` gave last: the number of the next one."""
        ...

    def takes_back(self, error: BaseException) -> bool:
        """The last call raised: is nothing of it left, so that there is nothing to undo?"""
        ...

    @property
    def is_careful(self) -> bool:
        """May a statement of a user's end the transaction? Then what runs it is to be `checked`."""
        ...

    @property
    def lend(self) -> Callable[[], None] | None:
        """Call it if what follows is asked for by a program, which cannot be called again; None: that is the same."""
        ...

    @property
    def server(self) -> float | None:
        """When the server was started that this transaction is on; None: there is none."""
        ...

    @property
    def points(self) -> Points:
        """The savepoints of the function that runs."""
        ...

    def savepoint(self) -> None: ...
    def keep(self) -> None: ...
    def undo(self) -> None: ...


class Stage(Protocol):
    """Where a rehearsal runs: transactions that are rolled back, however they end."""

    def acting(self) -> AbstractContextManager[StoreTx]:
        """Begin for writing; leaving the block rolls back."""
        ...

    def watch(self) -> None:
        """Count from here on what is written to the user's tables in this transaction."""
        ...

    def notice(self) -> None:
        """A function has run: watch the tables that it made, too."""
        ...

    def touched(self) -> dict[str, Counts]:
        """What was written so far, by table; what was undone does not count."""
        ...

    @property
    def has_ended(self) -> bool:
        """Has a function made the database end the transaction?"""
        ...

    def is_the_world(self, error: BaseException) -> bool:
        """Is an error about the disk, the lock, the connection?"""
        ...


class Migration(Protocol):
    """The storage format of a store: what it is, what it should be, and how to get there."""

    present: int  # 0: there is no store
    newest: int

    def check(self) -> None:
        """Refuse a format that is too new for this version to work with."""
        ...

    def sql(self) -> str:
        """The statements of the steps that are missing, for somebody who runs them by hand."""
        ...

    def run(self) -> Iterator[int]:
        """Take the steps that are missing; each is whole or not taken."""
        ...


class Bell(Protocol):
    """Somebody who hears of the commits of others."""

    def tell(self, ring: Callable[[], None] | None) -> None:
        """Ring, from any thread, when there is news, and at once if there is some already; None: no more."""
        ...


class Store(Protocol):
    """A database that holds logs, progress, letters, state and the user's tables."""

    url: str
    news: News  # what `changed` need not tell
    can_hold: bool  # has a transaction somebody who holds statements?
    written: (
        str | None
    )  # a file that whoever commits writes to: a change of it is a reason to look; None: there is none

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[StoreTx]:
        """Begin for writing; `durable=False` may be lost by a power cut, as a whole and in order."""
        ...

    def reading(self, *, snapshot: bool = True) -> AbstractContextManager[StoreTx]:
        """For reading: one moment, or where that costs something and is not needed, what each statement finds."""
        ...

    @property
    def stage(self) -> AbstractContextManager[Stage]:
        """A place to rehearse."""
        ...

    def append(self, appending: Appending, *, here: bool = False) -> None:
        """Append durably; the appending's `done(rows, error)` is called when it is committed.

        `here`: the caller does nothing until then, so that it may happen in its own thread.
        """
        ...

    def append_into(self, given: Any, log: str, events: Sequence[NewEvent]) -> list[Row]:
        """Append in a transaction of the user's own, which this store did not begin, or refuse."""
        ...

    def inside_transaction(self) -> bool:
        """Does this thread hold the store's transaction?"""
        ...

    def is_the_world(self, error: BaseException) -> bool:
        """Is an error about the disk, the lock, the connection, rather than about a statement?"""
        ...

    def sync(self) -> None:
        """Make everything committed so far survive a power cut."""
        ...

    def changed(self) -> bool:
        """Has another connection committed since the last call? Cheap: asked every millisecond under load."""
        ...

    @property
    def bell(self) -> Bell | None:
        """Who tells when another connection has committed; None: nobody, and it has to be asked."""
        ...

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None], *, here: bool = False
    ) -> None:
        """Run a job where writing happens, one at a time and in order; `done(result, error)` is called from there.

        `here`: that may be the caller's thread, if nobody is before it.
        """
        ...

    @property
    def lookout(self) -> Lookout | None:
        """Who reads something before it is wanted; None: nobody may."""
        ...

    @property
    def is_wanted(self) -> bool:
        """Does anybody else wait to write here? A job that could go on asks, and makes room."""
        ...

    def close(self) -> None:
        """Finish what was submitted and let go of the file."""
        ...
