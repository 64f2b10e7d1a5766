"""Does a topic answer? Asked by `redrive doctor`, which must not say so of brokers that nobody has asked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from redrive.errors import Halted
from redrive.kafka import trouble

if TYPE_CHECKING:
    from redrive.kafka.topic import Topic

ASK_SECONDS_MAX = 5.0
STEP_SECONDS = 0.2  # between two looks at whether the brokers have refused us meanwhile


def ask(topic: Topic) -> None:
    """SourceDown or Halted, with the reason, if the topic cannot be read."""
    heard: list[KafkaError] = []
    # A consumer, because asking for a topic as a producer may make it.
    settings = {"group.id": "redrive", "allow.auto.create.topics": False, "error_cb": heard.append}
    try:
        consumer: Any = Consumer(topic.config({**topic.options, **settings}))
    except (KafkaException, TypeError, ValueError) as error:
        raise Halted(f"{topic.log}: {topic.told(error)}; look at options= of the topic") from None
    until = time.monotonic() + ASK_SECONDS_MAX
    while True:
        try:
            said = consumer.list_topics(topic.name, timeout=STEP_SECONDS).topics[topic.name].error
        except KafkaException as failed:
            consumer.poll(0)
            told = next((one for one in heard if trouble.concerns_all(one)), None)
            if told is None and time.monotonic() < until:
                continue
            said = told or failed.args[0]
        if said is not None:
            raise trouble.absent(topic, said)
        return
