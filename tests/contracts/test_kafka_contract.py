"""Kafka topics keep the contract of a broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from redrive.kafka import Topic
from redrive.sources.port import Source
from redrive.testing.contracts import BrokerContract
from redrive.testing.kafka import Kafka, write

NUMBERS = itertools.count()


class TestTopic(BrokerContract):
    cluster: ClassVar[Kafka]
    can_break = can_forget = True
    # can_lose: what is deleted was fetched by then, by a reader that is open. See tests/sources/test_kafka.py.

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _cluster(cls) -> Iterator[None]:
        cls.cluster = Kafka()
        yield
        cls.cluster.close()

    def setup_method(self) -> None:
        self.name = f"orders{next(NUMBERS)}"
        self.cluster.make(self.name)
        super().setup_method()

    def make_source(self) -> Source:
        return Topic(self.cluster.bootstrap, self.name, options={"fetch.wait.max.ms": 5})

    def say(self, data: Any, *, key: str, id: str | None = None) -> None:
        headers = {"type": "order.placed"} | ({"id": id} if id else {})
        self.write(key=key, value=json.dumps(data), headers=headers)

    def write(self, **message: Any) -> None:
        write(self.cluster.bootstrap, [{"topic": self.name, "partition": 0, **message}])

    def spoil(self) -> None:
        self.write(key="a", value="{", headers={"type": "order.placed"})

    def forget(self) -> None:
        self.cluster.delete(self.name)
        self.cluster.make(self.name)
        self.say(0, key="k0", id="old")

    def break_down(self) -> None:
        self.cluster.stop()

    def recover(self) -> None:
        self.cluster.start()
