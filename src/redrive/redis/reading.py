"""Reading streams: in order from a place that the store keeps, or through a consumer group."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis

from redrive.errors import Halted, SourceDown
from redrive.redis.ids import FIRST, id_of
from redrive.sources.codec import Place
from redrive.sources.port import Message, Positions, Reader
from redrive.sources.refusal import LOST, refusal

if TYPE_CHECKING:
    from redrive.redis.stream import Stream

Entry = tuple[bytes, Mapping[bytes, bytes] | None]
CONSUMER = "redrive"  # one owner at a time: whoever takes over has the pending entries of the one before
CLAIM_MAX = 100


class _Reader(Reader):
    def __init__(self, stream: Stream, group: str) -> None:
        self.stream, self.group = stream, group
        with self.asking():
            self.server = stream.connect()

    def close(self) -> None:
        self.server.close()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Whatever is wrong with the server or the way to it is told in our words."""
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise SourceDown(f"{self.stream.log}: {type(error).__name__}: {error}") from error

    def message(self, partition: int, entry: Entry) -> Message:
        """An entry as an event, or as the refusal that stands for it."""
        stream, (where, fields) = self.stream, entry
        position = where.decode()
        place = Place(f"{stream.streams[partition]}:{position}"[-200:], stream.name, None, id_of(position)[0] * 1_000)
        if fields is None:  # handed out once, and deleted since
            return self.lost(partition, position, f"entry {position} was deleted before it was read")
        named = {name.decode("utf-8", "backslashreplace"): value for name, value in fields.items()}
        event, has_id = stream.codec.decode(named, named.get(stream.codec.data), place)
        return Message(partition, position, event, has_id)

    def lost(self, partition: int, position: str, why: str) -> Message:
        """What the server does not have any more is told, in its place."""
        stream = self.stream
        event = refusal(
            LOST, f"{stream.streams[partition]}: {why}", id=f"{stream.streams[partition]}:{position}:lost"[-200:],
            type=stream.name, key=None, time_us=id_of(position)[0] * 1_000,
        )  # fmt: skip
        return Message(partition, position, event, True)

    def describe(self, stream: str) -> dict[str, Any] | None:
        """What the server says of a stream; None if there is none."""
        try:
            found: dict[str, Any] = self.server.xinfo_stream(stream)
        except redis.ResponseError as error:
            if "no such key" in str(error).lower():
                return None
            raise
        return found


class OrderedReader(_Reader):
    """From where the store says, one entry after the other."""

    def __init__(self, stream: Stream, group: str) -> None:
        super().__init__(stream, group)
        self._names = {name.encode(): number for number, name in enumerate(stream.streams)}

    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message]:
        places = {name: positions.get(number, FIRST) for number, name in enumerate(self.stream.streams)}
        with self.asking():
            pipe = self.server.pipeline(transaction=True)  # nobody trims in between
            for name in places:
                pipe.xinfo_stream(name)
            pipe.xread(places, count=limit)  # type: ignore[arg-type]
            *states, found = pipe.execute(raise_on_error=False)
            messages = [
                lost for (number, (name, place)), state in zip(enumerate(places.items()), states, strict=True)
                if (lost := self._compare(number, name, place, state)) is not None
            ]  # fmt: skip
            if isinstance(found, redis.RedisError):
                raise found
            if not found and not messages and wait > 0:
                found = self.server.xread(places, count=limit, block=round(wait * 1000))  # type: ignore[arg-type]
        for stream, entries in _by_stream(found):
            number = self._names[stream]
            messages += [self.message(number, entry) for entry in entries]
        return messages

    def settled(self, messages: Sequence[Message]) -> None:
        """The place in the store is all there is to it."""

    def _compare(self, number: int, name: str, place: str, state: Any) -> Message | None:
        """Has the server lost what we have read, or deleted what we have not?"""
        if isinstance(state, redis.ResponseError):
            if "no such key" not in str(state).lower():
                raise state
            state = {"last-generated-id": FIRST}
        elif isinstance(state, redis.RedisError):
            raise state
        newest = (
            state["last-generated-id"].decode()
            if isinstance(state["last-generated-id"], bytes)
            else state["last-generated-id"]
        )
        if id_of(newest) < id_of(place):
            raise Halted(
                f"{self.stream.log}: {place} was read from stream {name!r}, but its newest entry is {newest}: was the "
                f"server emptied, or a backup restored? Bring it back; or, to go on from its first entry, run "
                f"`redrive seek {self.stream.log} first --reason …`"
            )
        deleted = state.get("max-deleted-entry-id", FIRST)
        deleted = deleted.decode() if isinstance(deleted, bytes) else deleted
        if id_of(deleted) > id_of(place):
            return self.lost(
                number, deleted, f"entries up to {deleted} were deleted, and not all of them had been read"
            )
        return None


class GroupReader(_Reader):
    """Own pending entries first, then new ones; now and then what others have left behind."""

    def __init__(self, stream: Stream, group: str) -> None:
        super().__init__(stream, group)
        self._pending: str | None = FIRST  # from where on our own pending entries are still to be read
        self._claim_at = 0.0
        self._made = False

    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message]:
        with self.asking():
            if not self._made:
                self._make(positions)
            try:
                return self._read(limit, wait)
            except redis.ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                self._made, self._pending = False, FIRST  # the server was emptied, or somebody deleted the group
                self._make(positions)
                return self._read(limit, wait)

    def _make(self, positions: Positions) -> None:
        """The group, from the last entry that has landed on: never from `$`, which would pass over what came since."""
        name = self.stream.name
        start, state = positions.get(0, FIRST), self.describe(self.stream.name)
        if state is None or id_of(state["last-generated-id"]) < id_of(start):
            start = FIRST  # another stream of that name: what has landed is recognised by its id
        try:
            self.server.xgroup_create(name, self.group, id=start, mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._made = True

    def _read(self, limit: int, wait: float) -> Sequence[Message]:
        if self._pending is not None:
            found = list(_by_stream(self.server.xreadgroup(
                self.group, CONSUMER, {self.stream.name: self._pending}, count=limit
            )))  # fmt: skip
            entries = found[0][1] if found else []
            self._pending = entries[-1][0].decode() if entries else None
            if entries:
                return [self.message(0, entry) for entry in entries]
        if time.monotonic() >= self._claim_at:
            self._claim_at = time.monotonic() + self.stream.min_idle / 2
            if left := self._claim():
                return left
        block = max(1, round(wait * 1000)) if wait > 0 else None
        found = list(_by_stream(self.server.xreadgroup(
            self.group, CONSUMER, {self.stream.name: ">"}, count=limit, block=block
        )))  # fmt: skip
        return [self.message(0, entry) for _, entries in found for entry in entries]

    def _claim(self) -> list[Message]:
        """What a consumer took and did not finish; the ids of what was deleted meanwhile are told by newer servers."""
        answer: Any = self.server.xautoclaim(
            self.stream.name, self.group, CONSUMER, min_idle_time=round(self.stream.min_idle * 1000), count=CLAIM_MAX
        )
        entries = [entry for entry in answer[1] if entry[0] is not None]
        deleted = answer[2] if len(answer) > 2 else []
        return [self.message(0, entry) for entry in entries] + [self.message(0, (id, None)) for id in deleted]

    def settled(self, messages: Sequence[Message]) -> None:
        with self.asking():
            self.server.xack(self.stream.name, self.group, *[message.position for message in messages])


def _by_stream(found: Any) -> Iterator[tuple[bytes, list[Entry]]]:
    """What XREAD and XREADGROUP answer, in both versions of the protocol."""
    if isinstance(found, dict):
        for name, lists in found.items():
            yield name, [entry for entries in lists for entry in entries]
    else:
        for name, entries in found or ():
            yield name, entries
