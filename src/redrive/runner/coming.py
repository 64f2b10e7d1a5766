"""What comes next in a handler's log: read while the events before it are called, unpacked while they are committed.

The first needs a core, the second Python's lock, which nobody has while a commit waits for the disk. So that is when
reading begins, too: a thread that asks for the lock beside the calls gets it when they are over. Who unpacks is the
thread of the event loop, if it has nothing else to do: what another core has made is slow to be read by this one.
What was read stays true: events do not change, and those that are appended later lie behind. It is used only where it
goes on from the place that the reader has reached, and whoever goes elsewhere reads again.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from redrive.errors import RedriveError
from redrive.event import Event
from redrive.store.ahead import Ahead, Lookout, Offer
from redrive.store.packed import Packed, unpacked
from redrive.types import EventTypes

BYTES_MAX = 4_000_000  # of data that is read ahead
SAMPLE = 16  # events whose sizes are looked at
SPARSE = 2.0  # positions per event, from which on an index finds them sooner

Read = Callable[[int, int], list[Event[Any]]]  # above a position, so many
ReadAhead = Callable[[int, int, int | None], Packed | None]  # about so many, among so many positions if that is known
Ask = Callable[[Callable[[], None]], None]  # have something done by who may have time for it; from any thread


class Piece:
    """A stretch of the log on its way: asked for, read, unpacked. One step after the other writes it."""

    __slots__ = ("above", "asked", "end", "events", "packed")

    def __init__(self, asked: int, above: int = -1) -> None:
        self.asked, self.above = asked, above  # so many events above this position; below 0: it was not read
        self.packed: Packed | None = None
        self.end: int | None = None  # the last position of it, if there is probably more behind
        self.events: list[Event[Any]] = []


Underway = tuple[Piece, Ahead[None]]  # and who says that the step is done


class Coming:
    """Events that were read before there was room for them."""

    def __init__(self, lookout: Lookout, read_ahead: ReadAhead, types: EventTypes, ask: Ask | None = None) -> None:
        """`ask`: the event loop; without one the lookout unpacks, too."""
        self._lookout, self._read_ahead, self._types, self._ask = lookout, read_ahead, types, ask
        self._reading: Underway | None = None
        self._unpacking: Underway | None = None  # lies before the one that is being read
        self._events: list[Event[Any]] = []
        self._above = 0  # they are all that lies above this position, up to the last of them
        self._goes_on = False  # there was as much as was asked for, so there is probably more
        self._stride = SPARSE  # positions per event, lately
        self._room, self._count_max = 0, 0  # what there was room for lately, and how many events have BYTES_MAX

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
        """Begin to read what follows these, which there was room for, if it is worth it and was not begun before."""
        if not (taken and self._goes_on and room >= self._lookout.least):
            self._room = 0
            return
        sample = [len(event.data_raw) for event in taken[:SAMPLE]]
        self._stride = (taken[-1].position - taken[0].position + 1) / len(taken)
        self._room, self._count_max = room, BYTES_MAX * len(sample) // max(1, sum(sample))
        wanted = _more(room) - len(self._events)
        if self._reading is None and 0 < wanted <= self._count_max:
            piece = Piece(wanted, self._end)
            self._reading = piece, self._lookout.ahead(lambda: self._read(piece))

    def unpack(self) -> None:
        """A commit is about to wait: what was read is unpacked meanwhile, and what follows it is begun to be read."""
        if self._reading is None or self._unpacking is not None:
            return
        (piece, read), room = self._reading, self._room
        self._unpacking, self._reading = (piece, self._begin_unpacking(piece, read)), None
        wanted = _more(room) - (len(self._events) + piece.asked - room)  # those are left if there is as much room again
        if self._lookout.is_beside and room and 0 < wanted <= self._count_max:
            following = Piece(wanted)
            self._reading = following, self._lookout.ahead(lambda: self._read_behind(piece, following))

    def _begin_unpacking(self, piece: Piece, read: Ahead[None]) -> Ahead[None]:
        def unpack() -> None:
            self._unpack(piece, read)

        if self._ask is None:
            return self._lookout.ahead(unpack)
        offer = Offer(unpack)
        self._ask(lambda: offer.take_up() if read.is_there else None)
        return offer

    @property
    def _end(self) -> int:
        return self._events[-1].position if self._events else self._above

    def _hear(self) -> None:
        """Add what is unpacked, or was read before, to the events, if it lies right behind them."""
        if self._unpacking is not None:
            (piece, step), self._unpacking = self._unpacking, None
        elif self._reading is not None:
            (piece, step), self._reading = self._reading, None
        else:
            return
        try:
            step.result()
        except RedriveError:  # it is read when there is room, and whoever reads it then hears of it
            piece.packed = None
        events = piece.events or unpacked(piece.packed, self._types)  # the piece stays as it is: it may be looked at
        if piece.above != self._end:  # somebody went elsewhere meanwhile
            events = []
        self._events += events
        self._goes_on = _is_enough(len(events), piece)

    def _unpack(self, piece: Piece, read: Ahead[None]) -> None:
        read.result()  # its error, if there was one
        piece.events, piece.packed = unpacked(piece.packed, self._types), None

    # ------------------------------------------------------------ where the lookout is

    def _read(self, piece: Piece) -> None:
        span = ceil(piece.asked * self._stride) if self._stride < SPARSE else None
        piece.packed = packed = self._read_ahead(piece.above, piece.asked, span)
        if packed is not None and _is_enough(packed.size, piece):
            piece.end = packed.last

    def _read_behind(self, piece: Piece, following: Piece) -> None:
        if piece.end is not None:  # else it was the end of the log
            following.above = piece.end
            self._read(following)


def _is_enough(count: int, piece: Piece) -> bool:
    """Is there probably more behind these? How many lie among some positions is not known before."""
    return 2 * count >= piece.asked


def _more(room: int) -> int:
    """How much room there will be varies."""
    return room + room // 8
