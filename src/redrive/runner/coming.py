"""What comes next in a handler's log: read while the events before it are called, unpacked while they are committed.

The first needs a core, the second Python's lock, which nobody has while a commit waits for the disk. What was read
stays true: events do not change, and those that are appended later lie behind. It is used only where it goes on from
the place that the reader has reached, and whoever goes back reads again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redrive.errors import RedriveError
from redrive.event import Event
from redrive.store.ahead import Ahead, Lookout
from redrive.store.packed import Packed, unpacked
from redrive.types import EventTypes

BYTES_MAX = 4_000_000  # of data that is read ahead
SAMPLE = 16  # events whose sizes are looked at

Read = Callable[[int, int], list[Event[Any]]]  # above a position, so many
ReadAhead = Callable[[int, int], Packed | None]


class Coming:
    """Events that were read before there was room for them."""

    def __init__(self, lookout: Lookout, read_ahead: ReadAhead, types: EventTypes) -> None:
        self._lookout, self._read_ahead, self._types = lookout, read_ahead, types
        self._begun: Ahead[Packed | None] | None = None
        self._unpacked: Ahead[list[Event[Any]]] | None = None
        self._asked = 0  # for how many
        self._events: list[Event[Any]] = []
        self._above = 0  # they are all that lies above this position, up to the last of them
        self._goes_on = False  # there was as much as was asked for, so there is probably more

    def take(self, position: int, room: int, read: Read) -> list[Event[Any]]:
        """The next events above a position, at most so many; if none of them was read before, they are read now."""
        self._hear()
        events = self._events
        if position < self._above:  # somebody went back
            events = []
        elif events and events[0].position <= position:
            events = [event for event in events if event.position > position]
        taken, self._events = events[:room], events[room:]
        if not taken:
            taken = read(position, room)
            self._goes_on = len(taken) == room
        self._above = taken[-1].position if taken else position
        return taken

    def begin(self, taken: list[Event[Any]], room: int) -> None:
        """Begin to read what follows these, which there was room for, if it is worth it."""
        if not (taken and self._goes_on and room >= self._lookout.least):
            return
        wanted = room + room // 8 - len(self._events)  # a little more: how much room there will be varies
        sample = [len(event.data_raw) for event in taken[:SAMPLE]]
        if wanted > 0 and wanted * sum(sample) <= BYTES_MAX * len(sample):
            above = self._events[-1].position if self._events else self._above
            self._asked = wanted
            self._begun = self._lookout.ahead(lambda: self._read_ahead(above, wanted))

    def unpack(self) -> None:
        """A commit is about to wait: what was read may be unpacked meanwhile."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._unpacked = self._lookout.ahead(lambda: unpacked(begun.result(), self._types))

    def _hear(self) -> None:
        self.unpack()
        if self._unpacked is not None:
            unpacking, self._unpacked = self._unpacked, None
            try:
                found = unpacking.result()
            except RedriveError:  # it is read when there is room, and whoever reads it then hears of it
                found = []
            self._events += found
            self._goes_on = len(found) == self._asked
