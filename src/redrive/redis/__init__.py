"""Redis and Valkey streams: `redrive.redis.Stream`."""

from redrive.redis.stream import Stream

__all__ = ["Stream"]
