"""Reading streams: in order from a place that the store keeps, or through a consumer group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from redrive.errors import Halted, SourceDown
from redrive.event import NewEvent
from redrive.redis.ids import FIRST, before, id_of
from redrive.sources.codec import Place as Origin
from redrive.sources.port import Message, Positions, Reader
from redrive.sources.quick import Quick
from redrive.sources.refusal import LOST, refusal
from redrive.subscription import REFUSED

if TYPE_CHECKING:
    from redrive.redis.stream import Stream

Entry = tuple[bytes, Sequence[bytes] | Mapping[bytes, bytes] | None]  # the fields in a row, or by name
CONSUMER = "redrive"  # one owner at a time: whoever takes over has the pending entries of the one before
CLAIM_MAX = 100
LOOK_SECONDS = 0.1  # the longest time for which nobody asks what the server has lost
# Who is gone and has nothing: in one step, because with a consumer the server deletes what it has not finished.
TIDY = """
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
    local one = {}
    for i = 1, #row, 2 do one[row[i]] = row[i + 1] end
    if one.name ~= ARGV[2] and one.pending == 0 and one.idle > tonumber(ARGV[3]) then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], one.name)
    end
end
"""


class _Reader(Reader):
    def __init__(self, stream: Stream, group: str) -> None:
        self.stream, self.group = stream, group
        with self.asking():
            self.server = stream.connect()
        for command in ("XREAD", "XREADGROUP"):  # entries as they come: theirs would be a dict each
            self.server.set_response_callback(command, _as_it_is)
        self._connection: int | None = None  # its number, by which it can be told not to wait any longer; 0: unknown
        self._names, self._quick = stream.streams, Quick(stream.codec, stream.name)

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

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Whatever is wrong with the server or the way to it is told in our words."""
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise SourceDown(f"{self.stream.log}: {type(error).__name__}: {error}") from error

    def messages(self, partition: int, entries: list[Entry]) -> list[Message]:
        """Entries as events, or as the refusals that stand for them; they are used up."""
        found, name, decode = [], self._names[partition], self._quick.decode
        entries.reverse()
        while entries:  # what is read is gone at once: thousands of lists keep the collector busy
            where, fields = entries.pop()
            position, read = where.decode(), None
            id, time_us = f"{name}:{position}"[-200:], int(where[: where.index(b"-")]) * 1_000
            if type(fields) is list:
                read = decode(fields, id, time_us)
            if read is None:
                read = self._decode(partition, position, fields, Origin(id, self.stream.name, None, time_us))
            found.append(tuple.__new__(Message, (partition, position, *read)))  # in half the time of its own
        return found

    def _decode(
        self, partition: int, position: str, fields: Sequence[bytes] | Mapping[bytes, bytes] | None, place: Origin
    ) -> tuple[NewEvent, bool]:
        """The long way."""
        if not fields:  # handed out once, and deleted since: every entry has fields
            lost = self.lost(partition, position, f"entry {position} was deleted before it was read")
            return lost.event, lost.has_id
        pairs = fields.items() if isinstance(fields, Mapping) else zip(fields[::2], fields[1::2], strict=True)
        named, codec = {name.decode("utf-8", "backslashreplace"): value for name, value in pairs}, self.stream.codec
        return codec.decode(named, named.get(codec.data), place)

    def lost(self, partition: int, position: str, why: str) -> Message:
        """What the server does not have any more is told, in its place."""
        stream = self.stream
        event = refusal(
            LOST, f"{stream.streams[partition]}: {why}", id=f"{stream.streams[partition]}:{position}:lost"[-200:],
            type=REFUSED, key=None, time_us=id_of(position.partition("+")[0])[0] * 1_000,
        )  # fmt: skip
        return Message(partition, position, event, True)

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

    @classmethod
    def of(cls, text: str) -> Place:
        """As the store has it."""
        id, _, count = text.partition(";")
        return cls(id, int(count) if count else None)

    def __str__(self) -> str:
        return self.id if self.number is None else f"{self.id};{self.number}"

    def after(self, id: str, more: int) -> Place:
        """So many entries further."""
        return Place(id, None if self.number is None else self.number + more)


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
            return cls(FIRST, None, FIRST, 0, None)
        if isinstance(state, redis.RedisError):
            raise state
        first = state.get("first-entry")
        return cls(
            _text(state["last-generated-id"]), None if first is None else _text(first[0]),
            _text(state.get("max-deleted-entry-id", FIRST)), state["length"], state.get("entries-added"),
        )  # fmt: skip

    @property
    def gone(self) -> int | None:
        """How many are not there any more."""
        return None if self.added is None else self.added - self.length


class OrderedReader(_Reader):
    """From where the store says, one entry after the other."""

    _look_at = 0.0  # until then what we wait for may come without a look at everything else

    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message]:
        names = self._names
        if wait > 0 and time.monotonic() < self._look_at and len(positions) == len(names):
            with self.asking():
                return self._wait([Place.of(positions[number]) for number in range(len(names))], limit, wait)
        self._look_at = time.monotonic() + LOOK_SECONDS
        with self.asking():
            states, anchors, found = self._look(names, positions, limit)
            messages: list[Message] = []
            places = []
            for number, name in enumerate(names):
                place, entries = self._place(positions.get(number), states[number]), found.get(name.encode(), [])
                left = None if len(entries) == limit else len(entries)
                self._check(name, place, states[number], anchors[number])
                lost = self._compare(number, place, states[number], left)
                if lost is not None:
                    messages.append(lost)
                    place = Place.of(lost.position)
                messages += self._number(number, entries, place)
                if left is not None and messages and messages[-1].partition == number:
                    last = messages[-1]  # there are no more: now the count is known, whatever was deleted
                    at = Place(Place.of(last.position).id, states[number].added)
                    messages[-1] = last._replace(position=str(at))
                places.append(place)
            return messages if messages or wait <= 0 else self._wait(places, limit, wait)

    def _wait(self, places: list[Place], limit: int, wait: float) -> list[Message]:
        """What comes next, as soon as it comes. What was lost meanwhile is missed at the next look: it is counted."""
        ids: dict[Any, Any] = {name: place.id for name, place in zip(self._names, places, strict=True)}
        found = _by_name(self.server.xread(ids, count=limit, block=self.block(wait)))
        messages: list[Message] = []
        for number, (name, place) in enumerate(zip(self._names, places, strict=True)):
            messages += self._number(number, found.get(name.encode(), []), place)
        return messages

    def _look(
        self, names: list[str], positions: Positions, limit: int
    ) -> tuple[list[Census], list[Any], dict[bytes, list[Entry]]]:
        """What the server has, where we are, and the next entries: of one moment, so that nobody trims in between."""
        pipe = self.server.pipeline(transaction=True)
        ids = {name: Place.of(positions.get(number, FIRST)).id for number, name in enumerate(names)}
        for name, id in ids.items():
            pipe.xinfo_stream(name)
            pipe.xrange(name, id, id)
        pipe.xread(ids, count=limit)  # type: ignore[arg-type]
        *states, found = pipe.execute(raise_on_error=False)
        if isinstance(found, redis.RedisError):
            raise found
        return [Census.of(state) for state in states[::2]], states[1::2], _by_name(found)

    def _place(self, position: str | None, census: Census) -> Place:
        """Where we are; what was gone before we came is not ours to miss."""
        return Place(FIRST, census.gone) if position is None else Place.of(position)

    def _number(self, partition: int, entries: list[Entry], place: Place) -> list[Message]:
        """With the last of them, how far that is: what is between lands with it or not at all."""
        found = self.messages(partition, entries)
        if found:
            found[-1] = found[-1]._replace(position=str(place.after(found[-1].position, len(found))))
        return found

    def settled(self, messages: Sequence[Message]) -> None:
        """The place in the store is all there is to it."""

    def _check(self, name: str, place: Place, census: Census, anchor: Any) -> None:
        """Is this the stream that we have read?"""
        if id_of(census.newest) < id_of(place.id):
            raise Halted(
                f"{self.stream.log}: {place.id} was read from stream {name!r}, but its newest entry is "
                f"{census.newest}: was the server emptied, or a backup restored? Bring back what it had"
            )
        # Whoever lost its last entries and has a slower clock gives later ones smaller ids, which nobody would read.
        untouched = census.added is not None and id_of(census.deleted) < id_of(place.id)
        if untouched and census.oldest is not None and id_of(census.oldest) <= id_of(place.id) and not anchor:
            raise Halted(
                f"{self.stream.log}: {place.id} was read from stream {name!r}, which does not have it, and older ones: "
                f"did another server take over? Look at what is before it, and then XTRIM {name} MINID {place.id}"
            )

    def _compare(self, number: int, place: Place, census: Census, left: int | None) -> Message | None:
        """Has the server deleted what we have not read? `left`: so many are there, if known."""
        if id_of(census.deleted) > id_of(place.id):
            why = f"entries up to {census.deleted} were deleted, and not all of them had been read"
            # How many is not known. Once nothing is left before them, they are behind us.
            to = Place(place.id, None) if left != 0 else Place(census.deleted, census.added)
            return self.lost(number, census.deleted, why)._replace(position=str(to))
        if left is None and (census.oldest is None or id_of(census.oldest) > id_of(place.id)):
            left = census.length
        if left is not None and place.number is not None and census.added is not None:
            missing = census.added - place.number - left
            if missing > 0:
                why = f"{missing} entries after {place.id} were trimmed before they were read"
                return self.lost(number, f"{place.id}+{missing}", why)._replace(
                    position=str(place.after(place.id, missing))
                )
        return None


class GroupReader(_Reader):
    """Own pending entries first, then new ones; now and then what others have left behind.

    The last message of a read carries, behind its id, up to where everything has landed that the group has handed out:
    from there a group that is gone is made again. That is not the last one that has landed: others may still wait.
    """

    def __init__(self, stream: Stream, group: str) -> None:
        super().__init__(stream, group)
        self._pending: str | None = FIRST  # from where on our own pending entries are still to be read
        self._claim_at, self._claim_from = 0.0, FIRST
        self._made, self._told = False, FIRST
        self._gap: str | None = None  # from where on we look for what the group handed out and nobody has
        self._tidies = True

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
        """The group, from where on not everything has landed: never from `$`, which would pass over what came since."""
        name = self.stream.name
        _, start, number = [*positions.get(0, f";{FIRST}").split(";"), ""][:3]
        census = self.describe(name)
        if id_of(census.newest) < id_of(start):
            start = FIRST  # another stream of that name: what has landed is recognised by its id
        # With the number, a server that counts goes on counting, and what was trimmed meanwhile is missed.
        count = census.gone if start == FIRST else int(number) if number else None
        try:
            self.server.xgroup_create(name, self.group, id=start, mkstream=True, entries_read=count)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
            self._gap = start if positions and start != FIRST else None
        self._made = True

    def _read(self, limit: int, wait: float) -> Sequence[Message]:
        if self._pending is not None:
            low, found = self._ask(lambda pipe: self._get(pipe, str(self._pending), limit))
            entries = _entries(found)
            self._pending = entries[-1][0].decode() if entries else None
            if entries:
                return self._messages(entries, low)
        if self._gap is not None and (left := self._missed(self._gap, limit)):
            return left
        if time.monotonic() >= self._claim_at and (left := self._claim(limit)):
            return left
        return self._new(limit, wait)

    def _missed(self, gap: str, limit: int) -> Sequence[Message]:
        """What was handed out to us and is not pending: who deletes a consumer deletes what it has not finished.

        Most of it has landed, and is recognised. With others in the group it may be theirs, and finished.
        """
        name = self.stream.name

        def look(pipe: Any) -> None:
            pipe.xinfo_groups(name)
            pipe.xinfo_consumers(name, self.group)
            pipe.xrange(name, f"({gap}", "+", count=limit)

        low, groups, consumers, found = self._ask(look)
        at = id_of(self._of(groups)["last-delivered-id"])
        alone = all(_text(one["name"]) == CONSUMER for one in consumers)
        entries = [entry for entry in found if id_of(entry[0]) <= at] if alone else []
        self._gap = _text(entries[-1][0]) if entries else None
        return self._messages(entries, low)

    def _of(self, groups: Any) -> Any:
        return next(one for one in groups if _text(one["name"]) == self.group)

    def _new(self, limit: int, wait: float) -> Sequence[Message]:
        """What nobody has had yet. What nobody will have, because it is gone, lands before the group moves past it."""
        name = self.stream.name

        def look(pipe: Any) -> None:
            pipe.xinfo_stream(name)
            pipe.xinfo_groups(name)

        low, state, groups = self._ask(look)
        group = self._of(groups)
        lost = self._compare(Census.of(state), group, low)
        if lost is not None:
            return [lost]
        found = self._get(self.server, ">", limit, self.block(wait) if wait > 0 else None)
        return self._messages(_entries(found), low, group.get("entries-read"))

    def _ask(self, queue: Callable[[Any], None]) -> tuple[Any, ...]:
        """Answers of one moment, the first of them: the oldest id that somebody has and has not finished, if any."""
        pipe = self.server.pipeline(transaction=True)
        pipe.xpending(self.stream.name, self.group)
        queue(pipe)
        waiting, *rest = pipe.execute()
        return (waiting["min"] if waiting["pending"] else None), *rest

    def _get(self, server: Any, start: str, limit: int, block: int | None = None) -> Any:
        return server.xreadgroup(self.group, CONSUMER, {self.stream.name: start}, count=limit, block=block)

    def _messages(self, entries: list[Entry], oldest: bytes | None, number: int | None = None) -> list[Message]:
        found = self.messages(0, entries)
        if found:
            found[-1] = self._noted(found[-1], oldest, None if number is None else number + len(found))
        return found

    def _noted(self, last: Message, oldest: bytes | None, number: int | None) -> Message:
        """With where a group would be made again: behind it if nobody has anything else, and then its number, too."""
        if oldest is not None:
            return last._replace(position=f"{last.position};{before(oldest)}")
        return last._replace(position=f"{last.position};{last.position};{'' if number is None else number}")

    def _compare(self, census: Census, group: Mapping[str, Any], low: bytes | None) -> Message | None:
        """Was anything deleted before the group handed it out? Servers before 7.0 do not tell."""
        at, count = _text(group["last-delivered-id"]), group.get("entries-read")
        gone = census.oldest is None or id_of(census.oldest) > id_of(at)
        missing = census.added - count - census.length if gone and count is not None and census.added is not None else 0
        where = (
            census.deleted if id_of(census.deleted) > id_of(at) else f"{at}+{missing}" if missing > 0 else self._told
        )
        if where == self._told:
            return None
        self._told = where
        lost = self.lost(0, where, f"entries after {at} were deleted or trimmed before anybody had read them")
        return self._noted(lost._replace(position=at), low, None if count is None else count + max(0, missing))

    def _claim(self, limit: int) -> Sequence[Message]:
        """What a consumer took and did not finish, and who is gone with nothing left to do."""
        low, answer = self._ask(
            lambda pipe: pipe.xautoclaim(
                self.stream.name, self.group, CONSUMER, min_idle_time=round(self.stream.min_idle * 1000),
                start_id=self._claim_from, count=CLAIM_MAX,
            )
        )  # fmt: skip
        self._claim_from = _text(answer[0])
        if self._claim_from == FIRST:
            self._claim_at = time.monotonic() + self.stream.min_idle / 2
            self._tidy()
        entries: list[Entry] = [entry for entry in answer[1] if entry[0] is not None]
        entries += [(id, None) for id in (answer[2] if len(answer) > 2 else ())]
        if None in {id for id, _ in answer[1]}:  # an old server does not say which it deleted: they are ours now
            self._pending = FIRST
            return self._messages(entries, low) or self._read(limit, 0.0)
        return self._messages(entries, low)

    def _tidy(self) -> None:
        """Let go of consumers that have been gone for long and have nothing left to do; if we may."""
        if self._tidies:
            idle = round(self.stream.min_idle * 1000)
            try:
                self.server.eval(TIDY, 1, self.stream.name, self.group, CONSUMER, str(idle))
            except redis.ResponseError:  # scripts are not allowed here: nobody is harmed by an empty name in a list
                self._tidies = False

    def settled(self, messages: Sequence[Message]) -> None:
        if messages:
            with self.asking():
                ids = [message.position.partition(";")[0] for message in messages]
                self.server.xack(self.stream.name, self.group, *ids)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _entries(found: Any) -> list[Entry]:
    return [entry for _, entries in _by_stream(found) for entry in entries]


def _by_name(found: Any) -> dict[bytes, list[Entry]]:
    return dict(_by_stream(found))


def _by_stream(found: Any) -> Iterator[tuple[bytes, list[Entry]]]:
    """What XREAD and XREADGROUP answer, in both versions of the protocol."""
    yield from found.items() if isinstance(found, dict) else found or ()


def _as_it_is(answer: Any, **_: Any) -> Any:
    return answer
