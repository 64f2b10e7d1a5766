"""Statements sent one after the other without waiting for their answers.

This is libpq's pipeline mode, below psycopg's own, which makes a cursor for each statement and thereby costs more than
the server takes to run it. Of a function's statements those are sent this way that return no rows; of our own, all.
Whoever uses the connection by other means waits for the answers first (`Connection.wait`), so that the order is that of
the calls. An error is told late, but with the number of the call that made the statement; nothing of it is committed:
after an error the server passes over whatever was sent with it, a COMMIT too.

What a call asks for is held until it ends, unless it wants an answer: if it fails by then, its statements are sent
behind a savepoint and undone, and what the calls before it did need not be done again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import pq, waiting
from psycopg.adapt import PyFormat, Transformer

from redrive.store.points import CALL
from redrive.store.port import LateError
from redrive.store.postgres.connection import Connection, RawNoting, Unbegun, is_the_world, note

UNANSWERED_MAX = 64  # a batch that is late stops, and what is under way by then is not waited for much longer
FLUSH_EVERY = 16  # statements per write to the socket; the server shall begin early, but a write costs as much as one
WARY_AFTER_FAILURE = 5_000  # statements: what is sent behind one that fails is in vain, and where one fails others will
KNOWN_MAX = 200  # statements kept prepared; a program has fewer, unless it glues values into them

_GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_GONE = "26000"  # the plan that we believe the server keeps: somebody has told it to forget them all
_REFUSED = "22012"  # a division by zero: how our own statements say that no row was what it should be
OURS = -1  # the call of a statement that is no call's

TEXT, BINARY = int(pq.Format.TEXT), int(pq.Format.BINARY)

Key = tuple[str, tuple[int, ...]]
Bound = tuple[Sequence[Any], Sequence[int] | None]  # the values of a statement as they are sent, and their formats
Answers = Generator[waiting.Wait, waiting.Ready | int, None]


class Sent:
    """A statement under way, as a cursor: who asks for something waits for the answer."""

    __slots__ = ("_pipe", "_real", "bound", "call", "format", "key", "otherwise", "result")

    def __init__(self, pipe: Pipe, call: int, key: Key | None = None, bound: Bound | None = None) -> None:
        """`key`: the statement, or without values what is to get its name by this."""
        self._pipe, self.call, self.key, self.bound = pipe, call, key, bound
        self.format = TEXT
        self.otherwise: BaseException | None = None  # what is wrong if the server divides by zero
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
        self.calls = 0  # of a function, this one included
        self.failed: Sent | None = None  # the first that failed since `begin`
        self.take: Callable[[str, Sequence[Any]], Sent | None] | None = None  # the statements of the function that runs
        self.is_undone = False  # the last call failed, and nothing of it is left
        self.is_trusting = False  # nobody has asked yet whether all went well: who finds that it did not says so
        self._is_held = True  # nothing of this call was sent yet
        self._held: list[Sent] = []
        self.error: BaseException = psycopg.InterfaceError("there is no answer")
        self._unanswered: deque[Sent] = deque()
        self._beginning: list[Sent] = []  # what begins the transaction, not answered yet
        self._is_outside = False  # there was no transaction when the first of these was sent
        self._unflushed = self._wary = 0
        self.known: dict[Key, bytes | None] = {}  # what the server keeps, by statement and types; None: seen once
        self._is_forgetful = False  # the server lost a plan in this transaction: nothing more is named
        self._named = 0
        self.begin()

    def begin(self) -> None:
        """From here on calls are counted and answers may be late."""
        self.calls, self.failed, self.is_trusting = 0, None, False
        self._held.clear()
        self._transformer = Transformer(self.connection)

    # ------------------------------------------------------------ calls

    def begin_call(self) -> None:
        """A function is called: what it asks for is held until it ends."""
        self.calls += 1
        self.take, self._is_held, self.is_undone = self._hold, True, False

    def end_call(self) -> None:
        """It went well, as far as is known."""
        self.take = None
        self._post()

    def take_back(self) -> None:
        """It has failed. The server still says what it thinks of its statements: one of them may have failed before."""
        self.take = None
        self.is_undone = self._is_held and self.failed is None
        if self._held and self.is_undone:
            self.control(f"SAVEPOINT {CALL}")
            self._post()
            self.control(f"ROLLBACK TO {CALL}")
            self.control(f"RELEASE {CALL}")
        else:
            self._post()

    def forget(self) -> None:
        """The transaction is over."""
        self.take = self.failed = None
        self._is_forgetful = self.is_trusting = False
        self.calls = 0
        self._held.clear()

    def begin_asking(self) -> None:
        """A function is called that is to hear of an error where it happens."""
        self.calls += 1
        self.take, self.is_undone = self._ask, False
        self._transformer = Transformer(self.connection)

    def _hold(self, text: str, values: Sequence[Any]) -> Sent | None:
        """Take a statement that returns no rows; None: somebody else has put the connection into pipeline mode."""
        if not self._enter():
            self._is_held = False
            return None
        if self.failed is not None:
            raise psycopg.errors.PipelineAborted("a statement before this one failed")
        sent = self._bind(text, values)
        self._held.append(sent)
        if len(self._held) >= UNANSWERED_MAX:
            self._is_held = False
            self._post()
        return sent

    def _ask(self, text: str, values: Sequence[Any]) -> Sent | None:
        """Take one and wait for its answer, and thereby for that of what was sent before it."""
        if not self._enter():
            return None
        sent = self._bind(text, values)
        self._held.append(sent)
        self.drain()
        if self.failed is not None:
            self.failed = None  # it is told
            raise self.error
        return sent

    def _bind(self, text: str, values: Sequence[Any]) -> Sent:
        transformer = self._transformer
        try:
            dumped = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
        except psycopg.Error as error:
            note(self.connection, error)
            raise
        types, formats = ((transformer.types or ()), transformer.formats) if values else ((), None)
        return Sent(self, self.calls - 1, (text, types), (dumped, formats))

    def _post(self) -> None:
        """Send what is held."""
        held = self._held
        if not held:
            return
        try:
            for sent in held:
                if self.failed is None:
                    self._send(sent)
        except psycopg.Error as error:
            note(self.connection, error)
            raise
        finally:
            held.clear()

    # ------------------------------------------------------------ sending

    def control(self, text: str, call: int = OURS) -> Sent | None:
        """Send a statement of our own that has no parameters, and is no call's fault."""
        if not self._enter():
            psycopg.Cursor(self.connection).execute(text.encode())
            return None
        self.connection.pgconn.send_query_params(text.encode(), None)
        sent = Sent(self, call)
        self._unanswered.append(sent)
        return sent

    def put(self, key: Key, bound: Bound, otherwise: BaseException | None = None) -> Sent | None:
        """Send a statement of our own, behind what was asked for before; None: another's pipeline is in the way."""
        self._is_held = False
        if not self._enter():
            return None
        self._post()
        sent = Sent(self, OURS, key, bound)
        sent.format, sent.otherwise = BINARY, otherwise
        self._send(sent)
        return sent

    def answer(self, sent: Sent) -> Any:
        """What the server says to a statement of our own."""
        if sent.result is None:
            self.drain()
        if sent.result is None or sent.result.status not in _GOOD:
            raise self.error if self.failed is sent else psycopg.errors.InFailedSqlTransaction("not run: one failed")
        return sent.result

    def _send(self, sent: Sent) -> None:
        assert sent.key is not None and sent.bound is not None
        pgconn, key, (values, formats) = self.connection.pgconn, sent.key, sent.bound
        name = self.known.get(key)
        if name is None:
            name = self._learn(key)
        if name is None:
            pgconn.send_query_params(key[0].encode(), values, key[1], formats, sent.format)
        else:
            pgconn.send_query_prepared(name, values, formats, sent.format)
        self._unanswered.append(sent)
        self._unflushed += 1
        if len(self._unanswered) >= UNANSWERED_MAX:
            pgconn.send_flush_request()
            self._wait(UNANSWERED_MAX // 2)
        elif self._unflushed >= FLUSH_EVERY:
            self._flush()

    def _flush(self) -> None:
        """Let the server begin. Where failures are likely, see whether it has met one, without waiting."""
        pgconn = self.connection.pgconn
        if self._wary <= 0:
            self._unflushed = 0
            pgconn.flush()
            return
        self._wary -= FLUSH_EVERY
        pgconn.send_flush_request()
        self._receive(self._answered())

    def _learn(self, key: Key) -> bytes | None:
        """A statement that is used again gets a name, and the server keeps its plan."""
        pgconn = self.connection.pgconn
        if self._is_forgetful or self.connection.prepare_threshold is None:
            return None
        if key not in self.known:
            if len(self.known) >= KNOWN_MAX:
                former = self.known.pop(next(iter(self.known)))
                if former is not None:
                    self.control(f"DEALLOCATE {former.decode()}", self.calls - 1)
            self.known[key] = None
            return None
        self._named += 1
        name = self.known[key] = b"redrive_%d" % self._named
        pgconn.send_prepare(name, key[0].encode(), key[1])
        self._unanswered.append(Sent(self, self.calls - 1, key))
        return name

    def _enter(self) -> bool:
        if not self.is_open:
            pgconn = self.connection.pgconn
            if pgconn.pipeline_status != pq.PipelineStatus.OFF:
                return False
            begin, self.connection.unsaid = self.connection.unsaid, ""
            self._is_outside = not begin and self.connection.status == pq.TransactionStatus.IDLE
            try:
                pgconn.enter_pipeline_mode()
                self.is_open = True
                for part in filter(None, begin.split("; ")):
                    self._begins(part)
            except psycopg.Error as error:
                self._lost(error, is_beginning=bool(begin))
                raise
        return True

    def _begins(self, part: str) -> None:
        sent = self.control(part)
        assert sent is not None
        self._beginning.append(sent)

    # ------------------------------------------------------------ answers

    def drain(self, *, is_over: bool = False) -> None:
        """Wait for all answers; then the connection is psycopg's again. Raises what is not a statement's fault.

        `is_over`: nobody cares for what is not sent yet, nor for the answers.
        """
        self._is_held, known, beginning = False, self.failed, self._beginning
        if not self.is_open:
            return
        if is_over:
            self._held.clear()
        self._post()
        self._leave()
        if self.failed is not known and not is_over:
            if self.failed in beginning:
                self._lost(self.error, is_beginning=True)
            self.raise_if_the_world()
            if self.is_trusting:
                raise LateError

    def _leave(self) -> None:
        try:
            self._sync()  # also if all is answered: after an error the server ignores what comes before it
            self._wait(0)
            self.connection.pgconn.exit_pipeline_mode()
        except psycopg.Error as error:
            if self.is_open:  # else it is known that the connection is lost
                self._lost(error, is_beginning=self._is_beginning)
            raise
        self.is_open, self._beginning = False, []

    def _sync(self) -> None:
        self.connection.pgconn.pipeline_sync()
        self._unanswered.append(Sent(self, self.calls - 1))

    def raise_if_the_world(self) -> None:
        """Is it no call's fault that a statement failed?"""
        if self.failed is not None and (self.failed.call < 0 or (is_the_world(self.error) and not self._is_forgetful)):
            raise self.error

    def end(self) -> Sent | None:
        """Send COMMIT with what is under way; None: there is nothing, or it is known that something is wrong.

        Behind a sync: if it does not arrive, the server knows that it waits for us inside a transaction, and for how
        long it may. If one of those before it fails, then there is nothing that it could commit.
        """
        if not self.is_open or self._is_outside or self.failed is not None:
            return None
        self._post()
        self._sync()
        sent = self.control("COMMIT")
        self._beginning.clear()  # from here on nobody can say that nothing was done
        return sent

    def _wait(self, left: int) -> None:
        """Until so many answers are missing."""
        self._receive(self._answers(left))

    def _receive(self, answers: Answers) -> None:
        """Who was interrupted cannot know which are still to come."""
        self._unflushed = 0
        try:
            psycopg.Connection.wait(self.connection, answers)
        except BaseException as error:
            note(self.connection, error)
            self._lost(error, is_beginning=self._is_beginning)
            raise

    def _lost(self, error: BaseException, *, is_beginning: bool) -> None:
        """The connection is of no use any more; `is_beginning`: nothing was done on it."""
        self.connection.close()  # who passes over it shall not go on without a transaction
        self._unanswered.clear()
        self._beginning.clear()
        self.is_open = False
        if is_beginning and isinstance(error, psycopg.Error):
            raise Unbegun(str(error)) from error

    @property
    def _is_beginning(self) -> bool:
        """Was a transaction to begin, and nobody has said that it did?"""
        return any(sent.result is None or sent.result.status not in _GOOD for sent in self._beginning)

    def _answers(self, left: int) -> Answers:
        """Read answers until so many are missing; the answer to a sync counts as one."""
        pgconn, unanswered = self.connection.pgconn, self._unanswered
        while pgconn.flush():
            if (yield waiting.Wait.RW) & waiting.Ready.R:
                pgconn.consume_input()
        while len(unanswered) > left:
            while pgconn.is_busy():
                yield waiting.Wait.R
                pgconn.consume_input()
            self._read()

    def _answered(self) -> Answers:
        """Read those answers that are there."""
        pgconn = self.connection.pgconn
        while pgconn.flush():
            if (yield waiting.Wait.RW) & waiting.Ready.R:
                pgconn.consume_input()
        pgconn.consume_input()
        while self._unanswered and not pgconn.is_busy():
            self._read()

    def _read(self) -> None:
        """The next answer, or the end of the last one."""
        pgconn = self.connection.pgconn
        result = pgconn.get_result()
        if result is not None:
            sent = self._unanswered.popleft()
            sent.result = result
            if result.status not in _GOOD and result.status != pq.ExecStatus.PIPELINE_SYNC:
                self._fail(sent, result)
        elif pgconn.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError(pgconn.get_error_message())

    def _fail(self, sent: Sent, result: Any) -> None:
        """The first failure counts; what follows it was not run."""
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        if self.failed is None:
            self._wary = WARY_AFTER_FAILURE if sent.call >= 0 else self._wary
            self.failed, self.error = sent, psycopg.errors.error_from_result(result)
            if code == _REFUSED and sent.otherwise is not None:
                self.error = sent.otherwise
            elif not code or (code == _GONE and sent.call < 0):  # the connection itself, or what it keeps: once more
                self.error = psycopg.OperationalError(result.get_error_message())
            note(self.connection, self.error)
        if code == _GONE:
            self.known.clear()
            self._is_forgetful = True
        elif sent.key is not None and sent.bound is None:
            self.known.pop(sent.key, None)
