"""Letters mirrored to Redis or Valkey: as entries of `{stream}:dlq`, or as a hash with an index by time.

A stream is told of each burial, and keeps it; an index holds the dead letters that there are, and no others. Where a
server was emptied, an index is written anew; a stream goes on with what comes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import redis

from redrive.codec import to_json
from redrive.errors import EventError, MirrorDown, UsageError
from redrive.failpoints import hit
from redrive.masking import mask
from redrive.mirrors.entry import NOTHING, Entry, decode, encode
from redrive.mirrors.port import Mirror
from redrive.options import named_options
from redrive.redis.stream import check_url

if TYPE_CHECKING:
    from redis import Redis

STREAM = "{source}:dlq"
READ_MAX = 100  # entries at a time; each may hold an event of a megabyte
_DATA, _LETTER, _METADATA = b"data", b"_letter", b"_dlq_metadata"


class _RedisMirror(Mirror):
    def __init__(self, url: str, name: str) -> None:
        super().__init__(name)
        self.url = check_url(name, url)
        self._open: Redis | None = None

    @property
    def server(self) -> Redis:
        """The connection, made at first use."""
        if self._open is None:
            self._open = _connect(self.url)
        return self._open

    def close(self) -> None:
        """Let go of the connection."""
        server, self._open = self._open, None
        if server is not None:
            server.close()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Whatever is wrong with the server or the way to it is told in our words."""
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise MirrorDown(f"{self.name}: {type(error).__name__}: {error}") from error


class LetterStream(_RedisMirror):
    """Each burial of a letter, and each edit of a dead one, is an entry of a stream: the event, and why it failed.

    The stream is called `{source}:dlq`, where the source is what the subscription reads; `orders:dlq` for a stream
    `orders`, `orders:backfill:dlq` for what comes from `orders:backfill`. `stream=` says otherwise, and may also name
    the `{subscription}`. `length_max=` trims the oldest.

    >>> LetterStream("redis://localhost", name="dead-stream").stream
    '{source}:dlq'
    """

    @named_options("LetterStream")
    def __init__(self, url: str, *, name: str, stream: str = STREAM, length_max: int | None = None) -> None:
        super().__init__(url, name)
        try:
            example = stream.format(source="source", subscription="subscription")
        except (AttributeError, KeyError, IndexError, ValueError):
            raise UsageError(
                f"{name}: stream={stream!r} may name {{source}} and {{subscription}}, and no more"
            ) from None
        if example in ("", "source") or not (length_max is None or (type(length_max) is int and length_max >= 1)):
            raise UsageError(
                f"{name}: stream={stream!r}, length_max={length_max!r}: a stream of its own, 1 entry or more"
            )
        self.stream, self._length_max = stream, length_max

    def write(self, entries: Sequence[Entry], now: float) -> None:
        """Add those that tell of a burial."""
        dead = [entry for entry in entries if entry.state == "dead"]
        if dead:
            with self.asking():
                pipe = self.server.pipeline(transaction=False)
                for entry in dead:
                    pipe.xadd(self.stream_of(entry), fields(entry), maxlen=self._length_max)
                pipe.execute()
                hit("mirror.block")

    def stream_of(self, entry: Entry) -> str:
        """The stream that an entry belongs to."""
        return self.stream.format(source=_stream(entry.source), subscription=entry.subscription)


class LetterIndex(_RedisMirror):
    """The dead letters that there are: `PREFIX:events`, a hash by number, and `PREFIX:index`, their numbers by time.

    A letter that is replayed stays until it is applied; one that is settled leaves.

    >>> LetterIndex("redis://localhost", "shop:letters", name="dead-index").events
    'shop:letters:events'
    """

    @named_options("LetterIndex")
    def __init__(self, url: str, prefix: str, *, name: str) -> None:
        super().__init__(url, name)
        if not prefix:
            raise UsageError(f"{name}: the index needs a prefix for its keys, such as 'shop:letters'")
        self.events, self.index, self._owner = f"{prefix}:events", f"{prefix}:index", f"{prefix}:owner"
        self._me = ""

    @property
    def place(self) -> object:
        """Two would take it from each other for ever."""
        return self.url, self.index

    def resume(self) -> int | None:
        """We are the owner from here on, and whoever was before writes no more; 0 if nobody ever was."""
        with self.asking():
            self._me = secrets.token_hex(16)
            return 0 if self.server.set(self._owner, self._me, get=True) is None else None

    def write(self, entries: Sequence[Entry], now: float) -> None:
        """Bring it up to date, in one step."""
        with self.asking(), self.server.pipeline(transaction=True) as pipe:
            pipe.watch(self._owner)  # type: ignore[no-untyped-call]
            if _text(pipe.get(self._owner)) != self._me:
                raise MirrorDown(f"{self.name}: another owner writes to {self.index!r}, or the server was emptied")
            pipe.multi()
            for entry in entries:
                if entry.is_open and (entry.state == "dead" or not entry.born):
                    pipe.hset(self.events, str(entry.letter), encode(entry))
                    pipe.zadd(self.index, {str(entry.letter): (entry.last_failed_at or entry.at).timestamp()})
                else:
                    pipe.hdel(self.events, str(entry.letter))
                    pipe.zrem(self.index, str(entry.letter))
            pipe.execute()
            hit("mirror.block")


def fields(entry: Entry) -> dict[Any, Any]:
    """An entry of a stream: the event as it was, as a CloudEvent, and what is known of its letter."""
    metadata = {
        "original_stream": _stream(entry.source), "original_id": entry.event_id, "consumer_group": entry.subscription,
        "consumer": entry.worker, "failed_at": (entry.last_failed_at or entry.at).isoformat(),
        "retry_count": max(0, entry.attempts - 1), "error": entry.error_message, "error_type": entry.error_type,
        "reason": entry.reason, "letter": entry.letter, "rev": entry.rev,
    }  # fmt: skip
    letter = encode(msgspec.structs.replace(entry, event=NOTHING))
    return {_DATA: bytes(entry.event), _METADATA: to_json(metadata), _LETTER: letter}


def read(address: str) -> Iterator[Entry]:
    """What `redis://HOST/DB/KEY` holds, a stream of letters or an index of them, in order."""
    url, key = _address(address)
    server = _connect(url)
    try:
        kind = _text(server.type(key))
        if kind == "stream":
            yield from _read_stream(server, key)
        elif kind == "hash":
            yield from _read_index(server, key)
        elif _text(server.type(f"{key}:events")) == "hash":
            yield from _read_index(server, f"{key}:events")
        elif kind != "none":
            raise UsageError(f"{key!r} is a {kind} there, neither a stream of letters nor an index of them")
        else:
            raise UsageError(f"there is no {key!r} on that server")
    except (redis.RedisError, OSError) as error:
        raise MirrorDown(f"{key}: {type(error).__name__}: {error}") from error
    finally:
        server.close()


def _read_stream(server: Redis, key: str) -> Iterator[Entry]:
    after = "-"
    while found := _some(server, key, after):
        for id, said in found:
            if _LETTER not in said:
                raise EventError(f"entry {_text(id)} is no letter of redrive's: it has no field _letter")
            yield msgspec.structs.replace(decode(said[_LETTER]), event=msgspec.Raw(said.get(_DATA, b"null")))
        after = f"({_text(found[-1][0])}"


def _some(server: Redis, key: str, after: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    found: Any = server.xrange(key, min=after, count=READ_MAX)
    return list(found)


def _read_index(server: Redis, key: str) -> Iterator[Entry]:
    entries = [decode(body) for _, body in server.hscan_iter(key, count=READ_MAX)]
    yield from sorted(entries, key=lambda entry: entry.seq)


def _address(address: str) -> tuple[str, str]:
    """The server's address, and the key.

    >>> _address("redis://localhost:6379/0/orders:dlq")
    ('redis://localhost:6379/0', 'orders:dlq')
    """
    parts = urlsplit(address)
    head, _, key = parts.path.removeprefix("/").partition("/")
    if not head.isdecimal():
        head, key = "0", f"{head}/{key}" if key else head
    if not key:
        raise UsageError(f"{mask(address)}: add the stream: redis://HOST/DB/STREAM")
    return urlunsplit(parts._replace(path=f"/{head}")), key


def _connect(url: str) -> Redis:
    try:
        return redis.Redis.from_url(url, socket_connect_timeout=5.0, socket_timeout=10.0, health_check_interval=0)
    except ValueError as error:  # the text of a wrong port is a part of the password
        raise UsageError(f"{mask(url)} is no address of a Redis server: {type(error).__name__}") from None


def _stream(source: str) -> str:
    """The stream or topic whose messages land in a log, or the log itself."""
    return source.removeprefix("redis:").removeprefix("kafka:")


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
