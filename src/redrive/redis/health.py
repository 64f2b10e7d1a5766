"""What a server says of itself that will hurt: eviction, no file, trimmed streams. It may also say nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import redis

from redrive.errors import SourceDown
from redrive.redis.reading import Census

if TYPE_CHECKING:
    from redrive.redis.stream import Stream


def warnings(stream: Stream) -> list[str]:
    """What to know before something is lost. SourceDown if it cannot be asked."""
    try:
        with stream.connect() as server:
            return [*_settings(server), *_trimmed(server, stream)]
    except (redis.RedisError, OSError) as error:
        raise SourceDown(f"{stream.log}: {type(error).__name__}: {error}") from error


def _settings(server: redis.Redis) -> Iterator[str]:
    """INFO tells as much as CONFIG GET, which hosted servers refuse."""
    policy = _told(lambda: server.info("memory")).get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield (
            f"the server has maxmemory-policy {policy}: short of memory it deletes what was not read, and nobody can "
            "tell; set noeviction"
        )
    if not _told(lambda: server.info("persistence")).get("aof_enabled", 1):
        yield (
            "the server has appendonly no: what it was given since its last snapshot is lost when it stops; set "
            "appendonly yes"
        )


def _trimmed(server: redis.Redis, stream: Stream) -> Iterator[str]:
    for name in stream.streams:
        state = _told(lambda name=name: server.xinfo_stream(name))  # type: ignore[misc]
        gone = Census.of(state).gone if state else None
        if gone:
            yield (
                f"stream {name!r} is trimmed, {gone:,} entries are gone: what is trimmed before it is read becomes a "
                "letter lost_at_source; let it keep more than a worker may ever be behind"
            )


def _told(ask: Callable[[], Any]) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = ask()
    except redis.ResponseError:  # it is not allowed to say, or there is no stream yet
        return {}
    return found
