"""What can be wrong with a topic, told in our words: what happened, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from redrive.errors import Halted, SourceDown, StoreError

if TYPE_CHECKING:
    from redrive.kafka.topic import Topic

OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
}  # fmt: skip
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION,
    KafkaError._SSL, KafkaError.UNSUPPORTED_SASL_MECHANISM,
}  # fmt: skip


def concerns_all(error: KafkaError) -> bool:
    """Is there nothing to be had from the whole cluster? Single connections come and go."""
    return error.fatal() or error.code() == KafkaError._ALL_BROKERS_DOWN or error.code() in _REFUSED


def told(topic: Topic, error: KafkaError) -> StoreError:
    """An error of librdkafka's."""
    said = topic.told(error.str())
    if error.code() in _GONE:
        return Halted(
            f"{topic.log}: topic {topic.name!r} was read, and is not there any more ({said}). Bring it back; if it "
            f"was made anew, Topic(…, generation={topic.generation + 1}) reads it from its start"
        )
    if error.code() in _REFUSED:
        return Halted(f"{topic.log}: {topic.bootstrap} does not let us: {said}. Look at options= and at its ACLs")
    return SourceDown(f"{topic.log}: {topic.bootstrap} cannot be read: {said}")


def absent(topic: Topic, error: KafkaError) -> StoreError:
    """There is no such topic, and there never was."""
    if error.code() in _GONE:
        return SourceDown(f"{topic.log}: there is no topic {topic.name!r} at {topic.bootstrap}; it is waited for")
    return told(topic, error)


def another(topic: Topic, partition: int, why: str) -> Halted:
    """It is not the topic that was read."""
    return Halted(
        f"{topic.log}: partition {partition} of topic {topic.name!r}: {why}. Was the topic made anew, or a backup "
        f"restored? Bring back what it had; or Topic(…, generation={topic.generation + 1}) reads it from its start "
        f"as another topic"
    )


def deleted(topic: Topic, partition: int, first: int, low: int) -> str:
    """Messages that nobody will ever read."""
    gone = f"offsets {first} to {low - 1} ({low - first:,} messages)"
    return f"partition {partition} of topic {topic.name!r}: {gone} were deleted before they were read"


def too_late(topic: Topic, why: str, low: int) -> Halted:
    """Messages were deleted, and the program does not say that it can do without."""
    return Halted(
        f"{topic.log}: {why}. Its retention is shorter than we were away. Bring them back; or say "
        f'Topic(…, lost="letter") to have a letter in their place, and to go on with offset {low}'
    )
