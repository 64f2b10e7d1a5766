"""Statements sent one after the other without waiting for their answers.

This is libpq's pipeline mode, below psycopg's own, which makes a cursor for each statement and thereby costs more than
the server takes to run it. Only statements that return no rows are sent this way. Whoever uses the connection by
other means waits for the answers first (`Connection.wait`), so that the order is that of the calls. An error is told
late, but with the number of the call that made the statement; until then nothing of it is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import pq, waiting
from psycopg.adapt import PyFormat, Transformer

from redrive.store.postgres.connection import Connection, RawNoting, is_the_world, note

UNANSWERED_MAX = 64  # a batch that is late stops, and what is under way by then is not waited for much longer
UNANSWERED_MIN = 16  # after a failure: what was sent behind it was in vain, and where one fails others will
FLUSH_EVERY = 16  # statements per write to the socket; the server shall begin early, but a write costs as much as one
KNOWN_MAX = 200  # statements kept prepared; a program has fewer, unless it glues values into them

_GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_GONE = "26000"  # the plan that we believe the server keeps: somebody has told it to forget them all

Key = tuple[str, tuple[int, ...]]
Answers = Generator[waiting.Wait, waiting.Ready | int, None]


class Sent:
    """A statement under way, as a cursor: who asks for something waits for the answer."""

    __slots__ = ("_pipe", "_real", "call", "key", "result")

    def __init__(self, pipe: Pipe, call: int, key: Key | None = None) -> None:
        """`key`: what is to get its name by this."""
        self._pipe, self.call, self.key = pipe, call, key
        self.result: Any = None
        self._real: Any = None

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        count: int | None = self._answer().command_tuples
        return -1 if count is None else count

    @property
    def statusmessage(self) -> str:
        """What the server says it did."""
        status: bytes = self._answer().command_status or b""
        return status.decode()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__getattr__("fetchall")())

    def __enter__(self) -> Sent:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to let go of."""

    def __getattr__(self, name: str) -> Any:
        """Whatever else a cursor has, as of one whose statement returned no rows."""
        if self._real is None:
            self._answer()
            self._real = RawNoting(self._pipe.connection)
        return getattr(self._real, name)

    def _answer(self) -> Any:
        if self.result is None:
            self._pipe.drain()
        if self.result is None or self.result.status not in _GOOD:
            raise self._pipe.error
        return self.result


class Pipe:
    """What is under way on one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_open = False  # the connection is in pipeline mode
        self.calls = -1  # of a function, this one included, less one
        self.failed: Sent | None = None  # the first that failed since `begin`
        self.error: BaseException = psycopg.InterfaceError("there is no answer")
        self._unanswered: deque[Sent] = deque()
        self._most = UNANSWERED_MAX
        self._known: dict[Key, bytes | None] = {}  # by statement and types; None: seen once
        self._named = 0
        self.begin()

    def begin(self) -> None:
        """From here on calls are counted and answers may be late."""
        self.calls, self.failed = -1, None
        self._transformer = Transformer(self.connection)

    # ------------------------------------------------------------ sending

    def send(self, text: str, values: Sequence[Any]) -> Sent | None:
        """Send a statement that returns no rows; None: somebody else has put the connection into pipeline mode."""
        if not self._enter():
            return None
        if self.failed is not None:
            raise psycopg.errors.PipelineAborted("a statement before this one failed")
        try:
            return self._send(text, values)
        except psycopg.Error as error:
            note(self.connection, error)
            raise

    def control(self, text: str, call: int = -1) -> None:
        """Send a statement of our own that has no parameters, and is no call's fault."""
        if not self._enter():
            psycopg.Cursor(self.connection).execute(text.encode())
            return
        self.connection.pgconn.send_query_params(text.encode(), None)
        self._unanswered.append(Sent(self, call))

    def _send(self, text: str, values: Sequence[Any]) -> Sent:
        pgconn, transformer = self.connection.pgconn, self._transformer
        dumped = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
        types = (transformer.types or ()) if values else ()
        formats = transformer.formats if values else None
        key = (text, types)
        name = self._known.get(key)
        if name is None:
            name = self._learn(key)
        sent = Sent(self, self.calls)
        if name is None:
            pgconn.send_query_params(text.encode(), dumped, types, formats)
        else:
            pgconn.send_query_prepared(name, dumped, formats)
        self._unanswered.append(sent)
        if len(self._unanswered) >= self._most:
            pgconn.send_flush_request()
            self._wait(self._most // 2)
            self._most = min(self._most + 1, UNANSWERED_MAX)
        elif not len(self._unanswered) % FLUSH_EVERY:
            pgconn.flush()
        return sent

    def _learn(self, key: Key) -> bytes | None:
        """A statement that is used again gets a name, and the server keeps its plan."""
        pgconn = self.connection.pgconn
        if key not in self._known:
            if len(self._known) >= KNOWN_MAX:
                former = self._known.pop(next(iter(self._known)))
                if former is not None:
                    self.control(f"DEALLOCATE {former.decode()}", self.calls)
            self._known[key] = None
            return None
        self._named += 1
        name = self._known[key] = b"redrive_%d" % self._named
        pgconn.send_prepare(name, key[0].encode(), key[1])
        self._unanswered.append(Sent(self, self.calls, key))
        return name

    def _enter(self) -> bool:
        if not self.is_open:
            pgconn = self.connection.pgconn
            if pgconn.pipeline_status != pq.PipelineStatus.OFF:
                return False
            pgconn.enter_pipeline_mode()
            self.is_open = True
        return True

    # ------------------------------------------------------------ answers

    def drain(self) -> None:
        """Wait for all answers; then the connection is psycopg's again. Raises what is not a statement's fault."""
        if not self.is_open:
            return
        pgconn, known = self.connection.pgconn, self.failed
        try:
            if self._unanswered:
                pgconn.pipeline_sync()
                self._unanswered.append(Sent(self, self.calls))
                self._wait(0)
            pgconn.exit_pipeline_mode()
        finally:
            self.is_open = False
        if self.failed is not known:
            self.raise_if_the_world()

    def raise_if_the_world(self) -> None:
        """Is it no call's fault that a statement failed?"""
        if self.failed is not None and (self.failed.call < 0 or is_the_world(self.error)):
            raise self.error

    def _wait(self, left: int) -> None:
        """Until so many answers are missing. Who was interrupted cannot know which are still to come."""
        try:
            psycopg.Connection.wait(self.connection, self._receive(left))
        except BaseException as error:
            note(self.connection, error)
            self.connection.close()
            self._unanswered.clear()
            self.is_open = False
            raise

    def _receive(self, left: int) -> Answers:
        """Read answers until so many are missing; the answer to a sync counts as one."""
        pgconn, unanswered = self.connection.pgconn, self._unanswered
        while pgconn.flush():
            if (yield waiting.Wait.RW) & waiting.Ready.R:
                pgconn.consume_input()
        while len(unanswered) > left:
            while pgconn.is_busy():
                yield waiting.Wait.R
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is not None:
                sent = unanswered.popleft()
                sent.result = result
                if result.status not in _GOOD and result.status != pq.ExecStatus.PIPELINE_SYNC:
                    self._fail(sent, result)
            elif pgconn.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError(pgconn.get_error_message())

    def _fail(self, sent: Sent, result: Any) -> None:
        """The first failure counts; what follows it was not run."""
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        if self.failed is None:
            self._most = UNANSWERED_MIN
            self.failed, self.error = sent, psycopg.errors.error_from_result(result)
            if not code:  # not from the server: the connection itself
                self.error = psycopg.OperationalError(result.get_error_message())
            note(self.connection, self.error)
        if code == _GONE:
            self._known.clear()
        elif sent.key is not None:
            self._known.pop(sent.key, None)
