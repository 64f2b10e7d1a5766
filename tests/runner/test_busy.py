"""A sink that is down and says when to come back is left alone as any other; and it is told of edits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from redrive import App, RetryLater, auto_replay, breaker, retry
from redrive.event import Event
from redrive.sinks.http import Busy
from redrive.sinks.port import Sink
from redrive.testing import Harness
from redrive.testing.fakes import FakeClock


class Crm(Sink):
    """Answers `503`, with a `Retry-After`, until it is well; remembers when it was called for which key."""

    def __init__(self) -> None:
        super().__init__("crm")
        self.error: Exception | None = Busy("https://crm.example.com", 503, 30.0)
        self.calls: list[tuple[float, str | None]] = []
        self.clock = FakeClock()

    async def send(self, events: Sequence[Event[Any]]) -> None:
        self.calls += [(self.clock.monotonic(), event.key) for event in events]
        if self.error is not None:
            raise self.error


@pytest.fixture
def crm() -> Crm:
    return Crm()


def shop(crm: Crm, backend: str | None, **options: Any) -> Harness:
    app = App("unused.db")
    app.deliver(app.log("orders"), to=crm, start="first", **options)
    harness = Harness(app, backend)
    crm.clock = harness.clock
    return harness


@pytest.fixture
def harness(crm: Crm, backend: str | None) -> Iterator[Harness]:
    with shop(crm, backend) as made:
        yield made


def test_who_says_later_to_everybody_is_left_alone_and_costs_no_event_its_attempts(harness: Harness, crm: Crm) -> None:
    """Each event had come back by itself, five times, and had died of it; the sink had got thousands of requests."""
    for number in range(120):
        harness.append("orders", "order.placed", key=str(number))
        harness.advance("5s")
    assert len(crm.calls) <= 5 + 12, "five, and then one a minute"
    assert not harness.letters("dead")
    crm.error = None
    harness.advance("5m")
    assert not harness.letters("retrying") and not harness.letters("dead")
    assert {key for _, key in crm.calls} == {str(number) for number in range(120)}


def test_a_retry_later_of_ones_own_says_nothing_of_the_other_side(harness: Harness, crm: Crm) -> None:
    crm.error = RetryLater("30s", "not yet")
    for number in range(10):
        harness.append("orders", "order.placed", key=str(number))
    harness.advance("1s")
    assert len(crm.calls) == 10


def test_on_error_hears_of_who_says_later_as_of_who_says_nothing(crm: Crm, backend: str | None) -> None:
    heard: list[BaseException] = []
    with shop(crm, backend, on_error=lambda event, error: heard.append(error)) as harness:
        harness.append("orders", "order.placed", key="a")
        harness.run_until_idle()
        assert heard == [crm.error]
        crm.error = RetryLater("30s", "a verdict of its own")
        harness.append("orders", "order.placed", key="b")
        harness.run_until_idle()
    assert len(heard) == 1


def test_the_time_that_was_said_is_kept_by_each_event(harness: Harness, crm: Crm) -> None:
    crm.error = Busy("https://crm.example.com", 429, 600.0)
    harness.append("orders", "order.placed", key="a")
    harness.advance("9m")
    assert len(crm.calls) == 1
    crm.error = None
    harness.advance("2m")
    assert [round(at) for at, _ in crm.calls] == [0, 600]


def test_a_key_whose_place_says_later_waits_as_long_and_holds_up_nobody(crm: Crm, backend: str | None) -> None:
    with shop(crm, backend, breaker=breaker(per="key", failures=2, cooldown="60s")) as harness:
        crm.error = Busy("https://a.example.com", 503, 600.0)
        for _ in range(3):
            harness.append("orders", "order.placed", key="a")
        harness.advance("59m")
        assert Counter(key for _, key in crm.calls) == {"a": 6}, "as it said, however soon the breaker would try again"
        assert not harness.letters("dead"), "what the place is to blame for costs no attempt"
        crm.error = None
        harness.append("orders", "order.placed", key="b")
        harness.advance("11m")
        assert not harness.letters("retrying")


def test_a_letter_that_died_of_it_names_who_said_so_and_comes_round_when_it_is_well(
    crm: Crm, backend: str | None
) -> None:
    once = retry(attempts=1)
    rule = breaker(failures=1, cooldown="60s", probes=1)
    with shop(crm, backend, retry=once, breaker=rule, replay=auto_replay(on_recovery=True)) as harness:
        harness.append("orders", "order.placed", key="a")
        harness.advance("1s")
        assert [letter.dependency for letter in harness.letters("dead")] == ["crm"]
        crm.error = None
        harness.append("orders", "order.placed", key="b")
        harness.advance("5m")
        assert not harness.letters("dead")


def test_a_sink_is_told_that_the_data_was_edited_after_a_restart_too(crm: Crm, backend: str | None) -> None:
    seen: list[tuple[int, Any]] = []

    class Shelf(Crm):
        async def send(self, events: Sequence[Event[Any]]) -> None:
            seen.extend((event.edits, event.data) for event in events)
            await super().send(events)

    shelf = Shelf()
    with shop(shelf, backend, retry=retry(attempts=1), breaker=None) as harness:
        harness.append("orders", "order.placed", {"cents": 0}, key="a")
        harness.run_until_idle()
        for cents in (1, 2):
            (letter,) = harness.letters("dead")
            harness.app.operate().letters.edit(letter.id, {"cents": cents}, "what was meant")
            harness.restart()
            shelf.error = None if cents == 2 else shelf.error
            harness.replay()
        assert seen == [(0, {"cents": 0}), (1, {"cents": 1}), (2, {"cents": 2})]
        assert not harness.letters("dead")


@pytest.mark.parametrize("lists", [4, 5])
def test_a_list_that_was_not_taken_is_one_call_that_failed(backend: str | None, lists: int) -> None:
    """One lost connection had opened the breaker of every sink that takes lists."""

    class Shelf(Crm):
        batch_max = 20

        async def send(self, events: Sequence[Event[Any]]) -> None:
            self.calls.append((self.clock.monotonic(), None))
            if len(self.calls) <= lists:
                raise ConnectionResetError("cut")

    shelf = Shelf()
    with shop(shelf, backend, concurrency=1, retry=retry(attempts=9, wait="10s")) as harness:
        harness.app.log("orders").append_many([{"type": "order.placed", "key": str(n)} for n in range(20 * lists)])
        harness.advance("5s")
        assert len(shelf.calls) == lists
        (found,) = harness.app.operate().breakers.list()
        assert (found.state, found.failures) == (("closed", 4) if lists == 4 else ("open", 0))
        harness.advance("5m")
        assert not harness.letters("retrying")
