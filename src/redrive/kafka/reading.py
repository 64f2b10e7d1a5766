"""Reading a topic: every partition in its order, from a place that the store keeps.

The partitions are assigned by ourselves and never by a group. A reader must never go on behind messages that it has
not read: where the broker no longer has them, or has others, it halts.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from redrive.errors import Halted, SourceDown, StoreError
from redrive.kafka.messages import Decoder
from redrive.kafka.topic import log
from redrive.sources.port import Message, Positions, Reader
from redrive.sources.refusal import LOST, refusal
from redrive.subscription import REFUSED

if TYPE_CHECKING:
    from redrive.kafka.topic import Topic

ASK_SECONDS_MAX = 5.0  # for which a broker may keep us waiting before it counts as down
STEP_SECONDS = 0.2  # between two looks at whether it is down
COMMIT_SECONDS = 1.0  # between two courtesies
TUNED = {
    "queued.max.messages.kbytes": 16_384,  # what was fetched and has not landed is fetched again by the next owner
    "queued.min.messages": 20_000,
    "fetch.queue.backoff.ms": 10,  # a full queue is empty again sooner than in the second that is the default
    "fetch.wait.max.ms": 100,  # a broker holds a fetch that finds nothing: so soon is the end of a partition known
}

_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, 100}  # 100: its id
_OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION,
    KafkaError._SSL, KafkaError.UNSUPPORTED_SASL_MECHANISM,
}  # fmt: skip


class Place(NamedTuple):
    """How far a partition was read: the next offset, and what the message before it was."""

    next: int
    anchor: str = ""  # empty: nothing of it was read yet
    generation: int = 1

    @classmethod
    def of(cls, text: str) -> Place:
        """As the store has it."""
        generation, offset, anchor = text.split(";", 2)
        return cls(int(offset), anchor, int(generation))

    def __str__(self) -> str:
        return f"{self.generation};{self.next};{self.anchor}"


def anchor_of(message: Any) -> str:
    """By what a message is known again."""
    check = zlib.crc32(message.value() or b"", zlib.crc32(message.key() or b""))
    return f"{message.timestamp()[1]};{check:08x}"


class TopicReader(Reader):
    """All partitions of a topic, for the owner of the lease."""

    def __init__(self, topic: Topic, group: str) -> None:
        self.topic, self._decoder = topic, Decoder(topic)
        self.starts: dict[int, str] = {}
        self._places: dict[int, Place] = {}
        self._anchored: set[int] = set()  # partitions whose last message is read again, to compare it
        self._unfinished: set[int] = set()  # partitions whose end we have not seen
        self._out_of_range: set[int] = set()
        self._lost: list[Message] = []
        self._trouble: KafkaError | None = None
        self._look_at = self._commit_at = 0.0
        self._committed: dict[int, int] = {}
        self._complained = False
        settings = {
            "group.id": group, "enable.auto.commit": False, "enable.auto.offset.store": False,
            "auto.offset.reset": "error", "isolation.level": "read_committed", "enable.partition.eof": True,
            "check.crcs": True, "allow.auto.create.topics": False, "error_cb": self._on_error,
            "on_commit": self._on_commit,
        }  # fmt: skip
        try:
            self._consumer = Consumer(topic.config({**TUNED, **topic.options, **settings}))
        except (KafkaException, TypeError, ValueError) as error:
            raise Halted(f"{topic.log}: {topic.told(error)}; look at options= of the topic") from None

    def close(self) -> None:
        """What was committed as a courtesy is on its way; the broker may or may not hear of it."""
        self._consumer.close()

    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message]:
        """The next messages; none only when the end of every partition was seen, or after the wait."""
        try:
            self.starts = {}  # those of the last time have landed, or we would not be here
            if time.monotonic() >= self._look_at:
                self._look(positions)
            elif self._out_of_range:
                self._assign(self._out_of_range, self._places)
            self._commit(positions, now=wait > 0)
            found, self._lost = self._lost, []
            return found or self._next(limit, wait)
        except KafkaException as error:
            raise self._told(error.args[0]) from None

    def settled(self, messages: Sequence[Message]) -> None:
        """The place in the store is all there is to it."""

    # ------------------------------------------------------------------ messages

    def _next(self, limit: int, wait: float) -> list[Message]:
        consumer, patient = self._consumer, wait > 0
        until = time.monotonic() + (wait if patient else ASK_SECONDS_MAX)
        raw = consumer.consume(limit, 0)
        while True:
            if raw and (messages := self._take(raw)):
                return messages
            if self._trouble is not None:
                raise self._told(self._trouble)
            if not patient:
                self._finish()
                if not self._unfinished:
                    return []
            left = until - time.monotonic()
            if left <= 0 or self._out_of_range:
                break
            first = consumer.poll(min(left, STEP_SECONDS))  # unlike consume, it does not wait until it has them all
            raw = [] if first is None else [first, *consumer.consume(limit - 1, 0)]
        if patient or self._out_of_range:
            return []
        raise SourceDown(f"{self.topic.log}: no answer from {self.topic.bootstrap} for {ASK_SECONDS_MAX:g} s")

    def _take(self, raw: Iterable[Any]) -> list[Message]:
        good, unfinished = [], self._unfinished
        for message in raw:
            error = message.error()
            if error is None:
                good.append(message)
                unfinished.add(message.partition())
            else:
                self._heard(message, error)
        if self._anchored:
            good = [message for message in good if not self._is_anchor(message)]
        decode = self._decoder
        messages = [decode(message) for message in good]
        for partition, index in {message.partition: index for index, message in enumerate(messages)}.items():
            last = good[index]
            place = Place(last.offset() + 1, anchor_of(last), self.topic.generation)
            self._places[partition] = place
            messages[index] = messages[index]._replace(position=str(place))
        return messages

    def _heard(self, message: Any, error: KafkaError) -> None:
        """Something that is no message."""
        partition, code = message.partition(), error.code()
        if code == KafkaError._PARTITION_EOF:
            self._unfinished.discard(partition)
        elif code in _OUT_OF_RANGE:
            self._out_of_range.add(partition)
        else:
            self._trouble = error

    def _is_anchor(self, message: Any) -> bool:
        """Is it the last one that has landed? Then it must be the one that has."""
        partition = message.partition()
        if partition not in self._anchored:
            return False
        self._anchored.discard(partition)
        place = self._places[partition]
        if message.offset() != place.next - 1:  # compacted meanwhile: nothing to compare
            return False
        if anchor_of(message) != place.anchor:
            raise self._another(partition, f"the message at {place.next - 1} is another than the one that has landed")
        return True

    def _finish(self) -> None:
        """Whose end is reached, as far as the broker has told."""
        for partition in list(self._unfinished - self._anchored):
            _, high = self._consumer.get_watermark_offsets(self._at(partition), cached=True)
            if 0 <= high <= self._places[partition].next:
                self._unfinished.discard(partition)

    # ------------------------------------------------------------------ partitions

    def _look(self, positions: Positions) -> None:
        """Which partitions there are; the new ones are read from their start."""
        topic, name = self.topic, self.topic.name
        found = self._consumer.list_topics(name, timeout=ASK_SECONDS_MAX).topics[name]
        places = self._stored(positions)
        is_first = not places
        if found.error is not None:
            raise self._told(found.error) if places else self._absent(found.error)
        if gone := sorted(places.keys() - found.partitions.keys()):
            raise self._another(gone[0], f"it has only {len(found.partitions)} partitions now")
        new = found.partitions.keys() - self._places.keys()
        for partition in new - places.keys():
            # Of one that was not there when we began, everything is ours to read; what was gone before is not.
            low, _ = self._watermarks(partition)
            places[partition] = Place(low if is_first else 0, "", topic.generation)
            self.starts[partition] = str(places[partition])
        for partition, place in self._places.items():
            _, high = self._consumer.get_watermark_offsets(self._at(partition), cached=True)
            if 0 <= high < place.next:
                raise self._another(partition, f"{place.next - 1} was read, but it ends at {high - 1}")
        self._assign(new | self._out_of_range, {**places, **self._places})
        self._look_at = time.monotonic() + topic.look_every

    def _stored(self, positions: Positions) -> dict[int, Place]:
        """Where we are, by partition; what was read of an earlier topic of the same name does not count."""
        places = {partition: Place.of(text) for partition, text in positions.items()}
        newest, now = max((place.generation for place in places.values()), default=0), self.topic.generation
        if newest > now:
            raise Halted(f"{self.topic.log}: generation={newest} was read before, and {now} comes before that")
        return {partition: place for partition, place in places.items() if place.generation == now}

    def _assign(self, partitions: Iterable[int], places: Mapping[int, Place]) -> None:
        assigned = []
        for partition in sorted(partitions):
            if partition in self._out_of_range:
                self._consumer.incremental_unassign([self._at(partition)])
            low, high = self._watermarks(partition)
            place = self._compared(partition, places[partition], low, high)
            offset = place.next
            if place.anchor and low < place.next:
                offset -= 1
                self._anchored.add(partition)
            self._places[partition] = place
            if offset < high:
                self._unfinished.add(partition)
            assigned.append(self._at(partition, offset))
        self._out_of_range = set()
        if assigned:
            self._consumer.incremental_assign(assigned)

    def _compared(self, partition: int, place: Place, low: int, high: int) -> Place:
        """Has the broker lost what we have read, or deleted what we have not?"""
        topic = self.topic
        if high < place.next:
            raise self._another(partition, f"{place.next - 1} was read, but it ends at {high - 1}")
        if low <= place.next:
            return place
        gone = f"offsets {place.next} to {low - 1} ({low - place.next:,} messages)"
        why = f"partition {partition} of topic {topic.name!r}: {gone} were deleted before they were read"
        if topic.lost == "halt":
            raise Halted(
                f"{topic.log}: {why}. Its retention is shorter than we were away. Bring them back; or say "
                f'Topic(…, lost="letter") to have a letter in their place and go on with {low}'
            )
        id = f"{self._decoder.prefix}{partition}/{place.next}-{low - 1}:lost"
        event = refusal(LOST, why, id=id, type=REFUSED, key=None, time_us=0)
        place = Place(low, "", topic.generation)
        self._lost.append(Message(partition, str(place), event, True))
        return place

    def _watermarks(self, partition: int) -> tuple[int, int]:
        return self._consumer.get_watermark_offsets(self._at(partition), timeout=ASK_SECONDS_MAX)

    def _at(self, partition: int, offset: int = -1001) -> TopicPartition:
        return TopicPartition(self.topic.name, partition, offset)

    # ------------------------------------------------------------------ courtesy

    def _commit(self, positions: Positions, *, now: bool) -> None:
        """Tell Kafka how far we are, for tools that show a lag. Nothing depends on it."""
        if not now and time.monotonic() < self._commit_at:
            return
        self._commit_at = time.monotonic() + COMMIT_SECONDS
        to = {partition: place.next for partition, place in self._stored(positions).items() if place.anchor}
        if to == self._committed:
            return
        self._committed = to
        try:
            self._consumer.commit(offsets=[self._at(*one) for one in to.items()], asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], [])

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is not None and not self._complained:
            self._complained = True
            log.info("%s: lag tools see nothing: %s", self.topic.log, self.topic.told(error.str()))

    # ------------------------------------------------------------------ trouble

    def _on_error(self, error: KafkaError) -> None:
        """What concerns the whole client; single connections come and go."""
        if error.fatal() or error.code() == KafkaError._ALL_BROKERS_DOWN or error.code() in _REFUSED:
            self._trouble = error

    def _told(self, error: KafkaError) -> StoreError:
        """The same in our words."""
        topic, code, said = self.topic, error.code(), self.topic.told(error.str())
        if code in _GONE:
            return Halted(
                f"{topic.log}: topic {topic.name!r} was read, and is not there any more ({said}). Bring it back; if it "
                f"was made anew, Topic(…, generation={topic.generation + 1}) reads it from its start"
            )
        if code in _REFUSED:
            return Halted(f"{topic.log}: {topic.bootstrap} does not let us: {said}. Look at options= and its ACLs")
        if code == KafkaError._TRANSPORT or code == KafkaError._TIMED_OUT:
            self._consumer.poll(0)  # what happened is told there, in more words
            more = self._trouble
            if more is not None and more.code() in _REFUSED:
                return self._told(more)
        return SourceDown(f"{topic.log}: {topic.bootstrap} cannot be read: {said}")

    def _absent(self, error: KafkaError) -> StoreError:
        topic = self.topic
        if error.code() in _GONE:
            return SourceDown(f"{topic.log}: there is no topic {topic.name!r} at {topic.bootstrap}; it is waited for")
        return self._told(error)

    def _another(self, partition: int, why: str) -> Halted:
        topic = self.topic
        return Halted(
            f"{topic.log}: partition {partition} of topic {topic.name!r}: {why}. Was the topic made anew, or a backup "
            f"restored? Bring back what it had; or Topic(…, generation={topic.generation + 1}) reads it from its start "
            f"as another topic"
        )
