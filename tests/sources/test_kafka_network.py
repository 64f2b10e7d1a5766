"""A topic behind a bad network: each message lands once, each partition in its order, and no attempt is spent."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from redrive import App, Event, Tx
from redrive.kafka import Topic
from redrive.kafka.reading import TopicReader
from redrive.testing import Harness
from redrive.testing.kafka import Kafka, KafkaProxy, write

pytestmark = pytest.mark.sqlite("the network is the broker's; what lands is committed by the same statements")

PARTITIONS, EACH = 2, 12
ROUNDS = 50
NUMBERS = itertools.count()
# librdkafka makes up for much by itself; it shall not take its time for it.
QUICK = {
    "fetch.wait.max.ms": 5, "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 20, "retry.backoff.ms": 5,
    "socket.timeout.ms": 1_000, "topic.metadata.refresh.interval.ms": 200,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    made = Kafka()
    yield made
    made.close()


@pytest.fixture
def proxy(cluster: Kafka) -> Iterator[KafkaProxy]:
    with KafkaProxy(cluster.bootstrap) as proxy:
        yield proxy


class Shop:
    """An app that reads through the proxy; who writes does not."""

    def __init__(self, cluster: Kafka, proxy: KafkaProxy) -> None:
        self.cluster, self.name, self.said = cluster, f"orders{next(NUMBERS)}", 0
        cluster.make(self.name, PARTITIONS)
        self.app = App("/nonexistent/x.db", name="shop")
        topic = Topic(proxy.bootstrap, self.name, options=QUICK, look_every=0.01)

        @self.app.projection(topic, tables={"given": "seq INTEGER PRIMARY KEY, key TEXT, n INTEGER"})
        def write_down(event: Event[Any], tx: Tx) -> None:
            tx.execute("INSERT INTO given (key, n) VALUES (:key, :n)", {"key": event.key, "n": event.data["n"]})

        self.harness = Harness(self.app)

    def say(self) -> None:
        write(self.cluster.bootstrap, [
            {"topic": self.name, "partition": n % PARTITIONS, "key": f"k{n % PARTITIONS}", "value": f'{{"n": {n}}}'}
            for n in range(self.said, self.said + EACH)
        ])  # fmt: skip
        self.said += EACH

    def check(self) -> None:
        given = self.harness.query("SELECT key, n FROM given ORDER BY seq")
        for partition in range(PARTITIONS):
            mine = [n for key, n in given if key == f"k{partition}"]
            assert mine == list(range(partition, self.said, PARTITIONS))
        assert self.harness.letters() == []
        assert self.harness.halted == {}


@pytest.fixture
def shop(cluster: Kafka, proxy: KafkaProxy) -> Iterator[Shop]:
    shop = Shop(cluster, proxy)
    yield shop
    proxy.heal()
    assert [verdict for verdict in shop.app.operate().verify() if not verdict.sound] == []
    shop.harness.close()


FAULTS: dict[str, Callable[[KafkaProxy], Any]] = {
    "a fetch is cut in the middle": lambda proxy: proxy.cut(on="replies", holding=b'{"n": 1'),
    "a fetch ends in the middle": lambda proxy: proxy.cut(on="replies", holding=b'{"n": 1', reset=False),
    "a fetch is held": lambda proxy: proxy.stall(on="replies", holding=b'{"n": 1'),
    "a reply never comes": lambda proxy: proxy.lose_reply(nth=5, silent=True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_network_does_to_a_topic_costs_nothing(shop: Shop, proxy: KafkaProxy, fault: str) -> None:
    armed = FAULTS[fault](proxy)
    shop.say()
    shop.harness.run_until_idle()
    assert armed.fired
    proxy.heal()
    shop.harness.advance("2m")
    shop.check()
    shop.say()
    shop.harness.advance("2m")
    shop.check()
    assert proxy.accepted > 1, "it was read through the proxy"


def test_whichever_packet_is_lost_nothing_is_lost_or_doubled(shop: Shop, proxy: KafkaProxy) -> None:
    for place in range(1, 8):
        for arm in (proxy.cut, proxy.lose_reply):
            fault = arm(nth=place)
            shop.say()
            for _ in range(ROUNDS):  # librdkafka asks when it thinks fit, but each round asks
                shop.harness.advance("1m")
                if fault.fired:
                    break
            assert fault.fired
    shop.harness.advance("2m")
    shop.check()


class HardOfHearing:
    """A consumer that does not hear what topics there are before a message has come by."""

    def __init__(self, real: Any) -> None:
        self._real, self.has_polled = real, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def poll(self, wait: float) -> Any:
        found = self._real.poll(wait)
        self.has_polled = self.has_polled or (found is not None and found.error() is None)
        return found

    def list_topics(self, *asked: Any, **options: Any) -> Any:
        if not self.has_polled:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return self._real.list_topics(*asked, **options)


def test_a_message_that_comes_while_the_broker_is_asked_for_something_else_is_not_passed_over(
    cluster: Kafka, proxy: KafkaProxy
) -> None:
    name = f"orders{next(NUMBERS)}"
    cluster.make(name, 1)
    topic = Topic(proxy.bootstrap, name, options=QUICK, look_every=0.0)
    reader, read = TopicReader(topic, "shop"), list[str]()
    try:
        positions: dict[int, str] = {}
        for n in range(0, 10, 2):
            write(cluster.bootstrap, [{"topic": name, "partition": 0, "value": str(one)} for one in (n, n + 1)])
            while str(n + 1) not in read:
                for message in reader.read(positions, 10, 0.2):
                    positions[0] = message.position
                    read.append(message.event.data_raw.decode())
            reader._consumer = HardOfHearing(reader._consumer)
    finally:
        reader.close()
    assert read == [str(n) for n in range(10)]


def test_a_broker_that_nobody_reaches_is_waited_for(shop: Shop, proxy: KafkaProxy) -> None:
    shop.say()
    shop.harness.run_until_idle()
    proxy.refuse()
    proxy.cut()
    shop.say()
    shop.harness.advance("10s")
    assert f"kafka:{shop.name}" in shop.harness.halted
    proxy.heal()
    shop.harness.advance("2m")
    shop.check()
