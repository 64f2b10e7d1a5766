"""Kafka topics: `Topic`, and a `Codec` to read it by."""

from redrive.kafka.topic import Topic
from redrive.sources.codec import Codec

__all__ = ["Codec", "Topic"]
