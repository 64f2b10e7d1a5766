"""Through a consumer group, beside whoever else reads in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import redis

from redrive.redis.ids import FIRST, before, id_of
from redrive.redis.reading import Census, Entry, Place, StreamReader, entries_of, text_of
from redrive.sources.port import Message, Plain, Positions, moved

if TYPE_CHECKING:
    from redrive.redis.stream import Stream

CONSUMER = "redrive"  # one owner at a time: whoever takes over has the pending entries of the one before
CLAIM_MAX = 100
PENDING_PAGE = 1_000  # pending entries asked for at a time
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


class GroupReader(StreamReader):
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

    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message | Plain]:
        self.starts = {}  # that of the last time has landed, or we would not be here
        with self.asking():
            try:
                return self._make(positions) or self._read(limit, wait)
            except redis.ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                self._made, self._pending = False, FIRST  # the server was emptied, or somebody deleted the group
                return self._make(positions) or self._read(limit, wait)

    def _make(self, positions: Positions) -> Sequence[Message | Plain]:
        """The group, from where on not everything has landed: never from `$`, which would pass over what came since.

        What is to land before: without it nobody could tell, once there is a group, that the stream is another.
        """
        if self._made:
            return ()
        self.check_others(positions)
        name, place = self.stream.name, Place.of(positions.get(0, FIRST))
        is_new = 0 not in positions or place.streams > 1  # of several, the first was another stream
        start, census = FIRST if is_new else place.id, self.describe(name)
        if not is_new and census.is_another(place):
            return [self._noted(self.anew(0, place)._replace(position=place.id), None, census.gone)]
        if id_of(census.newest) < id_of(start):
            start = FIRST  # another stream of that name: what has landed is recognised by its id
        # With the number, a server that counts goes on counting, and what was trimmed meanwhile is missed.
        count = census.gone if start == FIRST else place.number
        if not self._create(start, count):
            if is_new:
                start = self._begun()
            else:
                self._gap = start
        if is_new:  # or a store that is set back to now, before anything has landed, would not know
            self.starts = {0: f"{start};{start}"}
        self._made = True
        return ()

    def _create(self, start: str, count: int | None) -> bool:
        """False: there is one."""
        try:
            self.server.xgroup_create(self.stream.name, self.group, id=start, mkstream=True, entries_read=count)
        except redis.ResponseError as error:
            if "BUSYGROUP" in str(error):
                return False
            if count != 0:
                raise
            return self._create(start, None)  # where there is no stream, a server that does not count takes no count
        return True

    def _begun(self) -> str:
        """Where a group is that somebody else has made: what it had handed out, and was finished, is not ours."""
        low, groups = self._ask(lambda pipe: pipe.xinfo_groups(self.stream.name))
        return text_of(self._of(groups)["last-delivered-id"]) if low is None else before(low)

    def _read(self, limit: int, wait: float) -> Sequence[Message | Plain]:
        if self._pending is not None:
            low, found = self._ask(lambda pipe: self._get(pipe, str(self._pending), limit))
            entries = entries_of(found)
            self._pending = entries[-1][0].decode() if entries else None
            if entries:
                return self._messages(entries, low)
        if self._gap is not None and (left := self._missed(self._gap, limit)):
            return left
        if time.monotonic() >= self._claim_at and (left := self._claim(limit)):
            return left
        return self._new(limit, wait)

    def _missed(self, gap: str, limit: int) -> Sequence[Message | Plain]:
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
        alone = all(text_of(one["name"]) == CONSUMER for one in consumers)
        entries = [entry for entry in found if id_of(entry[0]) <= at] if alone else []
        self._gap = text_of(entries[-1][0]) if entries else None
        return self._messages(entries, low)

    def _of(self, groups: Any) -> Any:
        return next(one for one in groups if text_of(one["name"]) == self.group)

    def _new(self, limit: int, wait: float) -> Sequence[Message | Plain]:
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
        return self._messages(entries_of(found), low, group.get("entries-read"))

    def _ask(self, queue: Callable[[Any], None]) -> tuple[Any, ...]:
        """Answers of one moment, the first of them: the oldest id that somebody has and has not finished, if any."""
        pipe = self.server.pipeline(transaction=True)
        pipe.xpending(self.stream.name, self.group)
        queue(pipe)
        waiting, *rest = pipe.execute()
        return (waiting["min"] if waiting["pending"] else None), *rest

    def _get(self, server: Any, start: str, limit: int, block: int | None = None) -> Any:
        return server.xreadgroup(self.group, CONSUMER, {self.stream.name: start}, count=limit, block=block)

    def _messages(self, entries: list[Entry], oldest: bytes | None, number: int | None = None) -> list[Message | Plain]:
        found = self.messages(0, entries)
        if found:
            found[-1] = self._noted(found[-1], oldest, None if number is None else number + len(found))
        return found

    def _noted(self, last: Message | Plain, oldest: bytes | None, number: int | None) -> Message | Plain:
        """With where a group would be made again: behind it if nobody has anything else, and then its number, too."""
        if oldest is not None:
            return moved(last, f"{last.position};{before(oldest)}")
        return moved(last, f"{last.position};{last.position};{'' if number is None else number}")

    def _compare(self, census: Census, group: Mapping[str, Any], low: bytes | None) -> Message | Plain | None:
        """Was anything deleted before the group handed it out? Servers before 7.0 do not tell."""
        at, count = text_of(group["last-delivered-id"]), group.get("entries-read")
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

    def _claim(self, limit: int) -> Sequence[Message | Plain]:
        """What a consumer took and did not finish, and who is gone with nothing left to do."""
        low, answer = self._ask(
            lambda pipe: pipe.xautoclaim(
                self.stream.name, self.group, CONSUMER, min_idle_time=round(self.stream.min_idle * 1000),
                start_id=self._claim_from, count=CLAIM_MAX,
            )
        )  # fmt: skip
        self._claim_from = text_of(answer[0])
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

    def unacknowledged(self, most: int) -> list[str]:
        """The ids of the events of pending entries, the oldest first; SourceDown if the server cannot be asked.

        It only looks: reading through the group would change who has an entry, and since when.
        """
        with self.asking():
            return list(self._pending_ids(most))

    def _pending_ids(self, most: int) -> Iterator[str]:
        above = "-"
        while most > 0:
            try:
                count = min(PENDING_PAGE, most)
                waiting = self.server.xpending_range(self.stream.name, self.group, min=above, max="+", count=count)
            except redis.ResponseError as error:
                if "NOGROUP" in str(error):
                    return
                raise
            pipe = self.server.pipeline(transaction=False)
            for one in waiting:
                pipe.xrange(self.stream.name, one["message_id"], one["message_id"])
            entries = [(id, fields) for found in pipe.execute() for id, fields in found]
            for message in self.messages(0, entries):  # one that was deleted comes again as nothing
                yield message.event.id
            if len(waiting) < count:
                return
            most, above = most - count, f"({text_of(waiting[-1]['message_id'])}"

    def settled(self, messages: Sequence[Message | Plain]) -> None:
        if messages:
            with self.asking():
                ids = [message.position.partition(";")[0] for message in messages]
                self.server.xack(self.stream.name, self.group, *ids)
