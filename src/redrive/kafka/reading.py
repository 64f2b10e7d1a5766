"""Reading a topic: every partition in its order, from a place that the store keeps.

The partitions are assigned by ourselves and never by a group. A reader must never go on behind messages that it has
not read: where the broker no longer has them, or has others, it halts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from redrive.errors import Halted, SourceDown
from redrive.kafka import trouble
from redrive.kafka.messages import Decoder
from redrive.kafka.places import Place, anchor_of
from redrive.kafka.topic import log
from redrive.sources.port import Message, Plain, Positions, Reader, moved
from redrive.sources.refusal import LOST, refusal
from redrive.subscription import REFUSED

if TYPE_CHECKING:
    from redrive.kafka.topic import Topic

ASK_SECONDS_MAX = 5.0  # for which a broker may keep us waiting before it counts as down
WAIT_MIN = 0.001  # seconds; librdkafka counts in these, and would not wait for less
STEP_SECONDS = 0.2  # between two looks at whether it is down
COMMIT_SECONDS = 1.0  # between two courtesies
REFUSED_SECONDS = 30.0  # after one that was not accepted
TUNED = {
    "queued.max.messages.kbytes": 16_384,  # what was fetched and has not landed is fetched again by the next owner
    "queued.min.messages": 20_000,
    "fetch.queue.backoff.ms": 10,  # a full queue is empty again sooner than in the second that is the default
    "fetch.wait.max.ms": 100,  # what else we ask a broker waits behind the fetch for which it has no answer yet
}
# We join no group. But so long does closing wait for a commit that has found no coordinator yet.
NO_MEMBER = {"session.timeout.ms": 1_000, "heartbeat.interval.ms": 300}
_error_of = methodcaller("error")


class TopicReader(Reader):
    """All partitions of a topic, for the owner of the lease."""

    def __init__(self, topic: Topic, group: str) -> None:
        self.topic, self._decoder = topic, Decoder(topic)
        self.starts: dict[int, str] = {}
        self._places: dict[int, Place] = {}
        self._asked: Mapping[int, int] = {}  # where the partitions end, if this read has asked for it
        self._ends: dict[int, int] = {}  # by partition, the offset at which the last fetch found nothing more
        self._anchored: set[int] = set()  # partitions whose last message is read again, to compare it
        self._out_of_range: set[int] = set()
        self._lost: list[Message] = []
        self._early: list[Any] = []  # came while we asked for something else, and is the next to be read
        self._trouble: KafkaError | None = None
        self._look_at = self._commit_at = self._not_before = 0.0
        self._committed: dict[int, int] = {}
        self._has_complained = False
        settings = {
            "group.id": group, "enable.auto.commit": False, "enable.auto.offset.store": False,
            "auto.offset.reset": "error", "isolation.level": "read_committed", "enable.partition.eof": True,
            "check.crcs": True, "allow.auto.create.topics": False, "error_cb": self._on_error,
            "on_commit": self._on_commit, **NO_MEMBER,
        }  # fmt: skip
        try:
            self._consumer: Any = Consumer(topic.config({**TUNED, **topic.options, **settings}))
        except (KafkaException, TypeError, ValueError) as error:
            raise Halted(f"{topic.log}: {topic.told(error)}; look at options= of the topic") from None

    def close(self) -> None:
        """Let it go. `Consumer.close` leaves a group, where we are none, and may wait for a broker without end."""
        self._consumer = None

    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message | Plain]:
        """The next messages. Without a wait, none means: all that the broker has been asked for has been read."""
        try:
            self.starts, self._asked = {}, {}  # those of the last time have landed, or we would not be here
            if time.monotonic() >= self._look_at:
                self._look(positions)
            elif self._out_of_range:
                self._assign(self._out_of_range, self._places)
            lost, self._lost = self._lost, []
            found = lost or (self._wait(limit, wait) if wait > 0 else self._catch_up(limit))
            self._commit(positions, now=not found)
            return found
        except KafkaException as error:
            raise self._told(error.args[0]) from None

    def settled(self, messages: Sequence[Message | Plain]) -> None:
        """The place in the store is all there is to it."""

    # ------------------------------------------------------------------ messages

    def _wait(self, limit: int, wait: float) -> list[Message | Plain]:
        """Whatever comes first."""
        until = time.monotonic() + wait
        while not (found := self._poll(limit, wait)):
            wait = until - time.monotonic()
            if wait < WAIT_MIN or self._out_of_range:
                break
        return found

    def _catch_up(self, limit: int) -> list[Message | Plain]:
        """What there is by now, if it takes a while to come."""
        found = self._poll(limit, 0.0)
        if found:
            return found
        until, highs = time.monotonic() + ASK_SECONDS_MAX, self._asked or self._highs(self._places)
        while not (found or self._out_of_range or self._has_reached(highs)):
            if time.monotonic() >= until:
                raise SourceDown(f"{self.topic.log}: no answer from {self.topic.bootstrap} for {ASK_SECONDS_MAX:g} s")
            found = self._poll(limit, STEP_SECONDS)
        return found

    def _has_reached(self, highs: Mapping[int, int]) -> bool:
        """At the end of a partition may be offsets that are no messages: marks of transactions."""
        return not self._anchored and all(
            high <= self._places[partition].next or high <= self._ends.get(partition, 0)
            for partition, high in highs.items()
        )

    def _poll(self, limit: int, wait: float) -> list[Message | Plain]:
        consumer, raw = self._consumer, []
        if self._early:
            raw, self._early = self._early, []
        elif wait > 0:  # unlike consume, poll does not wait until it has as many as were asked for
            first = consumer.poll(wait)
            raw = [] if first is None else [first, *consumer.consume(limit - 1, 0)]
        else:
            raw = consumer.consume(limit, 0)
        found = self._take(raw) if raw else []
        if self._trouble is not None and not found:
            raise self._told(self._trouble)
        return found

    def _take(self, raw: list[Any]) -> list[Message | Plain]:
        good = raw
        if self._anchored or any(map(_error_of, raw)):
            good = [message for message in raw if self._is_new(message)]
        messages = self._decoder(good)
        for partition, index in {message.partition: index for index, message in enumerate(messages)}.items():
            last = good[index]
            place = Place(last.offset(), anchor_of(last), self.topic.generation)
            self._places[partition] = place
            messages[index] = moved(messages[index], str(place))
        return messages

    def _is_new(self, message: Any) -> bool:
        """Is it a message, and another than the last one that has landed?"""
        error = message.error()
        if error is not None:
            self._heard(message, error)
            return False
        return not (self._anchored and self._is_anchor(message))

    def _heard(self, message: Any, error: KafkaError) -> None:
        """Something that is no message."""
        partition, code = message.partition(), error.code()
        if code == KafkaError._PARTITION_EOF:
            self._ends[partition] = message.offset()
            self._anchored.discard(partition)  # compacted away: nothing to compare
        elif code in trouble.OUT_OF_RANGE:
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
        if message.offset() != place.last:
            return False
        if anchor_of(message) != place.anchor:
            why = f"the message at offset {place.last} is another than the one that has landed"
            raise trouble.another(self.topic, partition, why)
        return True

    # ------------------------------------------------------------------ partitions

    def _look(self, positions: Positions) -> None:
        """Which partitions there are; the new ones are read from their start."""
        topic = self.topic
        found = self._metadata()
        stored = self._stored(positions)
        if found.error is not None:
            raise trouble.told(topic, found.error) if stored else trouble.absent(topic, found.error)
        if gone := sorted(stored.keys() - found.partitions.keys()):
            raise trouble.another(topic, gone[0], f"it is not there; the topic has {len(found.partitions)} partitions")
        places = {**stored, **self._places}
        if new := found.partitions.keys() - places.keys():
            # Of a partition that was not there when we began, everything is ours to read; of others, what there is.
            lows = dict.fromkeys(new, 0) if places else self._offsets(new, OFFSET_BEGINNING)
            places |= {partition: Place.before(low, topic.generation) for partition, low in lows.items()}
            self.starts = {partition: str(places[partition]) for partition in new}
        self._assign((places.keys() - self._places.keys()) | self._out_of_range, places)
        self._look_at = time.monotonic() + topic.look_every

    def _metadata(self) -> Any:
        """What the broker says of the topic; that there is none is heard while we wait for it."""
        until = time.monotonic() + ASK_SECONDS_MAX
        while True:
            try:
                return self._consumer.list_topics(self.topic.name, timeout=STEP_SECONDS).topics[self.topic.name]
            except KafkaException:
                if (early := self._consumer.poll(0)) is not None:
                    self._early.append(early)  # not what we wait for, but it does not come again
                if self._trouble is not None or time.monotonic() > until:
                    raise

    def _stored(self, positions: Positions) -> dict[int, Place]:
        """Where we are, by partition; what was read of an earlier topic of the same name does not count."""
        places = {partition: Place.of(text) for partition, text in positions.items()}
        newest, now = max((place.generation for place in places.values()), default=0), self.topic.generation
        if newest > now:
            raise Halted(
                f"{self.topic.log}: generation={newest} was read before, {now} is what was there earlier; "
                f"declare Topic(…, generation={newest}) again, or {newest + 1} if the topic was made anew once more"
            )
        return {partition: place for partition, place in places.items() if place.generation == now}

    def _assign(self, partitions: Iterable[int], places: Mapping[int, Place]) -> None:
        """Begin to read them, or begin again."""
        wanted = sorted(partitions)
        self._early = [early for early in self._early if early.partition() not in wanted]  # they come again
        if again := [self._at(partition) for partition in wanted if partition in self._out_of_range]:
            self._consumer.incremental_unassign(again)
        lows = self._offsets(wanted, OFFSET_BEGINNING)
        self._asked = self._highs(places)
        assigned = []
        for partition in wanted:
            low = lows[partition]
            place = self._places[partition] = self._compared(partition, places[partition], low)
            if place.anchor and low < place.next:
                self._anchored.add(partition)
            assigned.append(self._at(partition, place.next - (partition in self._anchored)))
        self._out_of_range = set()
        if assigned:
            self._consumer.incremental_assign(assigned)

    def _compared(self, partition: int, place: Place, low: int) -> Place:
        """Has the broker deleted what we have not read?"""
        if low <= place.next:
            return place
        topic, why = self.topic, trouble.deleted(self.topic, partition, place.next, low)
        if topic.lost == "halt":
            raise trouble.too_late(topic, why, low)
        id = f"{self._decoder.prefix}{partition}/{place.next}-{low - 1}:lost"
        event = refusal(LOST, why, id=id, type=REFUSED, key=None, time_us=0)
        after = Place.before(low, topic.generation)
        self._lost.append(Message(partition, str(after), event, True))
        return after

    def _highs(self, places: Mapping[int, Place]) -> dict[int, int]:
        """Where the partitions end: never before the place that was read."""
        highs = self._offsets(places, OFFSET_END)
        for partition, place in places.items():
            if highs[partition] < place.next:
                why = f"offset {place.last} was read, but it ends at {highs[partition]}"
                raise trouble.another(self.topic, partition, why)
        return highs

    def _offsets(self, partitions: Iterable[int], which: int) -> dict[int, int]:
        """The first, or the one behind the last, as the broker says now: one question for all of them."""
        asked = [self._at(partition, which) for partition in partitions]
        found = self._consumer.offsets_for_times(asked, timeout=ASK_SECONDS_MAX) if asked else []
        for one in found:
            if one.error is not None:
                raise trouble.told(self.topic, one.error)
        return {one.partition: one.offset for one in found}

    def _at(self, partition: int, offset: int = OFFSET_BEGINNING) -> TopicPartition:
        return TopicPartition(self.topic.name, partition, offset)

    # ------------------------------------------------------------------ courtesy and trouble

    def _commit(self, positions: Positions, *, now: bool) -> None:
        """Tell Kafka how far we are, for tools that show a lag. Nothing depends on it."""
        if time.monotonic() < max(self._not_before, 0.0 if now else self._commit_at):
            return
        to = {partition: place.next for partition, place in self._stored(positions).items() if place.anchor}
        if to == self._committed:
            return
        self._committed, self._commit_at = to, time.monotonic() + COMMIT_SECONDS
        try:
            self._consumer.commit(offsets=[self._at(*one) for one in to.items()], asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], [])

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is None:
            return
        self._committed, self._not_before = {}, time.monotonic() + REFUSED_SECONDS
        if not self._has_complained:
            self._has_complained = True
            log.info("%s: lag tools see nothing: %s", self.topic.log, self.topic.told(error.str()))

    def _on_error(self, error: KafkaError) -> None:
        if trouble.concerns_all(error):
            self._trouble = error

    def _told(self, error: KafkaError) -> Exception:
        """The same in our words; callbacks that were not heard yet may have better ones. We are closed after this."""
        if error is not self._trouble:
            self._consumer.poll(0)
        return trouble.told(self.topic, self._trouble or error)
