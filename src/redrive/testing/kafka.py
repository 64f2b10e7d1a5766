"""A Kafka for tests: librdkafka's mock cluster, in this process, on a free port.

It speaks the protocol over TCP, so that clients of any process may read and write; it lives and dies with this one.
It knows no transactions and no compaction. `REDRIVE_TEST_KAFKA` takes precedence: the address of brokers on which
topics may be made and written; what only the mock can do is then left out by the tests that need it. A test makes its
own topics there, with a random suffix, and they are deleted at its end: nothing relies on their automatic creation.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redrive.errors import SourceDown, UsageError
from redrive.testing.faults import Way
from redrive.testing.proxy import FaultProxy

VARIABLE = "REDRIVE_TEST_KAFKA"
HOST = "127.0.0.1"
WRITE_SECONDS_MAX = 60.0
ADMIN_SECONDS_MAX = 30.0  # for brokers to make or delete a topic, and to tell all of them

_POINTER, _TEXT, _INT, _LONG = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64
_PRODUCER = 0
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (_INT, [_POINTER, _TEXT, _TEXT, _TEXT, ctypes.c_size_t]),
    "rd_kafka_new": (_POINTER, [_INT, _POINTER, _TEXT, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_POINTER]),
    "rd_kafka_mock_cluster_new": (_POINTER, [_POINTER, _INT]),
    "rd_kafka_mock_cluster_destroy": (None, [_POINTER]),
    "rd_kafka_mock_cluster_bootstraps": (_TEXT, [_POINTER]),
    "rd_kafka_mock_topic_create": (_INT, [_POINTER, _TEXT, _INT, _INT]),
    "rd_kafka_mock_topic_delete": (_INT, [_POINTER, _TEXT]),
    "rd_kafka_mock_topic_set_error": (None, [_POINTER, _TEXT, _INT]),
    "rd_kafka_mock_partition_delete_records": (_INT, [_POINTER, _TEXT, ctypes.c_int32, _LONG]),
    "rd_kafka_mock_broker_set_down": (_INT, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_up": (_INT, [_POINTER, ctypes.c_int32]),
}
_BROKER = 1  # there is one


class Kafka:
    """A cluster of one broker that a test may stop, start again, and damage."""

    def __init__(self) -> None:
        self._library = _library()
        said = ctypes.create_string_buffer(512)
        conf = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(conf, b"log_level", b"0", said, len(said))
        self._client = self._library.rd_kafka_new(_PRODUCER, conf, said, len(said))
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1) if self._client else None
        if not self._cluster:
            raise SourceDown(f"librdkafka's mock cluster does not start: {said.value.decode()}")
        self.bootstrap: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def make(self, topic: str, partitions: int = 1) -> None:
        """A topic; one that nobody has made comes with 4 partitions when it is written to."""
        self._do("topic_create", topic.encode(), partitions, 1)

    def delete(self, topic: str) -> None:
        """With all it holds."""
        self._do("topic_delete", topic.encode())

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Forget the messages before this offset, as retention does."""
        self._do("partition_delete_records", topic.encode(), partition, before)

    def refuse(self, topic: str, error: int) -> None:
        """Answer with this error to whoever asks about the topic; 0: no more."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), error)

    def stop(self) -> None:
        """Take no connections, and end those there are. What it holds stays."""
        self._do("broker_set_down", _BROKER)

    def start(self) -> None:
        """Take connections again."""
        self._do("broker_set_up", _BROKER)

    def close(self) -> None:
        """End it."""
        if self._cluster:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(self._client)
            self._cluster = None

    def _do(self, deed: str, *arguments: Any) -> None:
        code = getattr(self._library, f"rd_kafka_mock_{deed}")(self._cluster, *arguments)
        if code:
            raise SourceDown(f"the mock cluster refuses {deed}{arguments}: error {code}")


class KafkaProxy(FaultProxy):
    """A fault proxy before a cluster of one broker, which tells its clients where it is: they are told, here."""

    @property
    def bootstrap(self) -> str:
        """What the program under test is given."""
        return f"{HOST}:{self.port}"

    async def _read(self, way: Way, reader: asyncio.StreamReader) -> bytes:
        """A whole answer at a time, so that an address in it is whole as well."""
        if way == "requests":
            return await super()._read(way, reader)
        try:
            head = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(head, "big"))
        except asyncio.IncompleteReadError as error:
            return error.partial
        return head + body.replace(_address(self.target[1]), _address(self.port))


def _address(port: int) -> bytes:
    """As it is in the answers of a broker."""
    return HOST.encode() + port.to_bytes(4, "big")


def write(bootstrap: str, messages: Iterable[dict[str, Any]]) -> None:
    """Produce, with the arguments of confluent_kafka's `produce`, and wait until the broker has them all."""
    import confluent_kafka

    failed: list[Any] = []

    def told(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0, "max.in.flight": 1}
    )
    for message in messages:
        producer.produce(**message, on_delivery=told)
        producer.poll(0)
    if producer.flush(WRITE_SECONDS_MAX) or failed:
        raise SourceDown(f"not everything was written to {bootstrap}: {failed[:1]}")


def _library() -> Any:
    """The library that the Python client has brought along."""
    found = importlib.util.find_spec("confluent_kafka")
    if found is None or found.origin is None:
        raise UsageError("no Kafka for the tests: pip install 'redrive[test]'")
    import confluent_kafka  # noqa: F401  it loads what it needs itself

    folder = Path(found.origin).parent.parent / "confluent_kafka.libs"
    for path in sorted(folder.glob("librdkafka-*.so*")):
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        return library
    raise UsageError(f"no librdkafka in {folder}: install confluent-kafka from its wheel")


class Topics:
    """Brokers at an address, and the topics that a test makes there."""

    def __init__(self, bootstrap: str, create: Callable[[str, int], None], delete: Callable[[str], None]) -> None:
        self.bootstrap = bootstrap
        self._create, self._delete = create, delete
        self._made: list[str] = []

    def make(self, name: str, partitions: int = 1) -> str:
        """Make a topic and return its name, which has a random suffix."""
        topic = f"{name}-{uuid.uuid4().hex[:12]}"
        self._made.append(topic)  # before: what was made in spite of an error is deleted, too
        self._create(topic, partitions)
        return topic

    def delete_all(self) -> None:
        """Delete the topics that were made, all of them, and raise the first error."""
        failed: list[Exception] = []
        while self._made:
            try:
                self._delete(self._made.pop())
            except SourceDown as error:
                failed.append(error)
        if failed:
            raise failed[0]


@contextmanager
def kafka() -> Iterator[Topics]:
    """Brokers for tests, as long as the block lasts; the topics that it makes are deleted at its end."""
    if given := os.environ.get(VARIABLE):
        topics = on_brokers(given)
        try:
            yield topics
        finally:
            topics.delete_all()
        return
    cluster = Kafka()
    try:
        yield Topics(cluster.bootstrap, cluster.make, cluster.delete)
    finally:
        cluster.close()


def on_brokers(bootstrap: str, admin: Any = None) -> Topics:
    """Topics on real brokers, made and deleted by `admin`: confluent_kafka's, or one like it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap}) if admin is None else admin

    def do(asked: dict[str, Any]) -> None:
        for topic, answer in asked.items():
            try:
                answer.result(ADMIN_SECONDS_MAX)
            except (KafkaException, TimeoutError) as error:
                raise SourceDown(f"{bootstrap}: topic {topic!r} cannot be made or deleted: {error}") from error

    def create(topic: str, partitions: int) -> None:
        do(admin.create_topics([NewTopic(topic, partitions, -1)], operation_timeout=ADMIN_SECONDS_MAX))
        until = time.monotonic() + ADMIN_SECONDS_MAX
        while True:  # its leaders are elected after the answer
            found = admin.list_topics(topic, timeout=ADMIN_SECONDS_MAX).topics.get(topic)
            if found is not None and found.error is None and len(found.partitions) == partitions:
                return
            if time.monotonic() >= until:
                raise SourceDown(f"{bootstrap}: topic {topic!r} was made and cannot be seen")

    def delete(topic: str) -> None:
        do(admin.delete_topics([topic], operation_timeout=ADMIN_SECONDS_MAX))

    return Topics(bootstrap, create, delete)
