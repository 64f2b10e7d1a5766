"""The source port: a broker whose messages land in a log of the store, each once, before anybody sees them.

A broker is read by one owner at a time. What it has read is written to the landing log together with how far that
was; the broker hears of it afterwards. From there on an event is like any other: its order, its letters and its
replays are those of a log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from redrive.errors import UsageError
from redrive.event import NewEvent

if TYPE_CHECKING:
    from redrive.sinks.port import Sink

Positions = Mapping[int, str]  # by partition, the last message that has landed, in the broker's own words


class Message(NamedTuple):
    """One message of a broker, as the event it becomes."""

    partition: int
    position: str
    event: NewEvent
    has_id: bool  # the producer gave it its id; else it is made of the position


class Plain(msgspec.Struct, frozen=True, gc=False):
    """A message with nothing special about it, and its event in the same piece; as good as a `Message`.

    Thousands are in memory at a time. The collector would look at each again and again, and passes these over.
    """

    partition: int
    position: str
    has_id: bool
    id: str
    type: str
    key: str | None
    time_us: int
    data_raw: bytes

    schema: ClassVar[int] = 1
    headers_raw: ClassVar[bytes | None] = None

    @property
    def event(self) -> NewEvent:
        """What it becomes."""
        return NewEvent(self.id, self.type, self.key, 1, self.time_us, None, self.data_raw, None, False)


def moved(message: Message | Plain, position: str) -> Message | Plain:
    """The same, with more about where it was."""
    if isinstance(message, Plain):
        return msgspec.structs.replace(message, position=position)
    return message._replace(position=position)


class Reader(ABC):
    """An open connection that reads for one owner. Every method may block, and none is called at the same time."""

    starts: Positions = MappingProxyType({})  # of partitions that the last read has met for the first time

    @abstractmethod
    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message | Plain]:
        """The next messages, waiting for the first of them for so many seconds at most.

        Without a wait, none means that all was read which the broker has by now: who runs until idle stops then.
        Halted if the broker has lost what it must not lose; SourceDown if it cannot be reached.
        """

    @abstractmethod
    def settled(self, messages: Sequence[Message | Plain]) -> None:
        """These have landed for good. May be lost, may be repeated."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""

    def hurry(self) -> None:  # noqa: B027  # most have nothing to hurry
        """A read that waits may end now; the one method that is called while another runs. May do nothing."""


class Source(ABC):
    """A broker's stream or topic, as a program names it: source, and target."""

    scheme: str
    name: str
    partitions: int
    ordered: bool  # does it arrive in the order in which each key was written?
    acknowledges: bool  # does the broker forget what it was told to have landed?
    has_warned = False  # once in the life of a program is enough
    behind: str | None = None  # the log that goes first: what is here is taken in while nobody has work there

    @abstractmethod
    def open(self, group: str) -> Reader:
        """Connect for reading, on behalf of this group."""

    def warnings(self) -> Sequence[str]:
        """What about the broker will hurt one day; asked when a worker starts."""
        return ()

    def examine(self) -> Sequence[str]:
        """The same for `redrive doctor`, which is to know whether the broker answers; SourceDown or Halted if not."""
        return self.warnings()

    def unacknowledged(self, group: str, most: int) -> Sequence[str]:
        """The ids of events that the broker would give this group again, so many at most; SourceDown if it is away.

        None where the place of the reader is in the store: it moves in the transaction in which a message lands.
        """
        return ()

    @property
    def log(self) -> str:
        """The log where its messages land."""
        return f"{self.scheme}:{self.name}"

    @property
    def outbox(self) -> str:
        """The log where what is to be sent to it waits, and the delivery that carries it."""
        return f"to:{self.scheme}:{self.name}"

    def sink(self, name: str) -> Sink:
        """Write to it, as a delivery of this name."""
        raise UsageError(f"{self!r} is a source, and nothing can be sent to it")

    @abstractmethod
    def check_order(self, order: str) -> None:
        """Refuse what cannot be promised of what comes from here."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
