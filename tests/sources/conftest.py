"""A real Valkey for each test process, emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from redrive.testing.brokers import valkey

pytest.register_assert_rewrite("redrive.testing.contracts")


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    with valkey() as url:
        yield url


@pytest.fixture
def server(valkey_url: str) -> Iterator[Any]:
    """A client, and an empty server."""
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        yield client
