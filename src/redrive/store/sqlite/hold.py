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

from redrive.context import Tx
from redrive.store.points import CALL
from redrive.store.sqlite.connection import Connection, is_the_world

HELD_MAX = 128  # statements of calls that have ended: a batch that is late stops soon, and more would gain nothing
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
    event: Any  # whose call asked for it
    cursor: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ran(), name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ran())

    def __next__(self) -> Any:
        return next(self._ran())

    def _ran(self) -> Any:
        if self.cursor is None:
            self.hold._look(self)
        return self.cursor


def _of_cursor(name: str) -> Any:
    return property(lambda held: getattr(held._ran(), name))


# Name by name: a class with `__getattr__` is slow to be asked for what it has, and each statement is asked by us.
for _name in filter(lambda name: not name.startswith("_"), dir(sqlite3.Cursor)):
    setattr(Held, _name, _of_cursor(_name))
Held.__name__ = "sqlite3.Cursor"  # as it is called in the error about a name that no cursor has


class _Nobody:
    """No call is under way whose statements are held. Whoever kept the tx of one writes to the connection itself."""

    event = None


_NOBODY = _Nobody()


class Hold:
    """What is held on one connection. Nothing is done where a call begins or ends: its statements name their event."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: list[Held] = []
        self._room = 0  # with so many of them it is time to run those of calls that have ended
        self._user: Any = _NOBODY  # names the event of the call that is under way
        self._puts_off: Callable[[BaseException], bool] | None = None
        self._ran, self._ran_for = NOTHING, None  # what may have been run of a call, and for which event
        self._is_trial = False  # nothing of it is to be left
        self._put_off: list[Held] | None = None  # what the last call asked for, which raised; see `put_off`
        self._has_failed = False  # a statement has: what was concluded since is void
        self._error: BaseException = sqlite3.ProgrammingError("this statement was never run")

    def __bool__(self) -> bool:
        """Is there anything that waits?"""
        return bool(self._held)

    def drop(self) -> None:
        """What was asked for is not to be done: a savepoint is undone that was made before."""
        self._held = []

    def begin(
        self, user: Tx, puts_off: Callable[[BaseException], bool] | None = None, *, is_trial: bool = False
    ) -> None:
        """Calls follow that are handed this; of a trial that runs anything nothing is left."""
        assert not self._held
        self._user, self._puts_off, self._is_trial = user, puts_off, is_trial
        self._ran_for, self._room = None, _room(0)

    def forget(self) -> None:
        """There are no more such calls, or the transaction is rolled back."""
        self._held, self._user, self._room, self._has_failed, self._is_trial = [], _NOBODY, 0, False, False
        self._puts_off = self._put_off = self._ran_for = None

    # ------------------------------------------------------------ what a function is handed

    @property
    def connection(self) -> Connection:
        """The raw one, for whatever is not known here."""
        self._touch()
        return self._connection

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Hold a statement."""
        kind, held = type(parameters), self._held
        if kind is tuple and len(held) < self._room and _PLAIN(map(type, parameters)):  # as nearly always
            one = Held(sql, parameters, self, self._user.event)
            held.append(one)
            return one
        if kind is dict or kind is list:  # which the function may change afterwards
            parameters = parameters.copy()
        values = parameters.values() if kind is dict else parameters
        if kind in _KINDS and _PLAIN(map(type, values)) and self._has_room():
            one = Held(sql, parameters, self, self._user.event)
            self._held.append(one)
            return one
        self._touch()
        return self._connection.execute(sql, parameters)

    def _has_room(self) -> bool:
        """Can one more be held? What ended calls asked for is run for it."""
        if self._user is _NOBODY:
            return False
        if len(self._held) >= self._room:
            ended, mine = self._parts()
            self._held, self._room = mine, _room(len(mine))
            self._run(ended, many=True)
            if self._has_failed:
                raise self._error
        return len(self._held) < CALL_MAX

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Any:
        """Not held: nobody knows what the rows are made of."""
        self._touch()
        return self._connection.executemany(sql, rows)

    def _look(self, held: Held) -> None:
        """Somebody asks what came of a statement."""
        _, mine = self._parts()
        if not any(one is held for one in mine):  # of a call that has ended: only without holding this can be told
            error = sqlite3.ProgrammingError("this cursor belongs to a call that has ended")
            if self._user is not _NOBODY:  # else nothing is held: whoever asks now has kept it for too long
                self._fail(error)
            raise error
        is_only_a_look = self._has_run() != ANYTHING and len(mine) == 1 and held.sql.lstrip()[:6].upper() == "SELECT"
        self._touch()
        if is_only_a_look:
            self._ran = A_LOOK

    def _touch(self) -> None:
        """What follows is done at once, behind everything that was held. It cannot be taken back."""
        if self._is_trial and self._ran_for is None:
            self._connection.execute(f"SAVEPOINT {CALL}")
        self._ran, self._ran_for = ANYTHING, self._user.event
        self.run()
        if self._has_failed:
            raise self._error

    # ------------------------------------------------------------ calls

    def _parts(self) -> tuple[list[Held], list[Held]]:
        """What calls that have ended asked for, and the one that is under way."""
        held, event = self._held, self._user.event
        at = len(held)
        while at and held[at - 1].event is event:
            at -= 1
        return held[:at], held[at:]

    def _has_run(self) -> int:
        """What may have been run of the call that is under way."""
        return self._ran if self._ran_for is self._user.event else NOTHING

    def takes_back(self, error: BaseException) -> bool:
        """The call has failed: is nothing left of it?

        Its statements are run all the same, and undone: one of them may have failed before. Unless that is put off.
        """
        if self._user is _NOBODY:
            return False
        (self._held, mine), ran = self._parts(), self._has_run()
        self._ran_for = None
        if ran == ANYTHING:  # all of it will be undone; but had one of the rest failed, it would not have come to this
            self._run(mine)
        if ran == ANYTHING or self._has_failed:
            return False
        if ran == NOTHING and self._puts_off is not None and self._puts_off(error):
            self._put_off = mine
            return True
        self.run()
        if mine and not self._has_failed:
            self._connection.execute(f"SAVEPOINT {CALL}")
            self._run(mine)
            if self._connection.in_transaction:
                self._connection.execute(f"ROLLBACK TO {CALL}")
                self._connection.execute(f"RELEASE {CALL}")
        return not self._has_failed

    def put_off(self) -> list[Held] | None:
        """What the last call asked for, if it raised and that was put off; once."""
        asked, self._put_off = self._put_off, None
        return asked

    def goes_well(self, asked: Sequence[Held]) -> bool:
        """Would these statements go well now? Nothing of them is left."""
        if not asked:
            return True
        self._connection.execute(f"SAVEPOINT {CALL}")
        try:
            for one in asked:
                self._connection.execute(one.sql, one.parameters)
        except _ERRORS as error:
            if not self._is_its_own(error):
                raise
            return False
        finally:
            if self._connection.in_transaction:
                self._connection.execute(f"ROLLBACK TO {CALL}")
                self._connection.execute(f"RELEASE {CALL}")
        return True

    def has_repeated(self, asked: Sequence[Held]) -> bool:
        """Did the trial ask for the same statements and for nothing else? Then none of them was run."""
        mine, has_run, has_failed = self._held, self._ran_for is not None, self._has_failed
        if has_run and self._connection.in_transaction:
            self._connection.execute(f"ROLLBACK TO {CALL}")
            self._connection.execute(f"RELEASE {CALL}")
        self.forget()
        if has_run or has_failed or len(mine) != len(asked):
            return False
        return all(map(_is_same, mine, asked))

    def answers(self) -> int | None:
        """Run what is held. Some call, if a statement has failed; what is no call's fault is raised."""
        self.run()
        if not self._has_failed:
            return None
        if not self._is_its_own(self._error):
            raise self._error
        return 0

    def _is_its_own(self, error: BaseException) -> bool:
        return isinstance(error, _ERRORS) and not is_the_world(error) and self._connection.in_transaction

    # ------------------------------------------------------------ running

    def run(self) -> None:
        """Run what is held. Nothing runs behind what fails."""
        if self._held:
            ended, mine = self._parts()
            self._held, self._room = [], _room(0)
            self._run(ended, many=True)
            self._run(mine)

    def _run(self, held: list[Held], *, many: bool = False) -> None:
        """Run statements; `many`: nobody looks at them any more, and those that are alike may share a cursor."""
        if self._has_failed:
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
        if not self._has_failed:
            self._has_failed, self._error = True, error


def _room(mine: int) -> int:
    return min(mine + HELD_MAX, CALL_MAX)


def _is_same(one: Held, other: Held) -> bool:
    """The same statement for the same values, of the same types: 1, 1.0 and True are equal, and not the same."""
    values, others = one.parameters, other.parameters
    if one.sql != other.sql or type(values) is not type(others) or values != others:
        return False
    if type(values) is dict:  # names, in their order, and values
        return _types(values) == _types(others) and _types(values.values()) == _types(others.values())
    return _types(values) == _types(others)


def _types(values: Iterable[Any]) -> list[type]:
    return [*map(type, values)]


@lru_cache(256)
def _takes_many(sql: str) -> bool:
    """Can it be run for many parameters by one cursor? Not if it begins with something else, or returns rows."""
    text = sql.upper()
    return text.lstrip().startswith(_MANY) and "RETURNING" not in text
