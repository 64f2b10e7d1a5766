"""Kafka topics as targets: what is delivered there is read back as the event it was, in key order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from oddities import ODD

from redrive import App, Event, Sink, UsageError, retry
from redrive.kafka import Topic
from redrive.kafka.sending import TopicSender
from redrive.sinks import SomeFailed
from redrive.sinks.brokers import BrokerDown, TooLarge
from redrive.testing import Harness
from redrive.testing.contracts import SinkContract
from redrive.testing.fakes import make_event
from redrive.testing.kafka import Kafka
from redrive.types import EventTypes

NUMBERS = itertools.count()
PARTITIONS = 2
QUICK = {"fetch.wait.max.ms": 5, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    made = Kafka()
    yield made
    made.close()


def messages(cluster: Kafka, topic: str, partitions: int = PARTITIONS) -> list[Any]:
    """All that a topic holds, partition after partition."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "look", "log_level": 0, "fetch.wait.max.ms": 5}
    )
    found = []
    try:
        for partition in range(partitions):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
            if high > low:
                consumer.assign([TopicPartition(topic, partition, low)])
            for _ in range(low, high):
                message = consumer.poll(60)
                assert message is not None and message.error() is None
                found.append(message)
    finally:
        consumer.close()
    return found


def id_of(message: Any) -> str:
    return str(dict(message.headers())["ce_id"].decode())


class TestTopic(SinkContract):
    """The contract of every sink."""

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: Kafka) -> None:
        self.cluster, self.topic = cluster, f"out{next(NUMBERS)}"
        cluster.make(self.topic, 1)

    def make_sink(self) -> Sink:
        options = QUICK | {"sasl.username": "ada", "sasl.password": "hunter2"}
        sink = Topic(self.cluster.bootstrap, self.topic, options=options).sink("mirror")
        sink.log, sink.timeout = "orders", 6.0
        return sink

    def delivered(self) -> list[str]:
        return [id_of(message) for message in messages(self.cluster, self.topic, 1)]

    def secrets(self) -> list[str]:
        return ["hunter2"]

    def break_down(self) -> None:
        self.cluster.stop()

    def recover(self) -> None:
        self.cluster.start()


@pytest.fixture
def topic(cluster: Kafka) -> Topic:
    made = Topic(cluster.bootstrap, f"out{next(NUMBERS)}", options=QUICK)
    cluster.make(made.name, PARTITIONS)
    return made


@pytest.fixture
def app() -> App:
    return App("/nonexistent/x.db", name="shop")


def test_an_outbox_is_carried_to_a_topic_in_key_order(app: App, cluster: Kafka, topic: Topic) -> None:
    outbox = app.outbox(topic)
    with Harness(app) as harness:
        sent = [outbox.append("order.placed", n, key=f"k{n % 3}").id for n in range(100)]
        harness.run_until_idle()
        found = messages(cluster, topic.name)
        assert sorted(map(id_of, found)) == sorted(sent)
        for key in range(3):
            mine = [message for message in found if message.key() == f"k{key}".encode()]
            assert [id_of(message) for message in mine] == sent[key::3]
            assert len({message.partition() for message in mine}) == 1


def test_from_topic_to_topic_an_event_stays_what_it_is(app: App, cluster: Kafka, topic: Topic) -> None:
    log, seen = app.log("orders"), []
    app.deliver(log, to=topic, start="first")
    app.on(topic, name="look")(lambda event, ctx: seen.append(event))
    with Harness(app) as harness:
        sent = [harness.append(log, "order.placed", **{"data": 0, **one}) for one in ODD]
        for _ in range(100):  # the mock answers a fetch when it likes
            harness.run_until_idle()
            if len(seen) == len(sent):
                break
        assert harness.letters() == []

    def content(event: Any) -> Any:
        return event.id, event.type, event.key, event.schema, event.time_us, event.headers, event.data_raw

    assert sorted(map(content, seen), key=str) == sorted(map(content, sent), key=str)


def test_nothing_of_a_key_goes_past_an_event_that_is_too_large(cluster: Kafka, topic: Topic) -> None:
    small = Topic(cluster.bootstrap, topic.name, options=QUICK | {"message.max.bytes": 5_000})
    events = [make_event("x", "y" * (9_000 if n == 2 else 1), key=f"k{n % 2}", id=f"id-{n}") for n in range(8)]
    sender = TopicSender(small, "orders", 20.0)
    with pytest.raises(SomeFailed) as caught:
        sender.send(events)
    sender.close()
    assert set(caught.value.errors) == {2, 4, 6}
    assert isinstance(caught.value.errors[2], TooLarge)
    assert {id_of(message) for message in messages(cluster, topic.name)} == {"id-0", "id-1", "id-3", "id-5", "id-7"}


def test_what_the_broker_refuses_together_is_sent_alone_to_see_which_it_is(topic: Topic) -> None:
    sender = TopicSender(topic, "orders", 20.0)
    sent: list[list[int]] = []

    def produce(wave: Any) -> dict[int, BaseException]:
        sent.append([at for at, _ in wave])
        return {at: TooLarge("together") for at, _ in wave} if 3 in sent[-1] else {}

    sender._produce = produce  # type: ignore[method-assign]
    with pytest.raises(SomeFailed) as caught:
        sender.send([make_event("x", n, key=f"k{n}", id=f"id-{n}") for n in range(5)])
    assert sent == [[0, 1, 2, 3, 4], [0], [1], [2], [3], [4]]
    assert set(caught.value.errors) == {3}


def test_a_topic_that_takes_nothing_parks_the_outbox(app: App, cluster: Kafka, topic: Topic) -> None:
    outbox = app.outbox(topic, retry=retry(attempts=20, wait="1s", wait_max="5s"))
    with Harness(app) as harness:
        cluster.refuse(topic.name, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        sent = [outbox.append("x", n, key="k").id for n in range(5)]
        harness.run_until_idle()
        assert {letter.error_type for letter in harness.letters() if letter.attempts} == {
            "redrive.sinks.brokers.BrokerDown"
        }
        cluster.refuse(topic.name, 0)
        harness.advance("10m")
        first = list(dict.fromkeys(map(id_of, messages(cluster, topic.name))))
        assert first == sent


def test_the_schema_of_a_typed_event_comes_along(cluster: Kafka, topic: Topic) -> None:
    event: Event[Any] = Event(1, "one", "order.placed", "a", 1, 3, 1_000_000, None, b"1", EventTypes())
    sender = TopicSender(topic, "orders", 20.0)
    sender.send([event])
    sender.close()
    (message,) = messages(cluster, topic.name)
    assert dict(message.headers())["ce_redriveschema"] == b"3"
    assert dict(message.headers())["content-type"] == b"application/json"


def test_a_cluster_that_does_not_answer_is_down(cluster: Kafka, topic: Topic) -> None:
    cluster.stop()
    sender = TopicSender(topic, "orders", 0.5)
    try:
        with pytest.raises(BrokerDown):
            sender.send([make_event("x", 1, key="k")])
        with pytest.raises(BrokerDown):
            sender.ping()
    finally:
        cluster.start()
        sender.close()


def test_what_cannot_be_read_back_is_not_sent(app: App, cluster: Kafka) -> None:
    with pytest.raises(UsageError, match="Make another one"):
        app.outbox(Topic(cluster.bootstrap, "out", format="raw"))
