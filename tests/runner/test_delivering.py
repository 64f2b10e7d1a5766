"""Deliveries: every event arrives, in key order, and a sink that is not well delays nobody but itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ignore, Reject, StoreError, UsageError, breaker, retry
from redrive.event import Event
from redrive.observe import signals as sig
from redrive.settings import Settings
from redrive.sinks.port import Sink, SomeFailed
from redrive.testing import Harness
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint
from redrive.testing.fakes import FakeClock

QUICK = retry(attempts=3, wait="1s", factor=1, jitter=0)


class Shelf(Sink):
    """Keeps what it is sent; fails as it is told."""

    def __init__(self, name: str, batch_max: int = 1, *, whole: bool = False, clock: FakeClock | None = None) -> None:
        super().__init__(name)
        self.batch_max, self.whole = batch_max, whole
        self.clock, self.times = clock or FakeClock(), list[float]()
        self.lists: list[list[str]] = []
        self.calls = self.under_way = self.peak = 0
        self.takes = 0.0  # seconds for one call
        self.refuse: Callable[[str], BaseException | None] = lambda name: None
        self.down: BaseException | None = None

    async def send(self, events: Sequence[Event[Any]]) -> None:
        self.calls += 1
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        try:
            await asyncio.sleep(self.takes)
        finally:
            self.under_way -= 1
        if self.down is not None:
            raise self.down
        errors = {at: error for at, event in enumerate(events) if (error := self.refuse(event.data)) is not None}
        if errors and self.whole:
            raise next(iter(errors.values()))
        self.times += [self.clock.monotonic()] * (len(events) - len(errors))
        self.lists.append([event.data for at, event in enumerate(events) if at not in errors])
        if errors:
            raise SomeFailed(errors)

    @property
    def got(self) -> list[str]:
        return [name for names in self.lists for name in names]


def put(harness: Harness, *names: str) -> None:
    for name in names:
        harness.append("orders", "order.placed", name, key=name[0])


def deliver(app: App, *sinks: Sink, **options: Any) -> None:
    app.deliver(app.log("orders"), to=sinks, start="first", **{"retry": QUICK, **options})


def test_every_sink_gets_every_event_in_key_order(app: App, harness: Harness) -> None:
    crm, warehouse = Shelf("crm"), Shelf("warehouse", batch_max=10)
    deliver(app, crm, warehouse)
    names = [f"{key}{n}" for n in range(5) for key in "abc"]
    put(harness, *names)
    harness.run_until_idle()
    for sink in (crm, warehouse):
        assert sorted(sink.got) == sorted(names)
        assert [name for name in sink.got if name[0] == "b"] == ["b0", "b1", "b2", "b3", "b4"]


def test_a_list_holds_one_event_of_a_key_unless_the_sink_takes_all_or_nothing(app: App, harness: Harness) -> None:
    split, whole = Shelf("split", batch_max=10), Shelf("whole", batch_max=10, whole=True)
    deliver(app, split, whole, concurrency=1)
    put(harness, "a1", "a2", "b1", "a3")
    harness.run_until_idle()
    assert all(len({name[0] for name in names}) == len(names) for names in split.lists)
    assert split.lists[0] == ["a1", "b1"]
    assert whole.lists == [["a1", "a2", "a3", "b1"]]


def test_the_refused_item_of_a_list_is_isolated_and_its_key_waits(app: App, harness: Harness) -> None:
    sink = Shelf("crm", batch_max=10)
    sink.refuse = lambda name: Reject("no") if name == "a1" else None
    deliver(app, sink)
    put(harness, "a1", "b1", "a2", "b2")
    harness.run_until_idle()
    assert sorted(sink.got) == ["b1", "b2"]
    assert [(letter.key, letter.state, letter.reason) for letter in harness.letters()] == [
        ("a", "dead", "rejected"),
        ("a", "retrying", "behind_head"),
    ]


def test_a_list_that_is_refused_as_a_whole_is_sent_one_by_one(app: App, harness: Harness) -> None:
    sink = Shelf("archive", batch_max=10, whole=True)
    sink.refuse = lambda name: ValueError("unwritable") if name == "a2" else None
    deliver(app, sink, retry=retry(attempts=1))
    put(harness, "a1", "a2", "a3", "b1")
    harness.run_until_idle()
    assert sink.got == ["a1", "b1"]
    assert [(letter.event_id, letter.state) for letter in harness.letters()] == [
        (harness_id(harness, "a2"), "dead"),
        (harness_id(harness, "a3"), "retrying"),
    ]


@pytest.mark.parametrize(
    "errors",
    [{7: KeyError("b1")}, {-1: KeyError("b1")}, {"1": KeyError("b1")}, {1: "no"}],
    ids=["beyond", "negative", "text", "no exception"],
)
@pytest.mark.parametrize("alone", [False, True])
def test_a_refusal_that_cannot_be_understood_delivers_nothing(
    app: App, harness: Harness, errors: dict[Any, Any], alone: bool
) -> None:
    class Muddled(Shelf):
        async def send(self, events: Sequence[Event[Any]]) -> None:
            await super().send(events)
            if any(event.data == "b1" for event in events):
                raise SomeFailed(errors)

    deliver(app, Muddled("crm", batch_max=1 if alone else 10), concurrency=1)
    put(harness, "a1", "b1", "c1")
    harness.run_until_idle()
    harness.advance("1m")
    assert [(letter.key, letter.state, letter.reason) for letter in harness.letters()] == [("b", "dead", "permanent")]
    assert "SomeFailed" in harness.letters()[0].error_message


def test_a_refusal_of_nobody_delivers_all(app: App, harness: Harness) -> None:
    class Polite(Shelf):
        async def send(self, events: Sequence[Event[Any]]) -> None:
            await super().send(events)
            raise SomeFailed({})

    deliver(app, Polite("crm", batch_max=10))
    put(harness, "a1", "b1")
    harness.run_until_idle()
    assert harness.letters() == []


def harness_id(harness: Harness, name: str) -> str:
    return next(event.id for event in harness.app.log("orders").read() if event.data == name)


def test_a_sick_sink_delays_only_itself_and_nothing_is_lost(app: App, harness: Harness) -> None:
    sick, well = Shelf("sick"), Shelf("well")
    sick.down = ConnectionError("refused")
    deliver(app, sick, well, breaker=breaker(failures=2, cooldown="10s", probes=1))
    names = [f"{key}{n}" for n in range(3) for key in "abcdefgh"]
    put(harness, *names)
    harness.run_until_idle()
    assert sorted(well.got) == sorted(names)
    assert sick.got == []
    sick.down = None
    harness.advance("2m")
    assert sorted(sick.got) == sorted(names)
    assert [name for name in sick.got if name[0] == "c"] == ["c0", "c1", "c2"]
    assert [letter.state for letter in harness.letters() if letter.state != "applied"] == []


def test_an_open_breaker_calls_nobody_and_spends_no_attempt(app: App, harness: Harness) -> None:
    sink = Shelf("crm")
    sink.down = ConnectionError("refused")
    deliver(app, sink, concurrency=1, retry=retry(attempts=2, wait="1s", factor=1, jitter=0),
            breaker=breaker(failures=3, cooldown="1h", probes=1))  # fmt: skip
    put(harness, *(f"{key}1" for key in "abcdefghij"))
    harness.run_until_idle()
    harness.advance("30m")
    assert sink.calls == 3
    assert [letter.attempts for letter in harness.letters()] == [1, 1, 1]
    sink.down = None
    harness.advance("31m")
    assert sorted(sink.got) == [f"{key}1" for key in "abcdefghij"]


def test_probing_lets_few_through_and_a_relapse_opens_again(app: App, harness: Harness) -> None:
    sink = Shelf("crm")
    sink.down = ConnectionError("refused")
    deliver(app, sink, concurrency=10, retry=retry(attempts=50, wait="1s", factor=1, jitter=0),
            breaker=breaker(failures=1, cooldown="60s", probes=2))  # fmt: skip
    put(harness, *(f"{key}1" for key in "abcdefghijklmnopqrst"))
    harness.run_until_idle()
    before = sink.calls
    harness.advance("61s")
    assert 1 <= sink.calls - before <= 2
    sink.down = None
    harness.advance("61s")
    assert len(sink.got) == 20


def test_what_queues_behind_an_event_that_an_open_breaker_holds_is_nothing_to_do(app: App, harness: Harness) -> None:
    sink = Shelf("crm")
    sink.down = ConnectionError("refused")
    deliver(app, sink, concurrency=1, breaker=breaker(failures=1, cooldown="24h", probes=1))
    put(harness, "a1", "b1", "b2")
    harness.run_until_idle()
    assert sink.calls == 1
    sink.down = None
    harness.advance("25h")
    assert sorted(sink.got) == ["a1", "b1", "b2"]
    assert sink.got.index("b1") < sink.got.index("b2")


def test_probes_that_were_allowed_and_not_made_are_not_lost(app: App, harness: Harness) -> None:
    """With one call at a time a relapse leaves two of three unused: others would think them under way."""
    sink = Shelf("crm", clock=harness.clock)
    sink.down = ConnectionError("refused")
    deliver(app, sink, concurrency=1, retry=retry(attempts=50, wait="1s", factor=1, jitter=0), timeout=None,
            breaker=breaker(failures=1, cooldown="10s", probes=3))  # fmt: skip
    put(harness, *(f"{key}1" for key in "abcdefghij"))
    harness.run_until_idle()
    for _ in range(6):
        before = sink.calls
        harness.advance("11s")
        assert sink.calls == before + 1
        assert harness.query("SELECT sum(n) FROM redrive_probes") == [(0,)]
    sink.down, healed = None, harness.clock.monotonic()
    harness.advance("30s")
    assert len(sink.got) == 10
    assert sink.times[0] - healed < 15


def test_errors_of_events_and_of_the_code_do_not_open_a_breaker(app: App, harness: Harness) -> None:
    sink = Shelf("crm")
    sink.refuse = lambda name: KeyError(name) if name[0] == "x" else None
    deliver(app, sink, retry=retry(attempts=1), breaker=breaker(failures=1, cooldown="1h"))
    put(harness, "x1", "x2", "a1", "b1")
    harness.run_until_idle()
    assert sorted(sink.got) == ["a1", "b1"]


def test_an_open_breaker_buries_if_it_is_told_to(app: App, harness: Harness) -> None:
    sink = Shelf("crm")
    sink.down = ConnectionError("refused")
    deliver(app, sink, concurrency=1, breaker=breaker(failures=1, cooldown="1h", when_open="bury"))
    put(harness, "a1", "b1", "c1")
    harness.run_until_idle()
    assert [(one.key, one.state, one.reason, one.attempts) for one in harness.letters()] == [
        ("a", "retrying", "failing", 1),
        ("b", "dead", "breaker_open", 0),
        ("c", "dead", "breaker_open", 0),
    ]


def test_the_rate_grows_after_a_recovery(app: App, harness: Harness) -> None:
    sink = Shelf("crm", clock=harness.clock)
    sink.down = ConnectionError("refused")
    deliver(app, sink, concurrency=20, breaker=breaker(failures=1, cooldown="10s", probes=1), retry=retry(attempts=9))
    put(harness, *(f"{chr(200 + n)}1" for n in range(120)))
    harness.run_until_idle()
    sink.down = None
    harness.advance("11s")
    recovered = sink.times[0]
    first, fourth = (sum(1 for at in sink.times if n <= at - recovered < n + 1) for n in (0, 3))
    assert first <= 15
    assert fourth >= 1.5 * first
    assert len(sink.got) == 120


def test_retries_keep_within_the_budget_and_first_attempts_are_not_counted(app: App, start: Any) -> None:
    harness = start(app, settings=Settings(retry_budget=10.0, retry_budget_jitter=0.0))
    sink = Shelf("crm", clock=harness.clock)
    sink.down = KeyError("a bug, say")
    deliver(app, sink, breaker=None, retry=retry(attempts=2, wait="5s", factor=1, jitter=0))
    put(harness, *(f"{chr(200 + n)}1" for n in range(30)))
    harness.run_until_idle()
    assert sink.calls == 30
    sink.down = None
    harness.advance("6s")
    assert len(sink.got) == 30
    assert 2.8 <= sink.times[-1] - sink.times[0] <= 3.2


def test_retries_over_the_budget_are_buried_if_the_settings_say_so(app: App, start: Any) -> None:
    harness = start(app, settings=Settings(retry_budget=10.0, retry_budget_over="bury"))
    sink = Shelf("crm")
    sink.down = KeyError("a bug, say")
    deliver(app, sink, breaker=None, retry=retry(attempts=2, wait="5s", factor=1, jitter=0))
    put(harness, *(f"{chr(200 + n)}1" for n in range(5)))
    harness.run_until_idle()
    sink.down = None
    harness.advance("6s")
    buried = [letter for letter in harness.letters() if letter.state == "dead"]
    assert {(letter.reason, letter.attempts) for letter in buried} == {("retry_limited", 1)}
    assert len(sink.got) + len(buried) == 5 and sink.got


def test_a_limit_spreads_the_calls(app: App, harness: Harness) -> None:
    sink = Shelf("crm", clock=harness.clock)
    deliver(app, sink, limit="10/s")
    put(harness, *(f"{key}1" for key in "abcdefghijklmnopqrstuvwxyz"))
    harness.advance("3s")
    assert len(sink.got) == 26
    assert 2.3 <= sink.times[-1] - sink.times[0] <= 2.7


# ---------------------------------------------------------------- deaths, stops and lists


@pytest.mark.parametrize(
    "place", ["round.called", "round.fenced", "round.effects", "round.before_commit", "round.committed"]
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_death_at_any_moment_repeats_a_call_at_most_and_overtakes_nobody(
    app: App, harness: Harness, place: str, whole: bool
) -> None:
    sink = Shelf("archive", batch_max=4, whole=whole)
    sink.refuse = lambda name: KeyError(name) if name == "b2" and sink.calls < 4 else None
    deliver(app, sink, concurrency=2)
    names = [f"{key}{n}" for n in range(6) for key in "abc"]
    put(harness, *names)
    for at in range(1, 4):
        with failpoint(place, harness.crash, at=at), suppress(Crashed):
            harness.run_until_idle()
    harness.advance("1m")
    assert set(sink.got) == set(names)
    for key in "abc":
        first = [name for name in dict.fromkeys(sink.got) if name[0] == key]
        assert first == sorted(first)
    assert [letter for letter in harness.letters() if letter.state in ("dead", "retrying")] == []


def test_lists_of_one_key_go_one_after_the_other(app: App, harness: Harness) -> None:
    sink = Shelf("archive", batch_max=3, whole=True)
    sink.takes = 0.1
    deliver(app, sink, concurrency=4)
    names = [f"a{chr(ord('a') + n)}" for n in range(11)]
    put(harness, *names)
    harness.run_until_idle()
    assert (sink.got, sink.calls, sink.peak) == (names, 4, 1)
    assert not [signal for signal in harness.signals if isinstance(signal, sig.Halted)]


def test_when_a_whole_list_fails_only_the_first_of_each_key_has_made_an_attempt(app: App, harness: Harness) -> None:
    sink = Shelf("archive", batch_max=10, whole=True)
    sink.down = ConnectionError("gone")
    deliver(app, sink, breaker=None)
    put(harness, "a1", "a2", "b1", "a3")
    harness.run_until_idle()
    assert [(one.key, one.attempts, one.reason) for one in harness.letters()] == [
        ("a", 1, "failing"), ("a", 0, "behind_head"), ("b", 1, "failing"), ("a", 0, "behind_head"),
    ]  # fmt: skip
    sink.down = None
    harness.advance("5s")
    assert [name for name in sink.got if name[0] == "a"] == ["a1", "a2", "a3"]


def test_a_sink_that_asks_for_the_end_stops_the_worker_and_nothing_overtakes(app: App, harness: Harness) -> None:
    sink = Shelf("archive", batch_max=10, whole=True)
    sink.down = SystemExit()
    deliver(app, sink)
    put(harness, "a1", "a2", "a3")
    harness.run_until_idle()
    assert any(isinstance(signal, sig.Stopping) for signal in harness.signals)
    assert (sink.calls, harness.letters()) == (1, [])
    sink.down = None
    harness.run_until_idle()
    assert sink.got == ["a1", "a2", "a3"]


def test_what_a_sink_ignores_holds_nobody_back(app: App, harness: Harness) -> None:
    sink = Shelf("archive", batch_max=10, whole=True)
    sink.refuse = lambda name: Ignore("not for us") if name == "a1" else None
    deliver(app, sink)
    put(harness, "a1", "a2", "a3")
    harness.run_until_idle()
    assert (sink.got, harness.letters()) == (["a2", "a3"], [])


def test_a_list_that_takes_too_long_is_given_up_and_the_next_is_not(app: App, harness: Harness) -> None:
    sink = Shelf("archive", batch_max=10)
    sink.takes = 60.0
    deliver(app, sink, concurrency=1, timeout="2s", breaker=None)
    put(harness, "a1", "b1", "c1")
    harness.advance("2500ms")
    assert {(one.error_type, one.attempts) for one in harness.letters()} == {("TimeoutError", 1)}
    sink.takes = 0.5
    harness.advance("10s")
    assert sorted(sink.got) == ["a1", "b1", "c1"]


@pytest.mark.parametrize("batch_max", [1, 10])
def test_a_sink_that_cancels_itself_has_failed_and_nobody_waits_for_ever(
    app: App, harness: Harness, batch_max: int
) -> None:
    """It was taken for our own stop: the event was never settled, and its key waited behind it."""

    class Cancels(Shelf):
        async def send(self, events: Sequence[Event[Any]]) -> None:
            if any(event.data == "a1" for event in events):
                self.calls += 1
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)
            await super().send(events)

    sink = Cancels("crm", batch_max=batch_max)
    deliver(app, sink, concurrency=1)
    put(harness, "a1", "b1", "a2", "c1")
    for _ in range(4):
        harness.run_until_idle()
        harness.advance("1s")
    letters = harness.letters()
    dead = next(letter for letter in letters if letter.state == "dead" and letter.key == "a")
    assert (dead.attempts, dead.error_type.rpartition(".")[2]) == (3, "CancelledError")
    assert [letter.reason for letter in letters if letter.key == "a" and letter is not dead] == ["behind_head"]
    assert sorted([*sink.got, *(f"{letter.key}1" for letter in letters if letter.key != "a")]) == ["b1", "c1"]


@pytest.mark.parametrize("batch_max", [1, 10])
def test_a_stop_that_cancels_a_sink_gives_the_attempt_back(backend: str | None, tmp_path: Path, batch_max: int) -> None:
    """A cancellation is a failure of the call, but nobody is left who would settle that one."""
    app = App(backend or str(tmp_path / "shop.db"), settings=Settings(stop_timeout=0.05))
    begun, hangs = asyncio.Event(), True

    class Hangs(Shelf):
        async def send(self, events: Sequence[Event[Any]]) -> None:
            if hangs:
                begun.set()
                await asyncio.Event().wait()
            await super().send(events)

    sink = Hangs("crm", batch_max=batch_max)
    deliver(app, sink, retry=retry(attempts=1))
    for name in ("a1", "a2", "b1"):
        app.log("orders").append("order.placed", name, key=name[0])

    async def leave_while_it_hangs() -> None:
        async with app.running():
            await begun.wait()

    asyncio.run(asyncio.wait_for(leave_while_it_hangs(), 30))
    desk = app.operate()
    assert [*desk.letters.list("dead"), *desk.letters.list("retrying")] == []
    hangs = False
    app.run(until_idle=True)
    assert sorted(sink.got) == ["a1", "a2", "b1"]
    assert sink.got.index("a1") < sink.got.index("a2")
    app.close()


def test_who_waits_for_company_is_not_sent_when_the_loop_has_ended(start: Any) -> None:
    """The next owner reads it again: two of them would send it."""

    @asynccontextmanager
    async def trouble(_: App) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.call_later(0.1, lambda: setattr(harness, "fault", StoreError("gone")))
        loop.call_later(1.0, lambda: setattr(harness, "fault", None))
        yield

    app = App("unused.db", lifespan=trouble)
    harness: Harness = start(app, settings=Settings(lease=1.0, halt_wait=0.5))
    sink = Shelf("archive", batch_max=10)
    sink.batch_wait = 5.0
    deliver(app, sink)
    put(harness, "a1", "b1")
    harness.advance("20s")
    assert any(isinstance(signal, sig.Halted) for signal in harness.signals)
    assert sorted(sink.got) == ["a1", "b1"]


def test_all_partitions_together_make_no_more_probes_than_allowed(app: App, harness: Harness) -> None:
    sink = Shelf("crm")
    sink.down, sink.takes = ConnectionError("refused"), 0.1
    deliver(app, sink, concurrency=5, partitions=3, retry=retry(attempts=99, wait="1s", factor=1, jitter=0),
            breaker=breaker(failures=1, cooldown="60s", probes=2))  # fmt: skip
    put(harness, *(f"{chr(200 + n)}1" for n in range(30)))
    harness.run_until_idle()
    harness.advance("50s")
    sink.peak = 0
    harness.advance("20s")
    assert 1 <= sink.peak <= 2
    sink.down = None
    harness.advance("2m")
    assert len(sink.got) == 30


def test_a_handler_may_have_a_breaker_and_two_may_share_it(app: App, harness: Harness) -> None:
    calls: list[str] = []

    def declare(name: str) -> None:
        @app.on(
            app.log("orders"),
            name=name,
            start="first",
            retry=QUICK,
            breaker=breaker("stripe", failures=1, cooldown="1h"),
        )
        def charge(event: Any, ctx: Any) -> None:
            calls.append(name)
            raise TimeoutError

    declare("charge")
    put(harness, "a1", "b1", "c1")
    harness.run_until_idle()
    assert calls == ["charge"]
    declare("refund")
    harness.run_until_idle()
    assert calls == ["charge"]


@pytest.mark.parametrize(
    "wrong", [{"to": ["crm"]}, {"to": [Shelf("crm")], "breaker": "stripe"}, {"to": [Shelf("c")], "limit": "fast"}]
)
def test_what_is_no_sink_no_breaker_or_no_limit_is_refused(app: App, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        app.deliver(app.log("orders"), **wrong)


class Plain(Sink):
    def send(self, events: Sequence[Event[Any]]) -> None:  # type: ignore[override]
        """Would be called, and then called again because nothing came that can be waited for."""


class Mute(Sink):
    """Has no send."""


class Nameless(Shelf):
    def __init__(self) -> None:
        """Forgets to say who it is."""


def sized(**options: Any) -> Sink:
    sink = Shelf("crm")
    for name, option in options.items():
        setattr(sink, name, option)
    return sink


@pytest.mark.parametrize(
    ("sink", "why"),
    [
        (Plain("crm"), "crm: send is an async def"),
        (Mute("crm"), "crm: it has no send"),
        (Nameless(), "Nameless has no name: .*super"),
        (Shelf("two words"), "subscription's name 'two words' contains white space"),
        (sized(batch_max=0), "crm: batch_max=0; give a number from 1 on"),
        (sized(batch_max="10"), "crm: batch_max='10'; give a number from 1 on"),
        (sized(batch_wait="1s"), "crm: batch_wait='1s'; give seconds, as a number"),
        (sized(batch_wait=-1.0), "crm: batch_wait=-1.0; give seconds, as a number"),
        ("https://example.com", "takes sinks, such as webhook.*, not 'https://example.com'"),
        (7, "takes sinks, such as webhook.*, not 7"),
    ],
)
def test_a_sink_that_could_never_deliver_is_refused(app: App, sink: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        app.deliver(app.log("orders"), to=sink)


def test_a_delivery_to_nowhere_is_refused(app: App) -> None:
    with pytest.raises(UsageError, match="to= is empty"):
        app.deliver(app.log("orders"), to=[])


def test_total_order_refuses_to_deliver_side_by_side(app: App) -> None:
    orders = app.log("orders")
    with pytest.raises(UsageError, match="one at a time: leave concurrency out"):
        app.deliver(orders, to=Shelf("crm"), order="total", concurrency=2)
    with pytest.raises(UsageError, match="leaves no time"):
        deliver(app, Shelf("crm"), timeout=0)
    with pytest.raises(UsageError, match="crm: timeout: "):
        deliver(app, Shelf("crm"), timeout="soon")
    with pytest.raises(UsageError, match="from 1 on"):
        app.deliver(orders, to=Shelf("crm"), concurrency=0)
    app.deliver(orders, to=[Shelf("crm"), Shelf("erp")], order="total")
    app.deliver(orders, to=Shelf("shop"))
    assert [app.subscriptions[name].concurrency for name in ("crm", "erp", "shop")] == [1, 1, 10]


def test_outcomes_wait_a_moment_for_company_while_there_is_more_to_send(start: Any) -> None:
    """However often the loop is woken: a commit for each of them would take longer than the requests."""

    @asynccontextmanager
    async def producing(app: App) -> AsyncIterator[None]:
        async def produce() -> None:
            for number in range(100):
                await asyncio.sleep(0.001)
                await app.log("orders").append_async("order.placed", f"new {number}", key=f"new {number}")

        task = asyncio.create_task(produce())
        yield
        task.cancel()

    app = App("unused.db", lifespan=producing)
    harness: Harness = start(app)
    shelf = Shelf("shelf")
    shelf.takes = 0.001
    deliver(app, shelf, concurrency=2)
    with app.transaction() as tx:
        items = [{"type": "order.placed", "data": f"{number}", "key": f"{number}"} for number in range(400)]
        app.log("orders").append_many(items, tx=tx)
    harness.advance("1s")
    assert len(shelf.got) == 500
    commits = [told.applied for told in harness.signals if isinstance(told, sig.Settled)]
    assert sum(commits) == 500
    assert len(commits) <= 20, "a quarter of a second of requests, and a commit every twenty milliseconds"


def test_a_key_that_stands_alone_does_not_wait_for_company(app: App, harness: Harness) -> None:
    shelf = Shelf("shelf", clock=harness.clock)
    deliver(app, shelf, concurrency=10)
    for number in range(20):
        harness.append("orders", "order.placed", f"{number}", key="ada")
    began = harness.clock.monotonic()
    harness.run_until_idle()
    assert shelf.got == [f"{number}" for number in range(20)]
    assert shelf.times[-1] - began < 0.01
