"""Topics of tests: made by the test that uses them, under a name of their own, and deleted at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from redrive.errors import SourceDown
from redrive.testing.kafka import VARIABLE, kafka, on_brokers, write


class Answer:
    """The answer of brokers."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def result(self, timeout: float) -> None:
        if self._error is not None:
            raise self._error


class Admin:
    """Real brokers, as far as confluent_kafka's AdminClient shows them; they show a topic some time later."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.looks = 0
        self.refuses = False

    def create_topics(self, topics: Any, **options: Any) -> dict[str, Answer]:
        self.topics |= {one.topic: one.num_partitions for one in topics}
        self.looks = 0
        return {one.topic: Answer() for one in topics}

    def delete_topics(self, topics: list[str], **options: Any) -> dict[str, Answer]:
        if self.refuses:
            error = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
            return {topic: Answer(error) for topic in topics}
        return {topic: Answer() for topic in topics if self.topics.pop(topic)}

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.looks += 1
        partitions = dict.fromkeys(range(self.topics[topic] if self.looks > 1 else 0))
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=partitions)})


def test_topics_on_real_brokers_have_names_of_their_own_and_are_deleted() -> None:
    admin = Admin()
    topics = on_brokers("broker:9092", admin)
    one, other = topics.make("orders", 3), topics.make("orders")
    assert one != other
    assert one.startswith("orders-")
    assert admin.topics == {one: 3, other: 1}
    topics.delete_all()
    assert admin.topics == {}


def test_topic_that_cannot_be_deleted_is_an_error() -> None:
    admin = Admin()
    topics = on_brokers("broker:9092", admin)
    topic = topics.make("orders")
    admin.refuses = True
    with pytest.raises(SourceDown, match=topic):
        topics.delete_all()


def test_topic_on_the_mock_cluster_has_the_partitions_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is made by writing to it has another number of them: see Kafka.make."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with kafka() as topics:
        topic = topics.make("orders", 2)
        write(topics.bootstrap, [{"topic": topic, "partition": 1, "value": b"1"}])
        with pytest.raises((KafkaException, SourceDown)):
            write(topics.bootstrap, [{"topic": topic, "partition": 2, "value": b"1"}])
