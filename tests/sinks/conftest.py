"""Sinks are tested against real servers on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from redrive import Event, Sink
from redrive.sinks import pool
from redrive.testing.web import HttpServer

pytest.register_assert_rewrite("redrive.testing.contracts")


@pytest.fixture(params=[True, False], ids=["by itself", "through the session"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    """Both ways that a POST may go: which one depends on the release of aiohttp, and nobody may notice."""
    monkeypatch.setattr(pool, "goes_by_itself", request.param)
    with HttpServer() as running:
        yield running


def deliver(sink: Sink, *events: Event[Any]) -> None:
    """As a delivery does it, once."""

    async def once() -> None:
        await sink.open()
        try:
            await sink.send(events)
        finally:
            await sink.close()

    asyncio.run(once())
