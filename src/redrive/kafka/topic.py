"""A Kafka topic as a source.

All its partitions are read in order by one leased and fenced owner, who keeps its place in the store. It assigns them
to itself: our lease is the rebalance, and Kafka's group protocol is not used. Offsets are committed to Kafka after
they have landed, for tools that show a lag; nobody reads them back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal

from redrive.errors import UsageError
from redrive.event import check_source
from redrive.masking import mask_text
from redrive.options import named_options
from redrive.policy.retry import seconds_of
from redrive.sinks.brokers import BrokerSink, Sender, check_format
from redrive.sources.codec import Codec, Format, codec_of
from redrive.sources.port import Reader, Source

log = logging.getLogger("redrive.kafka")

NAME_CHARS_MAX = 160  # part of the id of an event, which has 200; Kafka would allow 249
LOOK_EVERY = "30s"

# Options that are part of what is promised, and the reason that is told to whoever sets one.
_OURS = {
    "bootstrap.servers": "it is the first argument",
    "metadata.broker.list": "it is the first argument, bootstrap",
    "group.id": "it is APP.TOPIC, so that every worker of this program shows the same lag",
    "group.protocol": "partitions are assigned by redrive's lease, not by the group",
    "group.instance.id": "partitions are assigned by redrive's lease, not by the group",
    "partition.assignment.strategy": "partitions are assigned by redrive's lease, not by the group",
    "session.timeout.ms": "partitions are assigned by redrive's lease, not by the group",
    "heartbeat.interval.ms": "partitions are assigned by redrive's lease, not by the group",
    "enable.auto.commit": "an offset counts when its event has landed, not when it was fetched",
    "auto.commit.interval.ms": "an offset counts when its event has landed, not when it was fetched",
    "enable.auto.offset.store": "an offset counts when its event has landed, not when it was fetched",
    "auto.offset.reset": "messages that are gone must be told, not jumped over",
    "isolation.level": "what a producer has taken back must not become an event",
    "enable.partition.eof": "the reader needs to know where a partition ends",
    "allow.auto.create.topics": "a misspelt name would become an empty topic",
    "check.crcs": "what was damaged on its way must not become an event",
    "enable.idempotence": "a message that is sent must arrive once, and in order",
    "acks": "a message counts as sent when all replicas have it",
    "request.required.acks": "a message counts as sent when all replicas have it",
    "transactional.id": "what is sent is committed in the store, not in Kafka",
    "logger": "librdkafka's words go to the logger redrive.kafka",
    "error_cb": "errors are told by redrive status",
    "on_commit": "commits to Kafka are a courtesy, and may fail",
    "on_delivery": "a delivery is an outcome of its event",
}
_SECRET = ("password", "secret", "pem", "jaas", "token", "oauthbearer.config", "sasl.username")
HIDDEN = "…"


class Topic(Source):
    """One topic, with all its partitions; source and target.

    >>> Topic("localhost:9092", "orders").log
    'kafka:orders'
    """

    scheme = "kafka"
    ordered, acknowledges = True, False

    @named_options("Topic")
    def __init__(
        self,
        bootstrap: str,
        name: str,
        *,
        options: Mapping[str, Any] | None = None,
        format: Format = "auto",
        codec: Codec | None = None,
        lost: Literal["halt", "letter"] = "halt",
        generation: int = 1,
        look_every: str | float = LOOK_EVERY,
    ) -> None:
        if find_spec("confluent_kafka") is None:
            raise UsageError(f"topic {name!r}: Kafka needs a driver: pip install 'redrive[kafka]'")
        check_source(name)
        if len(name) > NAME_CHARS_MAX:
            raise UsageError(f"topic {name[:40]}…: a name has {NAME_CHARS_MAX} characters at most")
        if lost not in ("halt", "letter"):
            raise UsageError(f'topic {name!r}: lost is "halt" or "letter", not {lost!r}')
        if not isinstance(generation, int) or isinstance(generation, bool) or generation < 1:
            raise UsageError(f"topic {name!r}: generation counts from 1, it is not {generation!r}")
        if not isinstance(bootstrap, str) or not bootstrap.strip():
            raise UsageError(
                f"topic {name!r}: name its brokers, as HOST:PORT or HOST:PORT,HOST:PORT, not {bootstrap!r}"
            )
        if options is not None and not isinstance(options, Mapping):
            raise UsageError(
                f"topic {name!r}: options= takes a dict of librdkafka's options, not {type(options).__name__}"
            )
        if "@" in bootstrap:
            raise UsageError(
                f"topic {name!r}: its brokers are HOST:PORT; user and password go into "
                "options={'sasl.username': …, 'sasl.password': …}"
            )
        for option in options or {}:
            if reason := _OURS.get(option):
                raise UsageError(f"topic {name!r}: {option} cannot be set: {reason}")
        self.bootstrap, self.name, self.options = bootstrap, name, dict(options or {})
        self.partitions = 1  # how many there are is known to the broker, and may change
        self.codec, self.lost, self.generation = codec_of(name, format, codec), lost, generation
        self.look_every = seconds_of(f"topic {name!r}: look_every", look_every)

    def check_order(self, order: str) -> None:
        """Partitions have no common order."""
        if order == "total":
            raise UsageError(
                f'topic {self.name!r}: order="total" cannot be kept, its partitions have no common order; '
                f'order="key" they have'
            )

    def config(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """What a client of librdkafka is made with; its words go to our logger, never to stderr."""
        return {
            "client.id": "redrive", **self.options,
            "bootstrap.servers": self.bootstrap, "logger": _Quiet(), **more,
        }  # fmt: skip

    def told(self, error: object) -> str:
        """What librdkafka says of an error, without what must not be shown."""
        text = mask_text(str(error))
        for option, value in self.options.items():
            if isinstance(value, str) and value and any(word in option for word in _SECRET):
                text = text.replace(value, HIDDEN)
        return text

    def sink(self, name: str) -> BrokerSink:
        """Write to it, as a delivery of this name."""
        check_format(repr(self), self.codec.format)
        return BrokerSink(name, repr(self), self._sender)

    def _sender(self, log: str, timeout: float) -> Sender:
        from redrive.kafka.sending import TopicSender

        return TopicSender(self, log, timeout)

    def examine(self) -> Sequence[str]:
        """Whether the brokers have it for us; of what they do with it they are not asked."""
        from redrive.kafka.health import ask

        ask(self)
        return ()

    def open(self, group: str) -> Reader:
        """Read in order, from where the store says."""
        from redrive.kafka.reading import TopicReader

        return TopicReader(self, group)


class _Quiet:
    """Takes what librdkafka logs: what matters of it comes back as an error that we tell ourselves."""

    def log(self, level: int, text: str, *arguments: Any) -> None:
        """One line, whatever librdkafka thinks of its weight."""
        log.debug(text, *arguments)
