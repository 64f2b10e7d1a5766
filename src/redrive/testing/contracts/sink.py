"""The contract of a sink: what a delivery relies on. Inherit it and say how to look at the other side.

class TestShelf(SinkContract):
    def make_sink(self):
        return Shelf("shelf", self.where)
    def delivered(self):
        return [the ids that the other side has, in the order they came]
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from redrive.event import Event
from redrive.sinks.port import Sink, SomeFailed
from redrive.testing.fakes import make_event

TIME_MAX = 30.0  # seconds within which any send has to end, whatever the other side does

_ODD: tuple[dict[str, Any], ...] = (
    {"data": None},
    {"data": {"text": 'line\nend \u2028 "quoted" \\ ✓ \x00', "deep": [[[[1.5]]]]}},
    {"data": "x" * 200_000},
    {"data": 9_007_199_254_740_993},
    {"key": "Köln / 50% \u00ad✓"},
    {"key": "k", "headers": {"tenant": "a", "X-Odd Name": "ö, ✓", "empty": "", "subject": "x"}},
    {"id": 'an odd.id, 50% "Köln" ✓'},
)


class SinkTests:
    """What you write: how to make the sink, and how to look at the other side and to break it."""

    can_break = True  # `break_down` and `recover` are written
    can_refuse = False  # `refuse` is written: the other side can take one event and not another
    can_hang = False  # `hang` is written; the sink has to have a timeout, which should be short here

    def make_sink(self) -> Sink:
        """The sink under test. Called again, it gives another one for the same place."""
        raise AssertionError("a sink's contract needs make_sink(self)")

    def delivered(self) -> list[str]:
        """The ids that have arrived at the other side, in the order they came."""
        raise AssertionError("a sink's contract needs delivered(self)")

    def break_down(self) -> None:
        """From now on the other side takes nothing."""
        raise AssertionError("a sink's contract needs break_down(self), or can_break = False")

    def hang(self) -> None:
        """From now on the other side does not answer, until `recover`."""
        raise AssertionError("can_hang needs hang(self)")

    def refuse(self, event_id: str) -> None:
        """The other side will not take this event, and takes others."""
        raise AssertionError("can_refuse needs refuse(self, event_id)")

    def recover(self) -> None:
        """The other side is as it was before `break_down` or `hang`."""
        raise AssertionError("a sink's contract needs recover(self), or can_break = False")

    def secrets(self) -> Sequence[str]:
        """What must not be seen in an error or a `repr`: passwords, tokens, paths of webhooks."""
        return ()

    def _run(self, act: Callable[[Sink], Awaitable[None]]) -> Sink:
        """Open a sink, use it, close it."""

        async def story() -> Sink:
            async with _opened(self.make_sink()) as sink:
                await asyncio.wait_for(act(sink), TIME_MAX)
                return sink

        return asyncio.run(story())

    def _error(self, act: Callable[[Sink], Awaitable[None]]) -> BaseException | None:
        async def story() -> BaseException | None:
            async with _opened(self.make_sink()) as sink:
                return await _error_of(act(sink))

        return asyncio.run(story())

    def _fails(self, events: Sequence[Event[Any]]) -> BaseException:
        error = self._error(lambda sink: sink.send(events))
        assert error is not None, "it took what cannot have arrived"
        return error


class DeliveryContract(SinkTests):
    """What arrives while all is well."""

    def test_its_name_and_limits_are_fixed(self) -> None:
        one, other = self.make_sink(), self.make_sink()
        assert isinstance(one.name, str) and one.name and one.name == other.name
        assert isinstance(one.batch_max, int) and one.batch_max >= 1
        assert one.batch_wait >= 0

    def test_what_send_returns_from_has_arrived(self) -> None:
        event = make_event("order.placed", {"cents": 4200}, key="a", id="one")
        self._run(lambda sink: sink.send([event]))
        assert self.delivered() == ["one"]

    def test_a_full_batch_arrives_whole_and_in_order(self) -> None:
        async def batches(sink: Sink) -> None:
            for first in (0, sink.batch_max):
                await sink.send(_events(sink.batch_max, first))

        sink = self._run(batches)
        assert self.delivered() == [f"id-{number}" for number in range(2 * sink.batch_max)]

    def test_nothing_to_send_is_nothing_to_do(self) -> None:
        self._run(lambda sink: sink.send([]))
        assert self.delivered() == []

    def test_an_event_that_comes_again_is_taken_again(self) -> None:
        async def twice(sink: Sink) -> None:
            await sink.send(_events(1))
            await sink.send(_events(1))

        self._run(twice)
        assert set(self.delivered()) == {"id-0"}

    def test_odd_events_arrive_like_others(self) -> None:
        events = [make_event("odd.one", **{"data": {}, "id": f"odd-{n}", **rest}) for n, rest in enumerate(_ODD)]

        async def each(sink: Sink) -> None:
            for event in events:
                await sink.send([event])

        self._run(each)
        assert self.delivered() == [event.id for event in events]

    def test_sends_may_overlap(self) -> None:
        async def together(sink: Sink) -> None:
            await asyncio.gather(*[sink.send(_events(1, number)) for number in range(20)])

        self._run(together)
        assert sorted(self.delivered()) == sorted(f"id-{number}" for number in range(20))

    def test_it_can_be_closed_at_any_time_and_opened_again(self) -> None:
        async def story() -> None:
            sink = self.make_sink()
            await sink.close()
            for number in range(3):
                await sink.open()
                await sink.send(_events(1, number))
                await sink.close()
                await sink.close()

        asyncio.run(story())
        assert self.delivered() == ["id-0", "id-1", "id-2"]

    def test_a_sink_serves_one_loop_after_another(self) -> None:
        sink = self.make_sink()

        async def once(number: int) -> None:
            await sink.open()
            await sink.send(_events(1, number))
            await sink.close()

        for number in range(2):
            asyncio.run(once(number))
        assert self.delivered() == ["id-0", "id-1"]

    def test_a_send_that_is_given_up_leaves_the_sink_usable(self) -> None:
        async def story(sink: Sink) -> None:
            task = asyncio.ensure_future(sink.send(_events(1)))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await sink.send(_events(1, 1))

        self._run(story)
        assert [one for one in self.delivered() if one != "id-0"] == ["id-1"]


class TroubleContract(SinkTests):
    """What happens when the other side is not well."""

    def test_a_place_that_takes_nothing_is_an_error_and_never_a_receipt(self) -> None:
        if not self.can_break:
            return
        self.break_down()
        shown = repr(self.make_sink())
        try:
            for count in (1, self.make_sink().batch_max):
                error = self._fails(_events(count))
                assert not isinstance(error, SomeFailed) or set(error.errors) == set(range(count))
                shown += f"{error!r} {error} {error.__cause__!r}"
        finally:
            self.recover()
        assert self.delivered() == []
        for secret in self.secrets():
            assert secret not in shown, "an error or a repr shows a secret"

    def test_it_goes_on_when_the_place_is_back(self) -> None:
        if not self.can_break:
            return

        async def story(sink: Sink) -> None:
            await sink.send(_events(1))
            self.break_down()
            error = await _error_of(sink.send(_events(1, 1)))
            self.recover()
            assert error is not None, "it took what cannot have arrived"
            await sink.send(_events(1, 1))

        self._run(story)
        assert self.delivered() == ["id-0", "id-1"]

    def test_a_place_that_hangs_is_left_in_time(self) -> None:
        if not self.can_hang:
            return
        self.hang()
        try:
            self._fails(_events(1))
        finally:
            self.recover()

    def test_an_event_that_is_refused_is_named_and_the_others_arrive(self) -> None:
        if not self.can_refuse:
            return
        count = min(self.make_sink().batch_max, 7)
        refused = f"id-{count // 2}"
        self.refuse(refused)
        error = self._fails(_events(count))
        if count > 1:
            assert isinstance(error, SomeFailed), f"the sink does not say which: {error!r}"
            assert set(error.errors) == {count // 2}
        assert set(self.delivered()) == {f"id-{number}" for number in range(count)} - {refused}

    def test_a_probe_tells_well_from_unwell(self) -> None:
        sink = self.make_sink()
        if not (sink.can_probe() and self.can_break):
            return
        self._run(lambda sink: sink.probe())
        self.break_down()
        try:
            assert self._error(lambda sink: sink.probe()) is not None, "it says that it is well"
        finally:
            self.recover()
        self._run(lambda sink: sink.probe())
        assert self.delivered() == [], "a probe is no event"


class SinkContract(DeliveryContract, TroubleContract):
    """Every test has a sink of its own. What your sink cannot do, its class says: see the attributes of SinkTests."""


@contextlib.asynccontextmanager
async def _opened(sink: Sink) -> AsyncIterator[Sink]:
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


async def _error_of(doing: Awaitable[None]) -> BaseException | None:
    """What it raised; that it did not end in time is a broken contract and not an answer."""
    task = asyncio.ensure_future(doing)
    done, _ = await asyncio.wait([task], timeout=TIME_MAX)
    if not done:
        task.cancel()
        raise AssertionError(f"it did not end within {TIME_MAX:g} s: it needs a timeout of its own")
    return task.exception()


def _events(count: int, first: int = 0) -> list[Event[Any]]:
    return [
        make_event("order.placed", {"number": number}, key=f"k{number % 3}", id=f"id-{number}", position=number + 1)
        for number in range(first, first + count)
    ]
