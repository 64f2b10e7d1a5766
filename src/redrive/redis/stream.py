"""A Redis or Valkey stream as a source.

With `partitions=` it is read in order by one owner, who keeps its place in the store: nothing is acknowledged, nobody
else is disturbed, and a key's events arrive as they were written. Without, it is read through a consumer group, beside
whoever else reads in it; a group hands out entries in nobody's order, so `order="none"` is all that it allows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from redrive.errors import UsageError
from redrive.event import check_source
from redrive.masking import mask_text
from redrive.options import named_options
from redrive.policy.partitions import PARTITIONS_MAX
from redrive.policy.retry import seconds_of
from redrive.sinks.brokers import BrokerSink, Sender, check_format
from redrive.sources.codec import Codec, Format, codec_of
from redrive.sources.port import Reader, Source

if TYPE_CHECKING:
    from redis import ConnectionPool, Redis

MIN_IDLE = "60s"
SCHEMES = ("redis://", "rediss://", "unix://")
TEXTS = {"decode_responses", "encoding", "encoding_errors"}  # options of the driver that would change what we are told


def line_of(pool: ConnectionPool) -> Any:
    """A connection; before 6.0 the driver wants to know for which command, and later on it warns who tells."""
    try:
        return pool.get_connection()
    except TypeError:
        return pool.get_connection("ANY")


def check_url(name: str, url: str) -> str:
    """The address of a server, if it is one and there is a driver for it; what it says of passwords is not shown."""
    if find_spec("redis") is None:
        raise UsageError(f"{name}: Redis and Valkey need a driver: pip install 'redrive[redis]'")
    try:
        is_one = url.startswith(SCHEMES) and urlsplit(url).port != 0 and _names_a_database(url) and _is_whole(url)
    except (AttributeError, ValueError):  # no text, or a port that is no number
        is_one = False
    if not is_one:
        raise UsageError(
            f"{name}: the address of its server is like redis://HOST:6379/0, or rediss://… or unix://…; "
            "in its password, write @ as %40, / as %2F, ? as %3F, # as %23"
        )
    options = parse_qs(urlsplit(url).query)
    if texts := sorted(TEXTS & options.keys()):
        raise UsageError(f"{name}: leave {texts[0]} out of the address: what is read and written are bytes")
    if options:
        _check_options(name, url)
    return url


def _is_whole(url: str) -> bool:
    """Does the server's part end where it seems to? In a password, each of / ? # and @ must be escaped."""
    parts = urlsplit(url)
    rest = parts.query if parts.scheme == "unix" else parts.path + parts.query
    return not parts.fragment and "@" not in rest and parts.netloc.count("@") <= 1


def _names_a_database(url: str) -> bool:
    """A database has a number; the driver would pass over anything else, and take the first."""
    parts = urlsplit(url)
    return parts.scheme == "unix" or re.fullmatch(r"/*[0-9]*/*", parts.path) is not None


def _check_options(name: str, url: str) -> None:
    """The driver says what it makes of them when it first connects, which would be in the middle of the work."""
    import redis

    try:
        pool = redis.ConnectionPool.from_url(url)
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, redis.RedisError) as error:
        raise UsageError(
            f"{name}: an option in the address of its server is none of the driver's: {mask_text(str(error))}"
        ) from None


class Stream(Source):
    """One stream, or the `partitions` streams NAME:0, NAME:1, …; source and target.

    With `backfill=True` the stream NAME:backfill, which is taken in only while nobody has work on NAME.

    >>> Stream("redis://localhost", "orders", partitions=1).ordered
    True
    """

    scheme = "redis"

    @named_options("Stream")
    def __init__(
        self,
        url: str,
        name: str,
        *,
        partitions: int | None = None,
        min_idle: str | float = MIN_IDLE,
        format: Format = "auto",
        codec: Codec | None = None,
        maxlen: int | None = None,
        backfill: bool = False,
    ) -> None:
        check_source(name)
        if backfill:
            self.behind = f"{self.scheme}:{name}"
            name = check_source(f"{name}:backfill")
        if partitions is not None and not (type(partitions) is int and 1 <= partitions <= PARTITIONS_MAX):
            raise UsageError(f"{name}: partitions={partitions!r}; give a number from 1 to {PARTITIONS_MAX:,}")
        if maxlen is not None and not (type(maxlen) is int and maxlen >= 1):
            raise UsageError(f"{name}: maxlen={maxlen!r}; give the number of entries that are to stay, about")
        self.url, self.name, self.maxlen = check_url(name, url), name, maxlen
        self.ordered, self.acknowledges = partitions is not None, partitions is None
        self.partitions = partitions or 1
        self.min_idle = seconds_of(f"{name}: min_idle", min_idle)
        self.codec = codec_of(name, format, codec)

    @property
    def streams(self) -> list[str]:
        """The keys of the server that it reads."""
        return [self.stream_of(number, self.partitions) for number in range(self.partitions)]

    def stream_of(self, number: int, partitions: int) -> str:
        """One of so many."""
        return self.name if partitions == 1 else f"{self.name}:{number}"

    def check_order(self, order: str) -> None:
        """A group hands out entries in nobody's order."""
        if not self.ordered and order != "none":
            raise UsageError(
                f'stream {self.name!r}: order="{order}" cannot be kept when a consumer group hands out the entries. '
                f'Say order="none"; or Stream(…, partitions=1), which reads the stream in order, for this program alone'
            )
        if order == "total" and self.partitions > 1:
            raise UsageError(
                f'stream {self.name!r}: {self.partitions} streams have no common order; order="key" they have'
            )

    def connect(self) -> Redis:
        """A connection of its own."""
        import redis

        return redis.Redis.from_url(self.url, socket_connect_timeout=5.0, socket_timeout=30.0, health_check_interval=0)

    def open(self, group: str) -> Reader:
        """Read in order, or through the group."""
        from redrive.redis.group import GroupReader
        from redrive.redis.ordered import OrderedReader

        kind: Any = OrderedReader if self.ordered else GroupReader
        reader: Reader = kind(self, group)
        return reader

    def warnings(self) -> Sequence[str]:
        """What the server says of itself that will hurt."""
        from redrive.redis.health import warnings

        return warnings(self)

    def unacknowledged(self, group: str, most: int) -> Sequence[str]:
        """The ids of entries that the group has handed out and not heard of again."""
        if not self.acknowledges:
            return ()
        from redrive.redis.group import GroupReader

        reader = GroupReader(self, group)
        try:
            return reader.unacknowledged(most)
        finally:
            reader.close()

    def sink(self, name: str) -> BrokerSink:
        """Write to it, as a delivery of this name."""
        check_format(repr(self), self.codec.format)
        return BrokerSink(name, repr(self), self._sender)

    def _sender(self, log: str, timeout: float) -> Sender:
        from redrive.redis.sending import StreamSender

        return StreamSender(self, log, timeout)

    def pool(self, timeout: float, connect_timeout: float) -> ConnectionPool:
        """Connections for those who send."""
        import redis

        return redis.ConnectionPool.from_url(
            self.url, socket_connect_timeout=connect_timeout, socket_timeout=timeout, health_check_interval=0
        )
