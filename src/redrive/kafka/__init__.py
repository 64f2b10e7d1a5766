"""Kafka topics: `redrive.kafka.Topic`."""

from redrive.kafka.topic import Topic

__all__ = ["Topic"]
