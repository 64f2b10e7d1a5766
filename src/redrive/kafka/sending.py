"""Writing to a topic: what of a list may be under way together, and what came of each.

Of a key, one event is under way at a time: the producer keeps the order of what it sends, but not past a message that
the broker has refused. Reports that do not come are failures; what they were about is sent again, with the same id.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from redrive import cloudevents
from redrive.event import Event
from redrive.sinks.brokers import BrokerDown, TooLarge, attributes
from redrive.sinks.port import SomeFailed

if TYPE_CHECKING:
    from redrive.kafka.topic import Topic

JSON = ("content-type", b"application/json")
POLL_SECONDS = 0.1
GRACE_SECONDS = 2.0  # beyond its own timeout, for librdkafka to report
DEFAULTS = {
    "partitioner": "murmur2_random",  # that of other clients: they find a key where we have put it
    "message.max.bytes": 4_000_000,  # above what an event can have: the broker decides
    "linger.ms": 0,  # who sends a list has waited for company already
}
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD}

Numbered = tuple[int, Event[Any]]  # which of the list


class TopicSender:
    """One producer, used by one thread at a time."""

    def __init__(self, topic: Topic, log: str, timeout: float) -> None:
        self.topic, self._timeout = topic, timeout
        self._source = cloudevents.source_of(log)
        self._lock = threading.Lock()
        self._producer: Any = None

    def close(self) -> None:
        """What is under way is given up."""
        with self._lock:
            self._drop()

    def ping(self) -> None:
        """Does the cluster know the topic?"""
        with self._lock:
            try:
                known = self._made().list_topics(self.topic.name, timeout=self._timeout)
            except KafkaException as error:
                raise self._told(error.args[0]) from None
        found = known.topics[self.topic.name]
        if found.error is not None:
            raise self._told(found.error)

    def send(self, events: Sequence[Event[Any]]) -> None:
        """Wave after wave, each with one event of a key."""
        errors: dict[int, BaseException] = {}
        waiting: list[Numbered] = list(enumerate(events))
        with self._lock:
            while waiting:
                wave, waiting = _divide(waiting)
                failed = self._send_wave(wave)
                errors |= failed
                down = next((one for one in failed.values() if isinstance(one, BrokerDown)), None)
                stuck = {event.key for at, event in wave if at in failed}
                behind = BrokerDown(f"{self.topic.outbox}: not sent, because an event of its key was refused")
                errors |= {at: down or behind for at, event in waiting if down or event.key in stuck}
                waiting = [] if down else [one for one in waiting if one[1].key not in stuck]
        if len(errors) == len(events) and isinstance(errors[0], BrokerDown):
            raise errors[0]
        if errors:
            raise errors[0] if len(events) == 1 else SomeFailed(errors)

    # ------------------------------------------------------------ under the lock

    def _send_wave(self, wave: Sequence[Numbered]) -> dict[int, BaseException]:
        failed = self._produce(wave)
        refused = [one for one in wave if isinstance(failed.get(one[0]), TooLarge)]
        if len(wave) > 1 and refused:  # the broker judges what came to it together: which of them is it?
            for one in refused:
                del failed[one[0]]
                failed |= self._produce([one])
        return failed

    def _produce(self, wave: Sequence[Numbered]) -> dict[int, BaseException]:
        """Send these together; what came of those that were not delivered."""
        failed: dict[int, BaseException] = {}
        missing = {at for at, _ in wave}

        def report(at: int, error: KafkaError | None) -> None:
            missing.discard(at)
            if error is not None:
                failed[at] = self._told(error)

        try:
            producer = self._made()
            for at, event in wave:
                self._put(producer, at, event, report)
            deadline = time.monotonic() + self._timeout + GRACE_SECONDS
            while missing and time.monotonic() < deadline:
                producer.poll(POLL_SECONDS)
        except KafkaException as error:
            failed |= dict.fromkeys(missing, self._told(error.args[0]))
            missing.clear()
            self._drop()
        if missing:
            failed |= dict.fromkeys(missing, BrokerDown(f"{self.topic.outbox}: no report of what was sent"))
        if missing or any(isinstance(one, BrokerDown) for one in failed.values()):
            self._drop()  # it may be of no use any more, and nothing in its queues must arrive later
        return failed

    def _put(self, producer: Any, at: int, event: Event[Any], report: Any) -> None:
        headers = [(name, text.encode()) for name, text in attributes(event, self._source).items()]
        try:
            producer.produce(
                self.topic.name, event.data_raw, None if event.key is None else event.key.encode(),
                headers=[JSON, *headers], on_delivery=lambda error, _: report(at, error),
            )  # fmt: skip
        except KafkaException as error:
            if error.args[0].code() not in _TOO_LARGE:
                raise
            report(at, error.args[0])
        except BufferError:  # librdkafka's queue is full: nobody takes anything
            report(at, KafkaError(KafkaError._QUEUE_FULL))

    def _made(self) -> Any:
        if self._producer is None:
            ours = {"enable.idempotence": True, "acks": "all", "message.timeout.ms": round(self._timeout * 1_000)}
            more = {name: value for name, value in DEFAULTS.items() if name not in self.topic.options}
            self._producer = Producer(self.topic.config({**more, **ours}))
        return self._producer

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.poll(0)

    def _told(self, error: KafkaError) -> BrokerDown | TooLarge:
        text = f"{self.topic.outbox}: {error.name()}: {self.topic.told(error.str())}"
        return TooLarge(text) if error.code() in _TOO_LARGE else BrokerDown(text)


def _divide(waiting: Iterable[Numbered]) -> tuple[list[Numbered], list[Numbered]]:
    """The first of each key, and those behind them."""
    first: list[Numbered] = []
    rest: list[Numbered] = []
    keys: set[str] = set()
    for one in waiting:
        key = one[1].key
        if key is None:
            first.append(one)
        elif key in keys:
            rest.append(one)
        else:
            keys.add(key)
            first.append(one)
    return first, rest
