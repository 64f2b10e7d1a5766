"""Statements that are held until the call that made them has ended: one that fails has then done nothing.

A savepoint before every few calls costs more than the calls where some of them fail: SQLite copies each page that they
touch, and those before a failure are made again. So where events failed lately, what a function asks for is kept here,
and run in the order of the calls, many alike at once. Who looks at a result makes everything so far run.

Nothing is concluded from a call before its statements have run. If one of them fails, the function has not heard of it
where it happened, and may have done something else than it would have: all is to be run again, without holding.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from redrive.store.port import Function
from redrive.store.sqlite.connection import Connection, is_the_world

HELD_MAX = 64  # statements of calls that have ended: a batch that is late stops soon, and more would gain nothing
CALL_MAX = 1_000  # statements of one call: they are all in memory

_SQL, _PARAMETERS = attrgetter("sql"), attrgetter("parameters")
NOTHING, A_LOOK, ANYTHING = range(3)  # what may have been run of a call: a look leaves nothing behind
_MANY = ("INSERT", "UPDATE", "DELETE", "REPLACE")  # what sqlite3 takes for many rows at once
_PLAIN = frozenset({str, int, float, bytes, bool, type(None)}).issuperset  # values that nobody can change afterwards
_KINDS = frozenset({tuple, list, dict})
# What a statement raises: SQLite, or sqlite3 about its text or its values.
_ERRORS = (sqlite3.Error, sqlite3.Warning, TypeError, ValueError, OverflowError)


class Held(msgspec.Struct, eq=False, gc=False):
    """A statement that waits, as a cursor: who asks for anything makes it run."""

    sql: str
    parameters: Any
    hold: Hold
    cursor: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ran(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ran(), name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ran())

    def __next__(self) -> Any:
        return next(self._ran())

    def _ran(self) -> Any:
        if self.cursor is None:
            self.hold.look(self)
        return self.cursor


class Hold:
    """What is held on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: list[Held] = []
        self._begin = 0  # where the statements of the call that is under way begin
        self._calls = 0
        self._ran = NOTHING  # of this call
        self._put_off: list[Held] | None = None  # what the last call asked for, which raised; see `put_off`
        self._failed: int | None = None  # by when a statement has failed: what was concluded since is void
        self._error: BaseException = sqlite3.ProgrammingError("this statement was never run")
        self.is_undone = False  # the last call failed, and nothing of it is left

    def __bool__(self) -> bool:
        """Is there anything that waits?"""
        return bool(self._held)

    def drop(self) -> None:
        """What was asked for is not to be done: a savepoint is undone that was made before."""
        self._held = []
        self._begin = 0

    def forget(self) -> None:
        """The transaction is rolled back."""
        self.drop()
        self._failed, self._put_off, self.is_undone = None, None, False

    # ------------------------------------------------------------ what a function is handed

    @property
    def connection(self) -> Connection:
        """The raw one, for whatever is not known here."""
        self._touch()
        return self._connection

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Hold a statement."""
        kind = type(parameters)
        if kind is tuple and _PLAIN(map(type, parameters)) and len(self._held) < CALL_MAX:  # as nearly always
            held = Held(sql, parameters, self)
            self._held.append(held)
            return held
        if kind is dict or kind is list:  # which the function may change afterwards
            parameters = parameters.copy()
        values = parameters.values() if kind is dict else parameters
        if kind in _KINDS and _PLAIN(map(type, values)) and len(self._held) < CALL_MAX:
            held = Held(sql, parameters, self)
            self._held.append(held)
            return held
        self._touch()
        return self._connection.execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Any:
        """Not held: nobody knows what the rows are made of."""
        self._touch()
        return self._connection.executemany(sql, rows)

    def look(self, held: Held) -> None:
        """Somebody asks what came of a statement."""
        mine = self._held[self._begin :]
        if not any(one is held for one in mine):  # of a call that has ended: only without holding this can be told
            self._fail(sqlite3.ProgrammingError("this cursor belongs to a call that has ended"))
            raise self._error
        is_only_a_look = self._ran != ANYTHING and len(mine) == 1 and held.sql.lstrip()[:6].upper() == "SELECT"
        self._touch()
        if is_only_a_look:
            self._ran = A_LOOK

    def _touch(self) -> None:
        """What follows is done at once, behind everything that was held. It cannot be taken back."""
        self._ran = ANYTHING
        self.run()
        if self._failed is not None:
            raise self._error

    # ------------------------------------------------------------ calls

    def holding(self, function: Function, puts_off: Callable[[BaseException], bool] | None = None) -> Function:
        """A function whose statements are held."""

        def call(subject: Any, tx: Any) -> None:
            # Done for every event: what is held when a call begins is what was held when the one before it had ended.
            self._calls += 1
            self._ran = NOTHING
            try:
                function(subject, tx)
            except BaseException as error:
                self.is_undone = False
                if self._ran == NOTHING and puts_off is not None and puts_off(error):
                    self._put_off, self.is_undone = self._held[self._begin :], True
                    del self._held[self._begin :]
                else:
                    self._take_back()
                raise
            self._begin = count = len(self._held)
            if count >= HELD_MAX:
                self.run()
            if self._failed is not None:
                raise self._error

        return call

    def _take_back(self) -> None:
        """The call has failed. Its statements are run all the same, and undone: one of them may have failed before."""
        mine = self._held[self._begin :]
        del self._held[self._begin :]
        if self._ran == ANYTHING:
            return
        self.run()
        if mine and self._failed is None:
            self._connection.execute("SAVEPOINT redrive_call")
            self._run(mine)
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO redrive_call")
                self._connection.execute("RELEASE redrive_call")
        self.is_undone = self._failed is None

    def put_off(self) -> list[Held] | None:
        """What the last call asked for, if it raised and that was put off; once."""
        asked, self._put_off = self._put_off, None
        return asked

    def goes_well(self, asked: Sequence[Held]) -> bool:
        """Would these statements go well now? Nothing of them is left."""
        if not asked:
            return True
        self._connection.execute("SAVEPOINT redrive_call")
        try:
            for one in asked:
                self._connection.execute(one.sql, one.parameters)
        except _ERRORS as error:
            if not self._is_its_own(error):
                raise
            return False
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO redrive_call")
                self._connection.execute("RELEASE redrive_call")
        return True

    def repeats(self, call: Callable[[], BaseException | None], asked: Sequence[Held]) -> BaseException | None:
        """What a call raises that asks for the same statements and for nothing else; none of them is run."""
        assert not self._held
        self._calls += 1
        self._begin, self._ran = 0, NOTHING
        error = call()
        mine, is_held = self._held, self._ran == NOTHING
        self.forget()
        same = is_held and len(mine) == len(asked) and all(map(_is_same, mine, asked))
        return error if same else None

    def answers(self) -> int | None:
        """Run what is held. A call by which a statement has failed, if one has; what is no call's fault is raised."""
        self.run()
        self.is_undone = False
        if self._failed is not None and not self._is_its_own(self._error):
            raise self._error
        return self._failed

    def _is_its_own(self, error: BaseException) -> bool:
        return isinstance(error, _ERRORS) and not is_the_world(error) and self._connection.in_transaction

    # ------------------------------------------------------------ running

    def run(self) -> None:
        """Run what is held. Nothing runs behind what fails."""
        held, ended = self._held, self._begin
        if held:
            self._held, self._begin = [], 0
            self._run(held[:ended], many=True)
            self._run(held[ended:])

    def _run(self, held: list[Held], *, many: bool = False) -> None:
        """Run statements; `many`: nobody looks at them any more, and those that are alike may share a cursor."""
        if self._failed is not None:
            return
        try:
            for sql, alike in groupby(held, _SQL):
                if many and _takes_many(sql):
                    self._connection.executemany(sql, map(_PARAMETERS, alike))
                else:
                    self._run_each(alike)
        except _ERRORS as error:
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise

    def _run_each(self, held: Iterable[Held]) -> None:
        for one in held:
            force_setattr(one, "cursor", self._connection.execute(one.sql, one.parameters))

    def _fail(self, error: BaseException) -> None:
        if self._failed is None:
            self._failed, self._error = self._calls, error


def _is_same(one: Held, other: Held) -> bool:
    """The same statement for the same values, of the same types: 1, 1.0 and True are equal, and not the same."""
    values, others = _values(one), _values(other)
    return one.sql == other.sql and values == others and [*map(type, values)] == [*map(type, others)]


def _values(held: Held) -> list[Any]:
    parameters = held.parameters
    return [*parameters, *parameters.values()] if type(parameters) is dict else [*parameters]


@lru_cache(256)
def _takes_many(sql: str) -> bool:
    """Can it be run for many parameters by one cursor? Not if it begins with something else, or returns rows."""
    text = sql.upper()
    return text.lstrip().startswith(_MANY) and "RETURNING" not in text
