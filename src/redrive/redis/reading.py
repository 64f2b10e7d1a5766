"""What both ways of reading a stream have in common: the connection, the entries, what a server says of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import redis

from redrive.errors import Halted, SourceDown
from redrive.event import TIME_US_MAX, NewEvent
from redrive.redis.ids import FIRST, id_of
from redrive.redis.stream import Stream, line_of
from redrive.sources.codec import Place as Origin
from redrive.sources.port import Message, Plain, Positions, Reader
from redrive.sources.quick import TOGETHER_MAX, Quick
from redrive.sources.refusal import LOST, refusal
from redrive.subscription import REFUSED

Entry = tuple[bytes, Sequence[bytes] | Mapping[bytes, bytes] | None]  # the fields in a row, or by name


class StreamReader(Reader):
    def __init__(self, stream: Stream, group: str) -> None:
        self.stream, self.group = stream, group
        with self.asking():
            self.server = stream.connect()
        for command in ("XREAD", "XREADGROUP"):  # entries as they come: theirs would be a dict each
            self.server.set_response_callback(command, as_it_is)
        self._connection: int | None = None  # its number, by which it can be told not to wait any longer; 0: unknown
        self._names, self._quick = stream.streams, Quick(stream.codec, stream.name)
        self._alone = False  # do we know that nothing is left in streams that are not among ours?

    def close(self) -> None:
        self.server.close()

    def hurry(self) -> None:
        # A server looks ten times a second whose time is over: who stops would wait for that, too.
        if self._connection:
            with suppress(redis.RedisError, OSError), self.stream.connect() as other:
                other.client_unblock(self._connection)

    def block(self, wait: float) -> int:
        """For how many milliseconds to wait; by now it is time to know who we are."""
        if self._connection is None:
            self._connection = 0
            with suppress(redis.ResponseError):  # not everybody may ask
                self._connection = self.server.client_id()
        return max(1, round(wait * 1000))

    def wait_for(self, *command: Any) -> Any:
        """The answer to a command, as it comes; None: the line was cut meanwhile, and there is another now.

        The client would look at an answer for longer than a message takes to come.
        """
        pool = self.server.connection_pool
        line = line_of(pool)
        try:
            line.send_command(*command)
            return line.read_response()
        except (redis.ConnectionError, redis.TimeoutError):
            self._connection = None  # the next one has another number
        finally:
            pool.release(line)
        self.server.ping()
        return None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Whatever is wrong with the server or the way to it is told in our words."""
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise SourceDown(f"{self.stream.log}: {type(error).__name__}: {error}") from error

    def check_others(self, positions: Positions) -> None:
        """Nobody would read what is left in streams that were ours when there were more, or fewer, of them."""
        stream, places = self.stream, {} if self._alone else positions
        for number, place in sorted((number, Place.of(text)) for number, text in places.items()):
            name = stream.stream_of(number, place.streams)
            if name not in self._names and id_of(self.describe(name).newest) > id_of(place.id):
                raise Halted(
                    f"{stream.log}: stream {name!r} has entries after {place.id}, and nobody would read them now. "
                    f"Run it with partitions={place.streams} until they are read; producers may write to the other "
                    "streams meanwhile"
                )
        self._alone = True

    def messages(self, partition: int, entries: list[Entry]) -> list[Message | Plain]:
        """Entries as events, or as the refusals that stand for them; they are used up."""
        found: list[Message | Plain] = []
        entries.reverse()
        while entries:  # what is read is gone at once: thousands of lists keep the collector busy
            some = entries[: -TOGETHER_MAX - 1 : -1]
            del entries[-TOGETHER_MAX:]
            found += self._some(partition, some)
        return found

    def _some(self, partition: int, entries: list[Entry]) -> Iterator[Message | Plain]:
        name, decode = self._names[partition], self._quick.decode
        for (where, fields), checked in zip(entries, self._quick.checked(entries), strict=True):
            position, plain = where.decode(), None
            id, time_us = f"{name}:{position}"[-200:], int(where[: where.index(b"-")]) * 1_000
            if time_us > TIME_US_MAX:  # ids may be anything that grows
                time_us = TIME_US_MAX
            if type(fields) is list:
                plain = decode(fields, partition, position, id, time_us, checked)
            if plain is not None:
                yield plain
            else:
                origin = Origin(id, self.stream.name, None, time_us)
                yield Message(partition, position, *self._decode(partition, position, fields, origin))

    def _decode(
        self, partition: int, position: str, fields: Sequence[bytes] | Mapping[bytes, bytes] | None, place: Origin
    ) -> tuple[NewEvent, bool]:
        """The long way."""
        if not fields:  # handed out once, and deleted since: every entry has fields
            lost = self.lost(partition, position, f"entry {position} was deleted before it was read")
            return lost.event, lost.has_id
        pairs = fields.items() if isinstance(fields, Mapping) else zip(fields[::2], fields[1::2], strict=True)
        named, codec = {name.decode("utf-8", "backslashreplace"): value for name, value in pairs}, self.stream.codec
        return codec.decode(named, named.get(codec.field), place)

    def lost(self, partition: int, position: str, why: str) -> Message:
        """What the server does not have any more is told, in its place."""
        stream = self.stream
        event = refusal(
            LOST, f"{stream.streams[partition]}: {why}", id=f"{stream.streams[partition]}:{position}:lost"[-200:],
            type=REFUSED, key=None, time_us=min(id_of(position.partition("+")[0])[0] * 1_000, TIME_US_MAX),
        )  # fmt: skip
        return Message(partition, position, event, True)

    def anew(self, partition: int, place: Place) -> Message:
        """It is another stream of that name: nobody knows what had not been read of the former."""
        why = f"it was made anew after {place.id} was read: what came after that in the former one is gone"
        return self.lost(partition, f"{place.id}+anew", why)

    def describe(self, stream: str) -> Census:
        """What the server says of a stream."""
        try:
            return Census.of(self.server.xinfo_stream(stream))
        except redis.ResponseError as error:
            return Census.of(error)


class Place(NamedTuple):
    """How far a stream was read: the last entry, and how many were ever added up to it, where the server counts."""

    id: str
    number: int | None
    streams: int = 1  # one of so many: what was NAME:0 is another stream than NAME

    @classmethod
    def of(cls, text: str) -> Place:
        """As the store has it.

        What was read through a group says behind its last entry up to where everything has landed, and that counts.
        """
        id, *rest = text.split(";")
        if rest and "-" in rest[0]:
            id, *rest = rest
        count, streams = [*rest, "", ""][:2]
        return cls(id, int(count) if count else None, int(streams or 1))

    def __str__(self) -> str:
        streams = "" if self.streams == 1 else str(self.streams)
        return f"{self.id};{'' if self.number is None else self.number};{streams}".rstrip(";")

    def after(self, id: str, more: int) -> Place:
        """So many entries further."""
        return Place(id, None if self.number is None else self.number + more, self.streams)


class Census(NamedTuple):
    """What a server says of a stream."""

    newest: str
    oldest: str | None  # None: it is empty
    deleted: str  # the last one that was taken out of the middle
    length: int
    added: int | None  # ever; servers before 7.0 do not count

    @classmethod
    def of(cls, state: Any) -> Census:
        """An answer to XINFO STREAM."""
        if isinstance(state, redis.ResponseError) and "no such key" in str(state).lower():
            return cls(FIRST, None, FIRST, 0, 0)  # what it will have has been added since
        if isinstance(state, redis.RedisError):
            raise state
        first = state.get("first-entry")
        return cls(
            text_of(state["last-generated-id"]), None if first is None else text_of(first[0]),
            text_of(state.get("max-deleted-entry-id", FIRST)), state["length"], state.get("entries-added"),
        )  # fmt: skip

    @property
    def gone(self) -> int | None:
        """How many are not there any more."""
        return None if self.added is None else self.added - self.length

    def is_another(self, place: Place) -> bool:
        """Is it none of which we have read as far as that? It has had fewer, or fewer that are not there any more."""
        if place.number is None or self.added is None:
            return False
        is_behind = self.oldest is None or id_of(self.oldest) > id_of(place.id)
        return (self.added - self.length if is_behind else self.added) < place.number


def text_of(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def entries_of(found: Any) -> list[Entry]:
    return [entry for _, entries in by_stream(found) for entry in entries]


def by_name(found: Any) -> dict[bytes, list[Entry]]:
    return dict(by_stream(found))


def by_stream(found: Any) -> Iterator[tuple[bytes, list[Entry]]]:
    """What XREAD and XREADGROUP answer, in both versions of the protocol."""
    yield from found.items() if isinstance(found, dict) else found or ()


def as_it_is(answer: Any, **_: Any) -> Any:
    return answer
