"""Kafka topics as sources: each message lands once, in the order of its partition, or becomes a letter."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, TopicPartition

from redrive import App, Event, Tx, UsageError
from redrive.cli import main
from redrive.errors import Halted, SourceDown
from redrive.kafka import Topic
from redrive.kafka.reading import TopicReader
from redrive.sources.codec import Codec
from redrive.testing import Harness
from redrive.testing.failpoints import FailpointHit, failpoint
from redrive.testing.kafka import Kafka, write

PARTITIONS = 2
QUICK = {"fetch.wait.max.ms": 5}  # the mock answers a fetch that found nothing then, and not when there is something
NUMBERS = itertools.count()
LOOKS = 100  # reads of a reader that has nothing else to do, until what is waited for counts as never


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    made = Kafka()
    yield made
    made.close()


class Broker:
    """A topic of this test's own."""

    def __init__(self, cluster: Kafka) -> None:
        self.cluster, self.topic, self.said = cluster, f"orders{next(NUMBERS)}", 0
        cluster.make(self.topic, PARTITIONS)

    def write(self, *messages: dict[str, Any]) -> None:
        write(self.cluster.bootstrap, [{"topic": self.topic, "partition": 0, **message} for message in messages])

    def say(self, count: int) -> None:
        """Numbers, by turns in both partitions, each with a key of its own."""
        self.write(*(
            {"partition": n % PARTITIONS, "key": f"k{n % PARTITIONS}", "value": str(n)}
            for n in range(self.said, self.said + count)
        ))  # fmt: skip
        self.said += count

    def ids(self, numbers: Any = None, name: str = "") -> list[str]:
        """Of what was said."""
        numbers = range(self.said) if numbers is None else numbers
        return sorted(f"{name or self.topic}/{n % PARTITIONS}/{n // PARTITIONS}" for n in numbers)

    def committed(self, group: str) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": group, "log_level": 0})
        try:
            asked = [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]
            return [one.offset for one in consumer.committed(asked, timeout=60)]
        finally:
            consumer.close()


class Shop:
    """An app on one topic that writes down what it was given."""

    def __init__(self, bootstrap: str, name: str, store: str | None, **how: Any) -> None:
        self.app = App("/nonexistent/x.db", name="shop")
        self.topic = Topic(bootstrap, name, **{"options": QUICK, **how})

        @self.app.projection(self.topic, tables={"given": "id TEXT, type TEXT, key TEXT, said TEXT, headers TEXT"})
        def write_down(event: Event[Any], tx: Tx) -> None:
            tx.execute(
                "INSERT INTO given VALUES (:id, :type, :key, :said, :headers)",
                {
                    "id": event.id, "type": event.type, "key": event.key, "said": str(event.data),
                    "headers": str(event.headers),
                },
            )  # fmt: skip

        self.harness = Harness(self.app, store)

    def run(self) -> str:
        """Until nothing is left to do; why the reading halts, if it does."""
        self.harness.run_until_idle()
        return self.harness.halted.get(self.topic.log, "")

    def again(self, **how: Any) -> Shop:
        """The same program as a new process, on the same store."""
        self.harness.restart()
        self.topic.__init__(self.topic.bootstrap, self.topic.name, **{"options": QUICK, **how})  # type: ignore[misc]
        return self

    def given(self, *columns: str) -> list[Any]:
        with self.app.reader() as tx:
            rows = tx.execute(f"SELECT {', '.join(columns)} FROM given").fetchall()
        return [tuple(row) if len(columns) > 1 else row[0] for row in rows]

    @property
    def letters(self) -> list[Any]:
        return list(self.app.operate().letters.list())


@pytest.fixture
def broker(cluster: Kafka) -> Broker:
    return Broker(cluster)


@pytest.fixture
def make_shop(broker: Broker, backend: str | None) -> Iterator[Any]:
    made: list[Shop] = []

    def make(**how: Any) -> Shop:
        made.append(Shop(broker.cluster.bootstrap, broker.topic, backend, **how))
        return made[-1]

    yield make
    for shop in made:
        assert [verdict for verdict in shop.app.operate().verify() if not verdict.sound] == []
        shop.harness.close()


@pytest.fixture
def shop(make_shop: Any) -> Any:
    return make_shop()


def read_on(reader: TopicReader, positions: dict[int, str]) -> None:
    for _ in range(LOOKS):
        for message in reader.read(positions, 10, 0.2):
            positions[message.partition] = message.position


on_one_store = pytest.mark.sqlite("it is about the broker, not about the store")


# ---------------------------------------------------------------------- once, and in order


def test_every_message_is_applied_once_and_each_partition_in_its_order(shop: Shop, broker: Broker) -> None:
    for count in (30, 5, 0, 1):
        broker.say(count)
        shop.run()
        assert sorted(shop.given("id")) == broker.ids()
    by_key = {key: [int(said) for k, said in shop.given("key", "said") if k == key] for key in ("k0", "k1")}
    assert by_key == {"k0": list(range(0, 36, 2)), "k1": list(range(1, 36, 2))}
    assert set(shop.given("type")) == {broker.topic}


@pytest.mark.parametrize("place", ["land.fenced", "land.before_commit", "land.committed"])
def test_a_death_at_any_step_neither_loses_nor_doubles(shop: Shop, broker: Broker, place: str) -> None:
    for count in (10, 7):
        broker.say(count)
        with failpoint(place, FailpointHit):
            shop.run()
        shop.harness.advance("1m")
        assert sorted(shop.given("id")) == broker.ids()


def test_a_producers_id_is_taken_once_and_another_payload_under_it_is_shown(shop: Shop, broker: Broker) -> None:
    for value in ("1", "1", "2"):
        broker.write({"value": value, "key": "k", "headers": {"id": "order-1"}})
        shop.run()
    assert shop.given("id", "key", "said") == [("order-1", "k", "1")]
    assert [letter.reason for letter in shop.letters] == ["id_collision"]


@on_one_store
def test_offsets_are_committed_as_a_courtesy_and_never_read(shop: Shop, broker: Broker) -> None:
    broker.say(7)
    group = f"shop.{broker.topic}"
    for _ in range(100):  # nobody waits for the answer: a run that ends soon may take the courtesy with it
        shop.run()
        if broker.committed(group) == [4, 3]:
            break
    assert broker.committed(group) == [4, 3]
    consumer = Consumer({"bootstrap.servers": broker.cluster.bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(broker.topic, 0, 1)], asynchronous=False)
    consumer.close()
    broker.say(2)
    shop.again().run()
    assert sorted(shop.given("id")) == broker.ids()


# ---------------------------------------------------------------------- what a message becomes


@on_one_store
def test_what_cannot_be_read_becomes_a_letter_in_its_place(shop: Shop, broker: Broker) -> None:
    broker.write(
        {"value": "{", "key": "k", "headers": {"type": "order.placed"}},
        {"value": "1", "key": b"\xff\x00"},
        {"value": b"\xff", "key": "other"},
        {"value": "2", "key": "k"},
        {"value": "3", "key": "free"},
        {"value": "4", "key": "long" * 150},
    )
    shop.run()
    assert "cannot be one: the key has 600 bytes" in shop.letters[-1].error_message
    assert shop.given("said") == ["3"]  # k waits behind what could not be read
    letters = shop.letters
    assert [(one.reason, one.type, one.key) for one in letters[:3]] == [
        ("undecodable", "order.placed", "k"), ("undecodable", "redrive.refused", None),
        ("undecodable", "redrive.refused", "other"),
    ]  # fmt: skip
    assert "its key (ff 00) cannot be one: 'utf-8' codec" in letters[1].error_message
    assert all(f"{broker.topic}/0/{n} is no event" in one.error_message for n, one in enumerate(letters[:3]))


@on_one_store
def test_a_tombstone_is_an_event_without_data(make_shop: Any, broker: Broker) -> None:
    shop = make_shop(format="json")
    broker.write({"value": None, "key": "k", "headers": {"type": "order.deleted"}}, {"value": None, "key": "k"})
    shop.run()
    assert shop.given("type", "key", "said") == [("order.deleted", "k", "None"), (broker.topic, "k", "None")]
    assert shop.letters == []


@on_one_store
def test_headers_are_headers_and_bytes_among_them_are_digits(shop: Shop, broker: Broker) -> None:
    headers = [("city", "Köln".encode()), ("trace", b"\xff\x01"), ("none", None), ("type", b"order.placed")]
    broker.write({"value": "1", "headers": headers, "timestamp": 1_700_000_000_000})
    shop.run()
    assert shop.given("type", "key", "headers") == [
        ("order.placed", None, str({"city": "Köln", "trace": "ff01", "none": ""}))
    ]
    with shop.app.reader() as tx:
        assert tx.execute("SELECT count(*) FROM given").fetchall()[0][0] == 1


@on_one_store
def test_cloud_events_are_understood_in_both_forms_and_their_key_is_that_of_the_message(
    shop: Shop, broker: Broker
) -> None:
    head = {"specversion": "1.0", "id": "a", "source": "/x", "type": "order.placed", "subject": "s"}
    line = '{"specversion":"1.0","id":"b","source":"/x","type":"order.placed","subject":"s","data":{"n":2}}'
    binary = {f"ce_{name}": text for name, text in head.items()}
    broker.write({"value": '{"n": 1}', "headers": binary, "key": "k"}, {"value": line, "key": "k"}, {
        "value": line.replace('"b"', '"c"')
    })  # fmt: skip
    shop.run()
    assert shop.given("id", "key", "said") == [("a", "k", "{'n': 1}"), ("b", "k", "{'n': 2}"), ("c", "s", "{'n': 2}")]


@on_one_store
def test_a_mapping_says_where_in_the_body_the_key_is(make_shop: Any, broker: Broker) -> None:
    shop = make_shop(codec=Codec("json", id="meta.id", key="customer"))
    broker.write({"value": '{"meta": {"id": "a"}, "customer": "ada"}', "key": "k"}, {"value": "{}", "key": "k"})
    shop.run()
    assert shop.given("id", "key") == [("a", "ada"), (f"{broker.topic}/0/1", "k")]


# ---------------------------------------------------------------------- what is gone, or was never there


def test_messages_that_were_deleted_unread_halt_the_reading_and_are_counted(shop: Shop, broker: Broker) -> None:
    broker.say(10)
    shop.run()
    broker.say(10)
    broker.cluster.trim(broker.topic, 0, 8)
    said = shop.again().run()
    assert "offsets 5 to 7 (3 messages) were deleted before they were read" in said
    assert 'lost="letter"' in said
    assert sorted(shop.given("id")) == broker.ids(range(10))
    assert shop.again(lost="letter").run() == ""
    assert [letter.reason for letter in shop.letters] == ["lost_at_source"]
    assert sorted(shop.given("id")) == broker.ids(n for n in range(20) if n not in (10, 12, 14))
    shop.again(lost="letter").run()
    assert len(shop.letters) == 1


@on_one_store
@pytest.mark.parametrize(("low", "told"), [(5, ""), (6, "offsets 5 to 5 (1 messages) were deleted before")])
def test_reading_halts_if_a_single_message_was_deleted_unread(shop: Shop, broker: Broker, low: int, told: str) -> None:
    broker.say(10)
    shop.run()
    broker.say(10)
    broker.cluster.trim(broker.topic, 0, low)
    assert told in (said := shop.again().run()) and bool(said) == bool(told)
    assert sorted(shop.given("id")) == broker.ids(range(10 if told else 20))


@on_one_store
def test_reading_halts_if_the_topic_has_lost_its_last_message(shop: Shop, broker: Broker) -> None:
    broker.say(10)
    shop.run()
    broker.cluster.delete(broker.topic)
    broker.cluster.make(broker.topic, PARTITIONS)
    broker.said = 0
    broker.say(9)
    assert "partition 1" in (said := shop.again().run()) and "offset 4 was read, but it ends at 4" in said


def test_consumer_reads_committed_messages_only(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock cluster has no transactions: what a reader asks librdkafka for is all that can be looked at."""
    asked: list[dict[str, Any]] = []

    def consumer(settings: dict[str, Any]) -> Consumer:
        asked.append(settings)
        return Consumer(settings)

    monkeypatch.setattr("redrive.kafka.reading.Consumer", consumer)
    topic = Topic(broker.cluster.bootstrap, broker.topic, options=QUICK)
    TopicReader(topic, "g").close()
    [settings] = asked
    wanted = {
        "isolation.level": "read_committed", "enable.auto.commit": False, "enable.auto.offset.store": False,
        "auto.offset.reset": "error", "check.crcs": True, "enable.partition.eof": True, "group.id": "g",
    }  # fmt: skip
    assert {name: settings[name] for name in wanted} == wanted
    with pytest.raises(UsageError, match=r"isolation\.level"):
        Topic(broker.cluster.bootstrap, broker.topic, options={"isolation.level": "read_uncommitted"})


@on_one_store
def test_what_was_deleted_of_a_partition_that_was_empty_at_first_is_missed_too(shop: Shop, broker: Broker) -> None:
    assert shop.run() == ""
    broker.say(6)
    broker.cluster.trim(broker.topic, 1, 2)
    assert "offsets 0 to 1 (2 messages)" in shop.again().run()


@on_one_store
def test_what_was_gone_before_the_first_start_is_not_missed(shop: Shop, broker: Broker) -> None:
    broker.say(6)
    broker.cluster.trim(broker.topic, 1, 3)
    assert shop.run() == ""
    assert shop.again().run() == ""
    assert sorted(shop.given("id")) == broker.ids([0, 2, 4])


class Slow:
    """A consumer that has as many messages and news as it was told before it gives any."""

    def __init__(self, consumer: Any, count: int) -> None:
        self._consumer, self._count = consumer, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, limit: int, wait: float) -> Any:
        return self._consumer.consume(self._count, 60.0)


def test_the_last_message_that_has_landed_is_not_taken_for_a_new_one(broker: Broker) -> None:
    broker.say(1)
    topic = Topic(broker.cluster.bootstrap, broker.topic, options=QUICK)
    positions: dict[int, str] = {}
    for count in (1, 0):
        reader = TopicReader(topic, "g")
        reader._consumer = Slow(reader._consumer, 3)  # type: ignore[assignment]  # it, and the ends of both partitions
        try:
            found = reader.read(positions, 10, 0.0)
            positions = {**reader.starts, **positions, **{one.partition: one.position for one in found}}
            assert len(found) == count
        finally:
            reader.close()


class Compacted:
    """A consumer of a topic of which every message was compacted away."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def poll(self, wait: float) -> Any:
        found = self._consumer.poll(wait)
        return found if found is None or found.error() is not None else None

    def consume(self, limit: int, wait: float) -> Any:
        return [message for message in self._consumer.consume(limit, wait) if message.error() is not None]


def test_an_anchor_that_was_compacted_away_has_nothing_to_be_compared_with(broker: Broker) -> None:
    broker.say(1)
    topic = Topic(broker.cluster.bootstrap, broker.topic, options=QUICK)
    reader = TopicReader(topic, "g")
    found = reader.read({}, 10, 0.0)
    positions = {**reader.starts, **{one.partition: one.position for one in found}}
    reader.close()
    reader = TopicReader(topic, "g")
    reader._consumer = Compacted(reader._consumer)
    try:
        assert reader.read(positions, 10, 0.0) == []
    finally:
        reader.close()


class Marked(Compacted):
    """A consumer of a topic in which the second offset of each partition is the mark of a transaction."""

    def poll(self, wait: float) -> Any:
        found = self._consumer.poll(wait)
        return None if found is not None and self._is_mark(found) else found

    def consume(self, limit: int, wait: float) -> Any:
        return [message for message in self._consumer.consume(limit, wait) if not self._is_mark(message)]

    def _is_mark(self, message: Any) -> bool:
        return message.error() is None and message.offset() == 1


def test_partition_that_ends_with_the_mark_of_a_transaction_is_read_to_its_end(broker: Broker) -> None:
    """The mock cluster has no transactions: a mark is an offset at which the consumer gives nothing."""
    broker.say(2 * PARTITIONS)
    reader = TopicReader(Topic(broker.cluster.bootstrap, broker.topic, options=QUICK), "g")
    reader._consumer = Marked(reader._consumer)
    try:
        found, positions = [], dict[int, str]()
        for _ in range(PARTITIONS + 1):
            messages = reader.read(positions, 10, 0.0)
            found += messages
            positions |= reader.starts | {one.partition: one.position for one in messages}
        assert sorted(one.partition for one in found) == [0, 1]
        assert reader.read(positions, 10, 0.0) == []
    finally:
        reader.close()


def test_messages_that_are_deleted_under_a_running_reader_halt_it(broker: Broker) -> None:
    reader = TopicReader(Topic(broker.cluster.bootstrap, broker.topic, options=QUICK), "g")
    fetched = [TopicPartition(broker.topic, partition) for partition in range(PARTITIONS)]
    try:
        assert reader.read({}, 10, 0.0) == []
        positions = {**reader.starts}
        reader._consumer.pause(fetched)  # as if the broker had kept us waiting meanwhile
        broker.say(4)
        broker.cluster.trim(broker.topic, 0, 2)
        reader._consumer.resume(fetched)
        with pytest.raises(Halted, match="were deleted before they were read"):
            read_on(reader, positions)
    finally:
        reader.close()


@pytest.mark.parametrize("count", [3, 10, 25])
@on_one_store
def test_a_topic_that_was_made_anew_halts_the_reading_until_it_is_called_another(
    shop: Shop, broker: Broker, count: int
) -> None:
    broker.say(10)
    shop.run()
    broker.cluster.delete(broker.topic)
    broker.cluster.make(broker.topic, PARTITIONS)
    broker.said = 0
    broker.say(count)
    said = shop.again().run()
    assert ("is another than the one that has landed" if count >= 10 else "but it ends at") in said
    assert "generation=2" in said
    assert len(shop.given("id")) == 10
    assert shop.again(generation=2).run() == ""
    assert sorted(shop.given("id"))[10:] == broker.ids(name=f"{broker.topic}~2")
    said = shop.again().run()
    assert "generation=2 was read before" in said
    assert "declare Topic(…, generation=2) again, or 3 if" in said


@on_one_store
def test_a_topic_that_is_not_there_yet_is_waited_for_and_one_that_is_gone_halts(shop: Shop, broker: Broker) -> None:
    broker.cluster.delete(broker.topic)
    assert f"there is no topic '{broker.topic}'" in shop.run()
    broker.cluster.make(broker.topic, PARTITIONS)
    broker.say(4)
    shop.harness.advance("1m")
    assert sorted(shop.given("id")) == broker.ids()
    broker.cluster.delete(broker.topic)
    assert "is not there any more" in shop.again().run()


@on_one_store
def test_a_topic_with_fewer_partitions_is_another_one(shop: Shop, broker: Broker) -> None:
    broker.say(4)
    shop.run()
    broker.cluster.delete(broker.topic)
    broker.cluster.make(broker.topic, 1)
    assert "partition 1" in (said := shop.again().run()) and "the topic has 1 partitions" in said


class Growing:
    """A consumer that is told of the second partition from the third time on: the mock cannot add one."""

    def __init__(self, consumer: Any) -> None:
        self._consumer, self.asked = consumer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def list_topics(self, name: str, timeout: float) -> Any:
        self.asked += 1
        found = self._consumer.list_topics(name, timeout=timeout)
        if self.asked < 3:
            del found.topics[name].partitions[1]
        return found


def test_partitions_that_are_added_are_read_from_their_start(broker: Broker) -> None:
    broker.say(6)
    reader = TopicReader(Topic(broker.cluster.bootstrap, broker.topic, options=QUICK, look_every=0.0), "g")
    consumer = reader._consumer = Growing(reader._consumer)  # type: ignore[assignment]
    positions: dict[int, str] = {}
    found: list[str] = []
    try:
        while consumer.asked < 6:
            messages = reader.read(positions, 100, 0.0)
            positions |= reader.starts
            positions |= {message.partition: message.position for message in messages}
            found += [message.event.id for message in messages]
            assert consumer.asked > 2 or 1 not in positions
    finally:
        reader.close()
    assert found == [f"{broker.topic}/{partition}/{offset}" for partition in (0, 1) for offset in range(3)]


# ---------------------------------------------------------------------- trouble, and what is refused


def test_a_broker_that_is_down_costs_no_attempt_and_is_read_on(shop: Shop, broker: Broker) -> None:
    broker.say(4)
    shop.run()
    broker.say(4)
    broker.cluster.stop()
    try:
        assert "cannot be read" in shop.again().run()
    finally:
        broker.cluster.start()
    shop.harness.advance("1m")
    assert sorted(shop.given("id")) == broker.ids()
    assert shop.letters == []


def test_a_broker_that_goes_down_under_a_reader_is_noticed(broker: Broker) -> None:
    reader = TopicReader(Topic(broker.cluster.bootstrap, broker.topic, options=QUICK), "g")
    try:
        assert reader.read({}, 10, 0.0) == []
        broker.cluster.stop()
        with pytest.raises(SourceDown, match="cannot be read"):
            read_on(reader, {})
    finally:
        broker.cluster.start()
        reader.close()


@on_one_store
def test_the_end_of_a_topic_is_asked_for_once_and_a_wait_is_no_busy_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, polled = [], []

    def offsets(reader: TopicReader, partitions: Any, which: int, ask: Any = TopicReader._offsets) -> Any:
        asked.append(which)
        return ask(reader, partitions, which)

    def poll(reader: TopicReader, limit: int, wait: float, ask: Any = TopicReader._poll) -> Any:
        polled.append(wait)
        return ask(reader, limit, wait)

    monkeypatch.setattr(TopicReader, "_offsets", offsets)
    monkeypatch.setattr(TopicReader, "_poll", poll)
    reader = TopicReader(Topic(broker.cluster.bootstrap, broker.topic, options=QUICK), "g")
    assert reader.read({}, 10, 0.0) == []
    assert asked.count(OFFSET_END) == 1
    polled.clear()
    assert reader.read({}, 10, 0.02) == []
    assert len(polled) <= PARTITIONS + 3, "once, and again for each partition whose end was told meanwhile"
    reader.close()


def test_who_may_not_read_is_told_so(shop: Shop, broker: Broker) -> None:
    broker.cluster.refuse(broker.topic, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert "does not let us" in (said := shop.run()) and "authorization" in said.lower()
    broker.cluster.refuse(broker.topic, 0)
    shop.harness.advance("1m")
    assert shop.harness.halted.get(shop.topic.log) is None


def test_nothing_is_written_to_stderr_and_secrets_are_not_shown(
    broker: Broker, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    options = {**QUICK, "sasl.password": "hunter2", "debug": "broker"}
    caplog.set_level(logging.DEBUG, "redrive.kafka")
    reader = TopicReader(Topic(broker.cluster.bootstrap, broker.topic, options=options), "g")
    reader.read({}, 10, 0.0)
    reader.close()
    assert capfd.readouterr() == ("", "")
    assert any(record.name == "redrive.kafka" for record in caplog.records)
    assert "hunter2" not in caplog.text
    for wrong in ({"no.such.option": 1}, {"security.protocol": "hunter2"}):
        options = {"sasl.oauthbearer.client.secret": "hunter2", **wrong}
        with pytest.raises(Halted, match="look at options=") as caught:
            TopicReader(Topic(broker.cluster.bootstrap, broker.topic, options=options), "g")
        assert "hunter2" not in str(caught.value)
    topic = Topic(broker.cluster.bootstrap, broker.topic, options={"sasl.password": "hunter2"})
    assert topic.told('Invalid value "hunter2" for sasl.password') == 'Invalid value "…" for sasl.password'
    assert "hunter2" not in repr(topic)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("enable.auto.commit", "landed"), ("enable.auto.offset.store", "landed"), ("auto.offset.reset", "jumped over"),
        ("group.id", "same lag"), ("group.protocol", "lease"), ("isolation.level", "taken back"),
        ("partition.assignment.strategy", "lease"), ("bootstrap.servers", "first argument"),
    ],
)  # fmt: skip
def test_options_that_would_break_the_promise_are_refused_with_the_reason(option: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"{option} cannot be set: .*{reason}"):
        Topic("localhost:9092", "orders", options={option: "x"})


def test_what_a_topic_cannot_promise_is_refused() -> None:
    app = App("x.db")
    topic = Topic("localhost:9092", "orders")
    with pytest.raises(UsageError, match="no common order"):
        app.projection(topic, order="total")(lambda event, tx: None)
    for how in ({"lost": "never"}, {"generation": 0}, {"generation": True}, {"format": "xml"}):
        with pytest.raises(UsageError):
            Topic("localhost:9092", "orders", **how)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="160 characters"):
        Topic("localhost:9092", "o" * 161)


def test_without_the_driver_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("redrive.kafka.topic.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'redrive\[kafka\]'"):
        Topic("localhost:9092", "orders")


def test_a_start_that_would_not_leave_out_what_the_topic_holds_is_refused(broker: Broker, make_shop: Any) -> None:
    shop, seen = make_shop(), []
    broker.say(4)
    shop.app.on(shop.topic, start="now", name="late")(lambda event: seen.append(event.id))
    with pytest.raises(UsageError, match=f"late: nothing of 'kafka:{broker.topic}' has landed yet"):
        shop.run()
    shop.app.on(shop.topic, start="first", name="late")(shop.app.subscriptions["late"].function)
    shop.run()
    assert sorted(seen) == broker.ids()


def test_the_doctor_asks_the_brokers_and_says_what_they_answer(
    cluster: Kafka, broker: Broker, on_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(on_disk)
    program = on_disk / "shop_with_topics.py"
    program.write_text(
        "from redrive import App\nfrom redrive.kafka import Topic\n"
        f"app = App({str(on_disk / 's.db')!r})\n"
        f"for name, where in (({broker.topic!r}, {cluster.bootstrap!r}), ('never-made', {cluster.bootstrap!r}), "
        "('gone', '127.0.0.1:1')):\n"
        "    app.projection(Topic(where, name), name=name)(lambda event, tx: None)\n"
        "app.log('x').append('x.y')\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--app", f"{program.stem}:app"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"kafka:{broker.topic} answers" in told
    assert "there is no topic 'never-made'" in told
    assert "kafka:gone: 127.0.0.1:1 cannot be read" in told
    assert ended.value.code == 3
