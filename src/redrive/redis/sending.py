"""Writing to streams: a batch is one MULTI of XADDs, so that nothing of a key overtakes what the server refused.

An entry that was sent and not answered is sent again: readers may meet it twice, with the same id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import redis

from redrive import cloudevents
from redrive.event import Event
from redrive.policy.partitions import place
from redrive.redis.stream import Stream, line_of
from redrive.sinks.brokers import BrokerDown, TooLarge, attributes
from redrive.sinks.port import SomeFailed

MULTI_BYTES_MAX = 1_000_000  # in one transaction of the server, who does nothing else meanwhile
CONNECT_TIMEOUT = 5.0
_TOO_LARGE = ("invalid bulk length", "too large", "exceeds maximum", "max request size")  # of servers, and of proxies
_MULTI, _EXEC = b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$4\r\nEXEC\r\n"

Part = list[tuple[int, bytes]]  # which event of the list, and its command


class StreamSender:
    """Connections to one server, on behalf of a sink. Blocks; may be used by several threads."""

    def __init__(self, stream: Stream, log: str, timeout: float) -> None:
        self.stream = stream
        self._source = cloudevents.source_of(log)
        self._names = [one.encode() for one in stream.streams]
        self._trim = b"" if stream.maxlen is None else _bulks(b"MAXLEN", b"~", b"%d" % stream.maxlen)
        self._pool = stream.pool(timeout, CONNECT_TIMEOUT)

    def close(self) -> None:
        """Let go of the connections."""
        self._pool.disconnect()

    def ping(self) -> None:
        """Raise if the server does not answer, or answers with an error."""
        (answer,) = self._ask([(0, b"*1\r\n$4\r\nPING\r\n")])
        if isinstance(answer, redis.RedisError):
            raise self._trouble(answer)

    def send(self, events: Sequence[Event[Any]]) -> None:
        """Add them all, in their order; SomeFailed names those that were not."""
        parts = list(self._parts(events))
        for number, part in enumerate(parts):
            try:
                errors = self._add(part)
            except BrokerDown as error:  # one that is too large is told of the whole list: who is it?
                if number == 0:
                    raise
                errors = {index: error for index, _ in part}
            if errors:  # nothing goes past what was not taken
                first = next(iter(errors.values()))
                errors |= {index: first for rest in parts[number + 1 :] for index, _ in rest}
                raise SomeFailed(errors) if len(events) > 1 else first

    def _parts(self, events: Sequence[Event[Any]]) -> Iterator[Part]:
        part: Part = []
        room = MULTI_BYTES_MAX
        for index, event in enumerate(events):
            command = self._command(event)
            room -= len(command)
            if part and room < 0:
                yield part
                part, room = [], MULTI_BYTES_MAX - len(command)
            part.append((index, command))
        yield part

    def _command(self, event: Event[Any]) -> bytes:
        names = self._names
        name = names[0] if len(names) == 1 else names[place(event.key or event.id, len(names))]
        source = self._source
        if event.headers_raw is None and event.schema == 1 and event.key is not None:  # the ordinary event, quickly
            head = _head(name, self._trim, source, event.type)
            id, key, data = event.id.encode(), event.key.encode(), event.data_raw
            time = cloudevents.time_text(event.time_us).encode()
            return (
                b"%b$5\r\nce_id\r\n$%d\r\n%b\r\n$7\r\nce_time\r\n$%d\r\n%b\r\n$15\r\nce_partitionkey\r\n$%d\r\n%b\r\n"
                b"$4\r\ndata\r\n$%d\r\n%b\r\n" % (head, len(id), id, len(time), time, len(key), key, len(data), data)
            )
        fields = [part.encode() for field in attributes(event, source).items() for part in field]
        return _opening(name, self._trim, len(fields) // 2 + 1) + _bulks(*fields, b"data", event.data_raw)

    def _add(self, part: Part) -> dict[int, BaseException]:
        """One transaction; what single commands of it were answered, where that was an error."""
        *queued, answer = self._ask([(-1, _MULTI), *part, (-1, _EXEC)])
        refused = next((one for one in queued if isinstance(one, redis.RedisError)), None)
        if refused is not None or isinstance(answer, redis.RedisError):
            raise self._trouble(refused or answer)
        return {
            index: self._trouble(one)
            for (index, _), one in zip(part, answer, strict=True)
            if isinstance(one, redis.RedisError)
        }

    def _ask(self, commands: Part) -> list[Any]:
        """Send them together; the answers, of which some may be errors. Trouble with the connection is raised."""
        pool = self._pool
        connection: Any = None
        try:
            connection = line_of(pool)
            connection.send_packed_command([b"".join([command for _, command in commands])], check_health=False)
            answers = [_answer(connection) for _ in commands]
        except (redis.RedisError, OSError) as error:
            if connection is not None:
                connection.disconnect()
            raise self._trouble(error) from error
        except BaseException:
            if connection is not None:
                connection.disconnect()
            raise
        finally:
            if connection is not None:
                pool.release(connection)
        return answers

    def _trouble(self, error: Any) -> BrokerDown | TooLarge:
        """The server's error in our words: the event's fault, or everybody's."""
        text = f"{self.stream.scheme}:{self.stream.name}: {type(error).__name__}: {error}"
        if isinstance(error, redis.ResponseError) and any(words in str(error).lower() for words in _TOO_LARGE):
            return TooLarge(text)
        return BrokerDown(text)


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        if "protocol error" in str(error).lower():  # it hangs up after that
            raise
        return error


@lru_cache(1_024)
def _head(name: bytes, trim: bytes, source: str, type: str) -> bytes:
    """What commands of one type begin with."""
    common = (b"ce_specversion", b"1.0", b"ce_source", source.encode(), b"ce_type", type.encode())
    return _opening(name, trim, 7) + _bulks(*common)


def _opening(name: bytes, trim: bytes, fields: int) -> bytes:
    arguments = 3 + (3 if trim else 0) + 2 * fields
    return b"*%d\r\n" % arguments + _bulks(b"XADD", name) + trim + _bulks(b"*")


def _bulks(*texts: bytes) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])
