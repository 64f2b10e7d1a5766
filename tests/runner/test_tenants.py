"""Many tenants behind one sink: one that is down costs the others nothing, and itself no attempt."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from redrive import App, Reject, UsageError, auto_replay, breaker, no_retry, retry
from redrive.event import Event
from redrive.observe import signals as sig
from redrive.policy import keys
from redrive.policy.auto_replay import AutoReplay
from redrive.settings import Settings
from redrive.sinks.port import Sink
from redrive.testing import Harness
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint
from redrive.testing.fakes import FakeClock

SOON = retry(attempts=3, wait="1s", factor=1, jitter=0)


class Tenants(Sink):
    """One endpoint per key; those in `down` are not well."""

    def __init__(self, clock: FakeClock, name: str = "tenants") -> None:
        super().__init__(name)
        self.clock, self.takes = clock, 0.0
        self.slow: dict[str, float] = {}  # seconds that a call of this key takes
        self.down: dict[str, BaseException] = {}
        self.calls: Counter[str] = Counter()
        self.got: defaultdict[str, list[Any]] = defaultdict(list)
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        self.under_way: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()

    async def send(self, events: Sequence[Event[Any]]) -> None:
        for event in events:
            key = event.key or ""
            self.calls[key] += 1
            self.under_way[key] += 1
            self.peak[key] = max(self.peak[key], self.under_way[key])
            try:
                await asyncio.sleep(self.slow.get(key, self.takes))
            finally:
                self.under_way[key] -= 1
            if key in self.down:
                raise self.down[key]
            self.got[key].append(event.data)
            self.times[key].append(self.clock.monotonic())


def put(harness: Harness, *names: str) -> None:
    for name in names:
        harness.append("orders", "order.placed", name, key=name[0])


def deliver(app: App, sink: Sink, **options: Any) -> None:
    rule = {"retry": SOON, "breaker": breaker(per="key", failures=2, cooldown="10s", probes=1)}
    app.deliver(app.log("orders"), to=sink, start="first", **{**rule, **options})


def rows(harness: Harness) -> dict[str, list[Any]]:
    """What the store has of keys."""
    return {
        "breakers": [name for (name,) in harness.query("SELECT name FROM redrive_breakers ORDER BY name")],
        "buckets": [name for (name,) in harness.query("SELECT name FROM redrive_buckets WHERE name LIKE 'limit %'")],
        "probes": harness.query("SELECT breaker FROM redrive_probes WHERE n > 0"),
    }


def test_a_tenant_that_is_down_is_left_alone_and_the_others_flow(app: App, harness: Harness) -> None:
    sink = Tenants(harness.clock)
    sink.down["a"] = ConnectionError("refused")
    deliver(app, sink)
    put(harness, "a1", "b1", "a2", "c1", "a3", "b2")
    harness.advance("3s")
    assert sink.got == {"b": ["b1", "b2"], "c": ["c1"]}
    assert sink.calls["a"] == 2
    assert [(one.key, one.state, one.reason, one.attempts) for one in harness.letters()] == [
        ("a", "retrying", "failing", 1), ("a", "retrying", "behind_head", 0), ("a", "retrying", "behind_head", 0),
    ]  # fmt: skip
    harness.advance("60s")
    assert 3 <= sink.calls["a"] <= 9
    assert [one.attempts for one in harness.letters("retrying")] == [1, 0, 0]
    del sink.down["a"]
    harness.advance("60s")
    assert sink.got["a"] == ["a1", "a2", "a3"]
    assert harness.letters("retrying") == harness.letters("dead") == []
    assert rows(harness) == {"breakers": ["tenants/"], "buckets": [], "probes": []}


# ---------------------------------------------------------------- the story

RATE, SECONDS, DOWN = 6, 75, (5.0, 65.0)


def tell_the_story(start: Any, hangs: bool) -> tuple[Harness, Tenants]:
    """Three tenants, two events a second each; `a` is down for a minute, in which the worker is deployed anew."""

    @asynccontextmanager
    async def producing(app: App) -> AsyncIterator[None]:
        clock = app.runtime.env.clock

        async def produce() -> None:
            while (number := int((clock.monotonic() - began) * RATE)) < RATE * SECONDS:
                while len(made) <= number:
                    made.append(len(made))
                    key, at = "abc"[made[-1] % 3], clock.monotonic() - began
                    await app.log("orders").append_async("order.placed", (made[-1], at), key=key)
                sick = DOWN[0] <= clock.monotonic() - began < DOWN[1]
                sink.down = {"a": TimeoutError() if hangs else ConnectionError("refused")} if sick else {}
                sink.slow = {"a": 3.0} if sick and hangs else {}
                await asyncio.sleep(0.5)

        task = asyncio.create_task(produce())
        yield
        task.cancel()

    made: list[int] = []
    app = App("unused.db", lifespan=producing)
    harness: Harness = start(app, settings=Settings(window_max=30, settle_max=30))
    sink, began = Tenants(harness.clock), harness.clock.monotonic()
    sink.takes = 0.005
    rule = breaker(per="key", failures=3, cooldown="10s", probes=2)
    deliver(app, sink, breaker=rule, partitions=3, concurrency=3, timeout="2s", retry=retry(attempts=4, jitter=0))
    harness.advance("30s")
    harness.restart()
    harness.advance("120s")
    return harness, sink


@pytest.mark.parametrize("hangs", [False, True])
def test_one_tenant_of_three_is_down_for_a_minute_and_nobody_else_notices(start: Any, hangs: bool) -> None:
    harness, sink = tell_the_story(start, hangs)
    made = len(list(harness.app.log("orders").read()))
    assert made > RATE * (SECONDS - 1)
    began = harness.clock.monotonic() - 150
    for key in "abc":
        numbers = [number for number, _ in sink.got[key]]
        assert sorted(numbers) == list(range("abc".index(key), made, 3)), "each arrives once"
        assert numbers == sorted(numbers), "in key order"
    for key in "bc":
        late = [at - began - made for at, (_, made) in zip(sink.times[key], sink.got[key], strict=True)]
        assert max(late) < 2.0, "the others are not held up"
    assert sink.peak["a"] == 1
    assert len(sink.got["a"]) < sink.calls["a"] < len(sink.got["a"]) + 14, "it is left alone while it is down"
    first = harness.letters()[0]
    assert (first.state, first.attempts) == ("applied", 3), "two failures, and the one that arrived"
    assert {one.attempts for one in harness.letters()[1:]} == {1}, "who waited spent none"
    assert sink.times["a"][-1] - began < 120, "and recovers by itself"
    harness.advance("1m")
    assert rows(harness) == {"breakers": ["tenants/"], "buckets": [], "probes": []}


# ---------------------------------------------------------------- attempts


def test_an_event_is_not_charged_for_what_its_key_is_blamed_for_however_long(app: App, harness: Harness) -> None:
    sink = Tenants(harness.clock)
    sink.down["a"] = ConnectionError("refused")
    deliver(app, sink, breaker=breaker(per="key", failures=3, cooldown="60s", probes=1))
    put(harness, "a1")
    harness.advance("2h")
    (letter,) = harness.letters()
    assert (letter.state, letter.attempts, letter.error_type) == ("retrying", 2, "ConnectionError")
    assert 100 < sink.calls["a"] < 130
    history = harness.query("SELECT count(*) FROM redrive_attempts")
    assert history == [(2,)], "what costs no attempt leaves no trace that grows"
    del sink.down["a"]
    harness.advance("61s")
    assert sink.got["a"] == ["a1"]


def test_errors_of_events_are_their_own_and_end_in_dead_letters(app: App, harness: Harness) -> None:
    sink = Tenants(harness.clock)
    sink.down = {"a": KeyError("a bug"), "b": Reject("no")}
    deliver(app, sink, breaker=breaker(per="key", failures=1))
    put(harness, "a1", "b1", "c1")
    harness.advance("1m")
    assert [(one.key, one.state, one.reason) for one in harness.letters()] == [
        ("a", "dead", "attempts_exhausted"), ("b", "dead", "rejected"),
    ]  # fmt: skip
    assert rows(harness)["breakers"] == ["tenants/"]


def test_a_replay_waits_for_its_key_and_makes_one_attempt(app: App, harness: Harness) -> None:
    sink = Tenants(harness.clock)
    sink.down["a"] = KeyError("a bug")
    deliver(app, sink, retry=no_retry, breaker=breaker(per="key", failures=1, cooldown="1m", probes=1))
    put(harness, "a1", "b1")
    harness.run_until_idle()
    sink.down["a"] = ConnectionError("refused")
    for calls in (2, 3):
        harness.replay()
        harness.advance("61s")
        assert (sink.calls["a"], [one.state for one in harness.letters()]) == (calls, ["dead"])
    del sink.down["a"]
    harness.replay()
    harness.advance("61s")
    assert sink.got["a"] == ["a1"]


def test_what_an_open_breaker_holds_back_is_buried_if_it_is_told_to(app: App, harness: Harness) -> None:
    sink = Tenants(harness.clock)
    sink.down["a"] = ConnectionError("refused")
    rule = breaker(per="key", failures=1, cooldown="1h", when_open="bury")
    deliver(app, sink, breaker=rule, retry=retry(attempts=2, wait="1m"))
    put(harness, "a1", "b1", "a2")
    harness.advance("2m")
    assert [(one.key, one.state, one.reason, one.attempts) for one in harness.letters()] == [
        ("a", "dead", "breaker_open", 1), ("a", "retrying", "behind_head", 0),
    ]  # fmt: skip
    assert sink.got["b"] == ["b1"]


def test_events_without_a_key_share_a_breaker_and_hold_up_nobody(app: App, harness: Harness) -> None:
    sink = Tenants(harness.clock)
    sink.down[""] = ConnectionError("refused")
    deliver(app, sink, concurrency=1, breaker=breaker(per="key", failures=2, cooldown="10s", probes=1))
    for number in range(6):
        harness.append("orders", "order.placed", number)
    put(harness, "b1")
    harness.advance("9s")
    assert (sink.calls[""], sink.got["b"]) == (2, ["b1"])
    assert Counter((one.reason, one.attempts) for one in harness.letters()) == {
        ("failing", 1): 2,
        ("breaker_open", 0): 4,
    }
    del sink.down[""]
    harness.advance("30s")
    assert sorted(sink.got[""]) == list(range(6))


# ---------------------------------------------------------------- limits


def test_each_key_has_a_limit_of_its_own(app: App, harness: Harness) -> None:
    sink = Tenants(harness.clock)
    deliver(app, sink, limit="2/s")
    put(harness, *(f"a{n}" for n in range(9)), "b1", "c1")
    harness.advance("30s")
    first = sink.times["a"][0]
    assert (sink.times["b"], sink.times["c"]) == ([first], [first]), "the others do not wait for it"
    assert sink.got["a"] == [f"a{n}" for n in range(9)]
    assert 3.9 <= sink.times["a"][-1] - sink.times["a"][0] <= 4.1
    assert harness.letters() == [], "there is room in memory"
    assert rows(harness)["buckets"] == [], "a full bucket has no row"


def test_a_key_far_over_its_limit_leaves_the_memory_to_others(app: App, start: Any) -> None:
    harness = start(app, settings=Settings(window_max=20, settle_max=20))
    sink = Tenants(harness.clock)
    deliver(app, sink, limit="10/s")
    names = [f"a{n:03}" for n in range(100)]
    put(harness, *names, "b1", "c1")
    harness.advance("15s")
    assert max(sink.times["b"] + sink.times["c"]) - sink.times["a"][0] < 1.0, "the others do not wait for it"
    assert sink.got["a"] == names
    assert {one.reason for one in harness.letters()} == {"rate_limited", "behind_head"}
    assert max(Counter(int(at) for at in sink.times["a"]).values()) <= 11
    assert {one.attempts for one in harness.letters()} == {1}


# ---------------------------------------------------------------- others, and deaths


def test_two_subscriptions_share_the_breakers_of_keys_and_their_probes(app: App, harness: Harness) -> None:
    sink = Tenants(harness.clock)
    others = [Tenants(harness.clock, name) for name in ("mirror", "audit")]
    for one in others:  # the same places
        one.calls, one.under_way, one.peak, one.down = sink.calls, sink.under_way, sink.peak, sink.down
    sink.takes = others[0].takes = others[1].takes = 0.5
    sink.down["a"] = ConnectionError("refused")
    for one in (sink, *others):
        deliver(app, one, breaker=breaker("places", per="key", failures=1, cooldown="10s", probes=1))
    put(harness, "a1", "b1", "a2")
    harness.advance("5s")
    sink.peak.clear()
    harness.advance("60s")
    assert sink.peak["a"] == 1
    assert sink.calls["a"] < 13
    del sink.down["a"]
    harness.advance("60s")
    assert sink.got["a"] == others[0].got["a"] == others[1].got["a"] == ["a1", "a2"]
    assert rows(harness)["breakers"] == ["places/"]


@pytest.mark.parametrize("place", ["round.called", "round.fenced", "round.effects", "round.committed"])
def test_a_death_at_any_moment_leaves_no_key_behind(app: App, harness: Harness, place: str) -> None:
    sink = Tenants(harness.clock)
    sink.down["a"] = ConnectionError("refused")
    deliver(app, sink, concurrency=2, breaker=breaker(per="key", failures=1, cooldown="5s", probes=1), limit="100/s")
    names = [f"{key}{n}" for n in range(5) for key in "abc"]
    put(harness, *names[:6])
    for at in (1, 2, 4):
        with failpoint(place, harness.crash, at=at), suppress(Crashed):
            harness.advance("7s")
    put(harness, *names[6:])
    harness.advance("7s")
    del sink.down["a"]
    harness.advance("2m")
    for key in "abc":
        assert list(dict.fromkeys(sink.got[key])) == [f"{key}{n}" for n in range(5)]
    assert harness.letters("retrying") == harness.letters("dead") == []
    assert rows(harness) == {"breakers": ["tenants/"], "buckets": [], "probes": []}


def test_a_plain_function_has_breakers_of_keys_too(app: App, harness: Harness) -> None:
    down, got = {"a"}, list[str]()

    @app.on(app.log("orders"), key_by=lambda event: event.data[0], start="first", retry=SOON,
            breaker=breaker(per="key", failures=2, cooldown="10s", probes=1))  # fmt: skip
    def charge(event: Any, ctx: Any) -> None:
        if ctx.key in down:
            raise TimeoutError
        got.append(event.data)
        ctx.state["n"] = ctx.state.get("n", 0) + 1

    for name in ("a1", "b1", "a2", "b2"):
        harness.append("orders", "order.placed", name)
    harness.advance("30s")
    assert got == ["b1", "b2"]
    down.clear()
    harness.advance("30s")
    assert got == ["b1", "b2", "a1", "a2"]


def test_more_keys_in_trouble_than_are_told_apart_share_one(
    app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "KEYS_MAX", 3)
    sink = Tenants(harness.clock)
    sink.down = dict.fromkeys("abcdefgh", ConnectionError("refused"))
    deliver(app, sink, breaker=breaker(per="key", failures=1, cooldown="10s", probes=1))
    put(harness, *(f"{key}1" for key in "abcdefgh"))
    harness.advance("5s")
    assert len(rows(harness)["breakers"]) <= 4 + 8
    put(harness, "x1", "y1")
    harness.advance("1m")
    sink.down = {}
    harness.advance("5m")
    assert {key for key, got in sink.got.items() if got} == set("abcdefghxy")


# ---------------------------------------------------------------- by hand, and what is refused


def test_the_breaker_of_a_key_is_opened_and_closed_by_hand(app: App, harness: Harness) -> None:
    sink = Tenants(harness.clock)
    deliver(app, sink)
    harness.run_until_idle()
    desk = app.operate("ada").breakers
    assert desk.open("tenants/a", "maintenance")
    harness.advance("2s")  # workers look once a second
    put(harness, "a1", "b1", "a2")
    harness.advance("10m")
    assert sink.got == {"b": ["b1"]}
    found = {one.name: (one.state, one.by_hand) for one in desk.list()}
    assert found == {"tenants/": ("closed", False), "tenants/a": ("open", True)}
    assert [one.attempts for one in harness.letters()] == [0, 0]
    assert desk.close("tenants/a", "over") and not desk.close("tenants/a", "again")
    harness.advance("15s")
    assert sink.got["a"] == ["a1", "a2"]
    assert rows(harness)["breakers"] == ["tenants/"]
    told = [
        (type(one).__name__, one.key)
        for one in harness.signals
        if isinstance(one, sig.BreakerOpened | sig.BreakerClosed)
    ]
    assert told == [("BreakerOpened", "a"), ("BreakerClosed", "a")]


@pytest.mark.parametrize("name", ["tenants", "tenant/a", "tenants/a\x00b", "crm/a", "tenants/" + "k" * 2000])
def test_there_is_no_breaker_of_what_is_no_key(app: App, harness: Harness, name: str) -> None:
    deliver(app, Tenants(harness.clock))
    deliver(app, Tenants(harness.clock, "crm"), breaker=breaker())
    harness.run_until_idle()
    with pytest.raises(UsageError, match="there is no breaker"):
        app.operate("ada").breakers.open(name, "maintenance")


class Probed(Tenants):
    async def probe(self) -> None:
        """It can be asked."""


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"order": "total"}, "order="),
        ({"order": "none"}, "order="),
        ({"retry": retry(attempts=4)}, "attempts"),
        ({"sink": Probed(FakeClock())}, "probe"),
        ({"breaker": breaker("crm", per="key")}, "could be the same"),
    ],
)
def test_where_keys_cannot_have_breakers_that_is_said(app: App, options: dict[str, Any], why: str) -> None:
    sink = options.pop("sink", Tenants(FakeClock()))
    app.deliver(app.log("orders"), to=Tenants(FakeClock(), "other"), breaker=breaker("crm/a"))
    with pytest.raises(UsageError, match=why):
        deliver(app, sink, **{"breaker": breaker(per="key"), "retry": retry(), **options})


def test_a_breaker_is_per_key_or_not(app: App) -> None:
    for wrong in ("tenant", "", True):
        with pytest.raises(UsageError, match="per"):
            breaker(per=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="slash"):
        app.deliver(app.log("orders"), to=Tenants(FakeClock()), breaker=breaker("crm/"))
    with pytest.raises(UsageError, match="no option 'breaker'"):
        app.projection(app.log("orders"), breaker=breaker(per="key"))  # type: ignore[call-arg]


def test_no_single_recovery_starts_a_replay_where_each_key_has_a_breaker(app: App) -> None:
    with pytest.raises(UsageError, match="one for all keys"):
        app.on(app.log("x"), breaker=breaker(per="key"), replay=auto_replay(on_recovery=True))(lambda event, ctx: None)
    app.on(app.log("x"), name="by_cron", breaker=breaker(per="key"), replay=auto_replay("* * * * *"))(
        lambda event, ctx: None
    )
    assert app.subscriptions["by_cron"].replay == AutoReplay(cron="* * * * *", on_recovery=False)
