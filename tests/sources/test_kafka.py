"""Kafka topics as sources: each message lands once, in the order of its partition, or becomes a letter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from redrive import App, Event, Tx
from redrive.kafka import Topic
from redrive.testing import Harness
from redrive.testing.kafka import Kafka, write

PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    made = Kafka()
    yield made
    made.close()


class Shop:
    """An app on one topic that writes down what it was given."""

    def __init__(self, bootstrap: str, name: str, store: str | None, **how: Any) -> None:
        self.app = App("/nonexistent/x.db", name="shop")
        self.topic = Topic(bootstrap, name, **how)

        @self.app.projection(self.topic, tables={"given": "id TEXT, type TEXT, key TEXT, said TEXT"})
        def write_down(event: Event[Any], tx: Tx) -> None:
            tx.execute(
                "INSERT INTO given VALUES (:id, :type, :key, :said)",
                {"id": event.id, "type": event.type, "key": event.key, "said": str(event.data)},
            )

        self.harness = Harness(self.app, store)

    def run(self) -> None:
        self.harness.run_until_idle()

    @property
    def given(self) -> list[Any]:
        with self.app.reader() as tx:
            return [tuple(row) for row in tx.execute("SELECT id, key, said FROM given").fetchall()]


class Broker:
    """A topic of this test's own."""

    def __init__(self, cluster: Kafka, topic: str) -> None:
        self.cluster, self.topic, self.said = cluster, topic, 0

    def say(self, count: int) -> None:
        """Numbers, by turns in both partitions, each with a key of its own."""
        write(self.cluster.bootstrap, [
            {"topic": self.topic, "partition": n % PARTITIONS, "key": f"k{n % PARTITIONS}", "value": str(n)}
            for n in range(self.said, self.said + count)
        ])  # fmt: skip
        self.said += count


@pytest.fixture
def broker(cluster: Kafka, request: pytest.FixtureRequest) -> Broker:
    topic = f"t{abs(hash(request.node.name))}"
    cluster.make(topic, PARTITIONS)
    return Broker(cluster, topic)


@pytest.fixture
def shops(broker: Broker, backend: str | None) -> Iterator[Any]:
    made: list[Shop] = []

    def make(**how: Any) -> Shop:
        made.append(Shop(broker.cluster.bootstrap, broker.topic, backend, **how))
        return made[-1]

    yield make
    for shop in made:
        assert [verdict for verdict in shop.app.operate().verify() if not verdict.sound] == []
        shop.harness.close()


def test_every_message_is_applied_once_and_as_it_was_written(shops: Any, broker: Broker) -> None:
    shop = shops()
    broker.say(30)
    shop.run()
    shop.run()
    assert sorted(shop.given) == sorted((f"{broker.topic}/{n % 2}/{n // 2}", f"k{n % 2}", str(n)) for n in range(30))
