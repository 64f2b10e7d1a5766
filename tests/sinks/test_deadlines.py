"""Late requests: each has its own time, though one timer watches them all; who else cancels is not taken for late."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from redrive.policy.classify import http_status
from redrive.sinks.deadlines import Deadlines
from redrive.sinks.http import NoAnswer
from redrive.testing.web import Hang, HttpServer, Reply, Request
from tests.sinks.test_webhook import ORDER, failure, hook

UNFINISHED = {"content-length": "9"}  # of which the server sends less, and then nothing


def test_an_answer_whose_body_does_not_come_in_time_is_still_a_receipt(server: HttpServer) -> None:
    async def ask() -> Any:
        sink = hook(server, timeout="100ms")
        answer = await sink.request("POST", sink._url, {})
        await sink.close()
        return answer

    server.then(Reply(202, UNFINISHED, b"than"))
    answer = asyncio.run(ask())
    assert (answer.status, answer.body, answer.complete) == (202, b"than", False)
    assert http_status(failure(server, Reply(500, UNFINISHED, b"oops"), timeout="100ms")) == 500


def hangs(server: HttpServer) -> asyncio.Event:
    """From now on; the event says that a request has come."""
    came, loop = asyncio.Event(), asyncio.get_running_loop()

    def hang(_: Request) -> Hang:
        loop.call_soon_threadsafe(came.set)
        return Hang()

    server.behave = hang
    return came


def test_who_began_later_is_late_later(server: HttpServer) -> None:
    async def story() -> list[float]:
        sink = hook(server, timeout="200ms")
        clock = asyncio.get_running_loop().time

        async def send() -> float:
            began = clock()
            with pytest.raises(NoAnswer):
                await sink.send([ORDER])
            return clock() - began

        came = hangs(server)
        first = asyncio.create_task(send())
        await came.wait()
        waited = await asyncio.gather(first, send())
        server.behave = Reply()
        await sink.send([ORDER])  # nobody else is under way; and after that nobody is
        hangs(server)
        waited.append(await send())
        await sink.close()
        return waited

    assert min(asyncio.run(story())) >= 0.2


def test_a_request_that_was_late_leaves_no_trace_in_its_task(server: HttpServer) -> None:
    async def story() -> None:
        sink, task = hook(server, timeout="1s"), asyncio.current_task()  # for the second request it is to be enough
        server.then(Hang())
        with pytest.raises(NoAnswer):
            await sink.send([ORDER])
        assert task is not None and task.cancelling() == 0
        await sink.send([ORDER])
        await sink.close()

    asyncio.run(story())
    assert len(server.requests) == 2


def test_a_cancellation_by_others_stays_one(server: HttpServer) -> None:
    async def story() -> None:
        sink = hook(server, timeout="30s")
        came = hangs(server)
        sending = asyncio.create_task(sink.send([ORDER]))
        await came.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await sink.close()

    asyncio.run(story())


@pytest.mark.parametrize("by_others", [False, True])
def test_only_a_cancellation_that_is_ours_alone_means_late(by_others: bool) -> None:
    async def story() -> tuple[bool, int]:
        deadlines = Deadlines(0.0)

        async def request() -> tuple[bool, int]:
            task = deadlines.begin()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return deadlines.is_late(task), task.cancelling()
            finally:
                deadlines.end(task)
            raise AssertionError

        task = asyncio.create_task(request())
        await asyncio.sleep(0)  # it has begun
        if by_others:
            task.cancel()
        deadlines._look()
        return await task

    assert asyncio.run(story()) == ((False, 1) if by_others else (True, 0))


def test_an_answer_may_be_faster_than_the_cancellation() -> None:
    async def story() -> int:
        deadlines = Deadlines(0.0)
        task = deadlines.begin()
        deadlines._look()
        with suppress(asyncio.CancelledError):  # as a client may, that has its answer
            await asyncio.sleep(0)
        deadlines.end(task)
        await asyncio.sleep(0)
        return task.cancelling()

    assert asyncio.run(story()) == 0
