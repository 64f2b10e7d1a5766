"""In order, from a place that the store keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import redis

from redrive.errors import Halted
from redrive.redis.ids import FIRST, id_of
from redrive.redis.reading import Census, Entry, Place, StreamReader, by_name
from redrive.sources.port import Message, Plain, Positions, moved

LOOK_SECONDS = 0.1  # the longest time for which nobody asks what the server has lost


class OrderedReader(StreamReader):
    """From where the store says, one entry after the other."""

    _look_at = 0.0  # until then what we wait for may come without a look at everything else

    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message | Plain]:
        names = self._names
        self.starts = {}  # those of the last time have landed, or we would not be here
        known = self._known(positions)
        if wait > 0 and time.monotonic() < self._look_at and None not in known:
            with self.asking():
                return self._wait([place for place in known if place is not None], limit, wait)
        self._look_at = time.monotonic() + LOOK_SECONDS
        with self.asking():
            self.check_others(positions)
            states, anchors, found = self._look(names, known, limit)
            messages: list[Message | Plain] = []
            places = []
            for number, name in enumerate(names):
                # What was gone before we came is not ours to miss, and from then on everything is.
                place = known[number] or Place(FIRST, states[number].gone, len(names))
                entries = found.get(name.encode(), [])
                left = None if len(entries) == limit else len(entries)
                self._check(name, place, states[number], anchors[number])
                if known[number] is None:
                    self.starts = {**self.starts, number: str(place)}
                lost = self._compare(number, place, states[number], left)
                if lost is not None:
                    messages.append(lost)
                    place = Place.of(lost.position)
                messages += self._number(number, entries, place)
                if left is not None and messages and messages[-1].partition == number:
                    last = messages[-1]  # there are no more: now the count is known, whatever was deleted
                    at = Place.of(last.position)._replace(number=states[number].added)
                    messages[-1] = moved(last, str(at))
                places.append(place)
            return messages if messages or self.starts or wait <= 0 else self._wait(places, limit, wait)

    def _known(self, positions: Positions) -> list[Place | None]:
        """Where we are in each stream; None: it was never read."""
        found: list[Place | None] = []
        for number in range(len(self._names)):
            place = Place.of(positions[number]) if number in positions else None
            found.append(place if place is not None and place.streams == len(self._names) else None)
        return found

    def _wait(self, places: list[Place], limit: int, wait: float) -> list[Message | Plain]:
        """What comes next, as soon as it comes. What was lost meanwhile is missed at the next look: it is counted."""
        ids, block = [place.id for place in places], self.block(wait)
        found = by_name(self.wait_for("XREAD", "COUNT", limit, "BLOCK", block, "STREAMS", *self._names, *ids))
        messages: list[Message | Plain] = []
        for number, (name, place) in enumerate(zip(self._names, places, strict=True)):
            messages += self._number(number, found.get(name.encode(), []), place)
        return messages

    def _look(
        self, names: list[str], known: list[Place | None], limit: int
    ) -> tuple[list[Census], list[Any], dict[bytes, list[Entry]]]:
        """What the server has, where we are, and the next entries: of one moment, so that nobody trims in between."""
        pipe = self.server.pipeline(transaction=True)
        ids = {name: FIRST if place is None else place.id for name, place in zip(names, known, strict=True)}
        for name, id in ids.items():
            pipe.xinfo_stream(name)
            pipe.xrange(name, id, id)
        pipe.xread(ids, count=limit)  # type: ignore[arg-type]
        *states, found = pipe.execute(raise_on_error=False)
        if isinstance(found, redis.RedisError):
            raise found
        return [Census.of(state) for state in states[::2]], states[1::2], by_name(found)

    def _number(self, partition: int, entries: list[Entry], place: Place) -> list[Message | Plain]:
        """With the last of them, how far that is: what is between lands with it or not at all."""
        found = self.messages(partition, entries)
        if found:
            found[-1] = moved(found[-1], str(place.after(found[-1].position, len(found))))
        return found

    def settled(self, messages: Sequence[Message | Plain]) -> None:
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
            to = place._replace(number=None) if left != 0 else Place(census.deleted, census.added, place.streams)
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
            if missing < 0:  # more were read of it than it ever had
                return self.anew(number, place)._replace(position=str(place.after(place.id, missing)))
        return None
