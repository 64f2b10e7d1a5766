"""Automatic replay: dead letters come round again by themselves, carefully, and never more often than they may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from redrive import App, Reject, StoreError, UsageError, auto_replay, breaker, retry
from redrive.event import Event
from redrive.observe import signals as sig
from redrive.policy import healing as policy
from redrive.replay import healing
from redrive.settings import ReplaySettings, Settings, SubscriptionSettings
from redrive.sinks.port import Sink
from redrive.testing import Harness
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint
from redrive.testing.fakes import FakeEnv

ONCE = retry(attempts=1)
TEN_MINUTES = "*/10 * * * *"
DOWN = ConnectionError("refused")
CAREFUL = breaker("bank", failures=3, cooldown="30s", probes=1)


class Bank:
    """What a handler calls: it is down, or refuses some, or takes what it is given."""

    def __init__(self) -> None:
        self.down: BaseException | None = None
        self.refuse: dict[str, BaseException] = {}
        self.calls: list[str] = []
        self.times: list[float] = []
        self.clock: Callable[[], float] = lambda: 0.0
        self.before: Callable[[str], Any] = lambda name: None

    def __call__(self, name: str) -> None:
        self.calls.append(name)
        self.times.append(self.clock())
        self.before(name)
        error = self.down or self.refuse.get(name)
        if error is not None:
            raise error


@pytest.fixture
def bank() -> Bank:
    return Bank()


def handle(app: App, bank: Bank, **options: Any) -> None:
    @app.on(app.log("orders"), name="charge", start="first", **{"retry": ONCE, **options})
    def charge(event: Event[Any], ctx: Any) -> None:
        bank(event.data)


def put(harness: Harness, *names: str) -> None:
    for name in names:
        harness.append("orders", "order.placed", name, key=name[0])


def fail(harness: Harness, bank: Bank, *names: str) -> None:
    """An outage that lasts for as long as these take; the next call will go well."""
    bank.down = DOWN
    put(harness, *names)
    harness.run_until_idle()
    bank.down, bank.calls = None, []


def replays(harness: Harness) -> dict[str | None, int]:
    return {letter.key: letter.auto_replays for letter in harness.letters()}


def dead(harness: Harness) -> list[str | None]:
    return [letter.key for letter in harness.letters("dead")]


def ended(harness: Harness) -> list[str]:
    return [one.how for one in harness.signals if isinstance(one, sig.AutoReplayEnded)]


# ------------------------------------------------------------ when


def test_when_a_dependency_is_well_again_the_letters_that_name_it_go_round_and_the_oldest_goes_first(
    app: App, harness: Harness, bank: Bank
) -> None:
    handle(app, bank, breaker=CAREFUL, replay=auto_replay())
    fail(harness, bank, "c", "a", "b")
    assert [letter.dependency for letter in harness.letters("dead")] == ["bank"] * 3
    put(harness, "d")
    harness.advance("1m")
    assert bank.calls == ["d", "c", "a", "b"]
    assert dead(harness) == []
    assert replays(harness) == {"a": 1, "b": 1, "c": 1}
    assert ended(harness) == ["done"]


def test_at_the_times_of_a_cron_line_what_may_have_passed_goes_round_and_nothing_else(
    app: App, harness: Harness, bank: Bank
) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES))
    bank.refuse = {"a": ValueError("a bug"), "b": Reject("never"), "c": UsageError("permanent"), "d": DOWN}
    put(harness, "a", "b", "c", "d")
    harness.run_until_idle()
    assert {letter.key: letter.reason for letter in harness.letters("dead")} == {
        "a": "attempts_exhausted", "b": "rejected", "c": "permanent", "d": "attempts_exhausted",
    }  # fmt: skip
    bank.refuse, bank.calls = {}, []
    harness.advance(599.0 - harness.clock.now() % 600)
    assert bank.calls == []
    harness.advance("10s")
    assert bank.calls == ["a", "d"]
    harness.advance("3h")
    assert dead(harness) == ["b", "c"]
    assert bank.calls == ["a", "d"]


def test_a_time_at_which_nobody_ran_is_made_up_for_once(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES))
    fail(harness, bank, "a")
    harness.restart()
    harness.clock.advance(3_600.0)
    bank.refuse = {"a": DOWN}
    harness.run_until_idle()
    assert bank.calls == ["a"]
    harness.advance("1m")
    assert bank.calls == ["a"]


def test_while_the_dependency_is_not_well_a_time_of_the_cron_passes(app: App, harness: Harness, bank: Bank) -> None:
    careful = breaker("bank", failures=1, cooldown="1h", probes=1)
    handle(app, bank, breaker=careful, replay=auto_replay(TEN_MINUTES, on_recovery=False))
    fail(harness, bank, "a")
    harness.advance("30m")
    assert bank.calls == []
    assert replays(harness) == {"a": 0}
    app.operate("ada").breakers.close("bank", "it answers")
    harness.run_until_idle()
    assert bank.calls == []
    harness.advance("10m")
    assert bank.calls == ["a"]


def test_a_breaker_that_somebody_closes_by_hand_has_recovered(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, breaker=breaker("bank", failures=1, cooldown="1h"), replay=auto_replay())
    fail(harness, bank, "a")
    harness.advance("2m")
    assert bank.calls == []
    app.operate("ada").breakers.close("bank", "it answers")
    harness.run_until_idle()
    assert bank.calls == ["a"]


def test_only_letters_that_name_the_dependency_wait_for_its_recovery(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, breaker=breaker("bank", failures=1, cooldown="1h"), replay=auto_replay())
    bank.refuse = {"x": ValueError("a bug")}
    put(harness, "x")
    harness.run_until_idle()
    fail(harness, bank, "a")
    bank.refuse = {}
    app.operate("ada").breakers.close("bank", "it answers")
    harness.advance("10m")
    assert bank.calls == ["a"]
    assert dead(harness) == ["x"]


def test_what_was_before_automatic_replay_was_declared_is_no_recovery(app: App, start: Any, bank: Bank) -> None:
    harness = start(app)
    handle(app, bank, breaker=breaker("bank", failures=1, cooldown="1h"))
    fail(harness, bank, "a")
    app.operate("ada").breakers.close("bank", "it answers")
    harness.run_until_idle()
    later = App("/nonexistent/later.db")
    handle(later, bank, breaker=breaker("bank", failures=1, cooldown="1h"), replay=auto_replay())
    path, _ = harness.path, harness.close()
    rival = start(later, path, env=FakeEnv(harness.clock, owner="later-1"))
    rival.env.dead.add(harness.env.owner)
    rival.advance("1h")
    assert bank.calls == []


# ------------------------------------------------------------ which


def test_a_letter_names_what_its_last_failure_is_the_fault_of(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, retry=retry(attempts=2, wait="1s", jitter=0), breaker=breaker(failures=100))
    bank.refuse = {"a": DOWN, "b": ValueError("a bug")}
    put(harness, "a", "b")
    harness.run_until_idle()
    named = {letter.key: letter.dependency for letter in harness.letters()}
    assert named == {"a": "charge", "b": None}
    bank.refuse = {"b": TimeoutError(), "a": ValueError("a bug")}
    harness.advance("1m")
    assert {letter.key: letter.dependency for letter in harness.letters("dead")} == {"a": None, "b": "charge"}


def test_a_letter_without_a_breaker_names_its_subscription(app: App, harness: Harness, bank: Bank) -> None:
    @app.projection(app.log("orders"), name="count", retry=ONCE)
    def count(event: Event[Any], tx: Any) -> None:
        bank(event.data)

    fail(harness, bank, "a")
    assert [letter.dependency for letter in harness.letters("dead")] == ["count"]


def test_what_was_buried_without_being_called_names_it_too(app: App, start: Any, bank: Bank) -> None:
    harness = start(app, settings=Settings(retry_budget=0.001, retry_budget_over="bury", lease=9e9, poll_max=9e9))
    rule = breaker("bank", failures=3, cooldown="1h", when_open="bury")
    handle(app, bank, retry=retry(attempts=2, wait="1s", jitter=0), breaker=rule, replay=auto_replay())
    bank.refuse = {"a": DOWN, "b": DOWN, "c": DOWN}
    put(harness, "a", "b")
    harness.advance("10s")
    put(harness, "c", "d")
    harness.run_until_idle()
    found = {letter.key: (letter.reason, letter.dependency) for letter in harness.letters("dead")}
    assert found.pop("c", ("failing", "bank"))[1] == "bank"
    assert ("retry_limited", "bank") in found.values()
    assert found["d"] == ("breaker_open", "bank")


def test_only_heads_are_replayed_and_what_waits_behind_them_follows(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES))
    fail(harness, bank, "a1")
    put(harness, "a2", "a3")
    harness.advance("10m")
    assert bank.calls == ["a1", "a2", "a3"]
    assert sum(letter.auto_replays for letter in harness.letters()) == 1


def test_a_lane_whose_replay_failed_is_left_until_the_next_time(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES, times=5))
    bank.refuse = {"a1": ValueError("a bug"), "b1": ValueError("a bug")}
    put(harness, "a1", "a2", "b1")
    harness.run_until_idle()
    bank.calls = []
    bank.refuse = {"a1": ValueError("a bug")}
    harness.advance("10m")
    assert bank.calls == ["a1", "b1"]
    bank.refuse = {}
    harness.advance("10m")
    assert bank.calls == ["a1", "b1", "a1", "a2"]


def test_no_letter_is_replayed_more_often_than_it_may(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES, times=2))
    fail(harness, bank, "a")
    bank.down = ValueError("a bug")
    harness.advance("2h")
    assert bank.calls == ["a", "a"]
    assert replays(harness) == {"a": 2}
    harness.replay()
    harness.advance("2h")
    assert bank.calls == ["a", "a", "a"], "by hand it may go again, and that is all"


def test_what_died_too_long_ago_is_left_alone(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay("0 0 * * *", max_age="2h"))
    fail(harness, bank, "a")
    harness.advance(86_400.0 - 3_600.0 - harness.clock.now() % 86_400)
    fail(harness, bank, "b")
    harness.advance("2h")
    assert bank.calls == ["b"]


def test_without_an_age_nothing_is_too_old(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay("0 0 1 1 *", max_age=None))
    fail(harness, bank, "a")
    harness.advance("366d")
    assert bank.calls == ["a"]


def test_a_time_of_the_cron_is_answered_by_one_batch(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES, batch=2))
    fail(harness, bank, "c", "a", "b")
    harness.advance("10m")
    assert bank.calls == ["c", "a"]
    harness.advance("10m")
    assert bank.calls == ["c", "a", "b"]


def test_a_recovery_is_answered_by_batch_after_batch(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, breaker=breaker("bank", failures=9, cooldown="1h"), replay=auto_replay(batch=2))
    fail(harness, bank, *"edcab")
    app.operate("ada").breakers.open("bank", "to see")
    app.operate("ada").breakers.close("bank", "it answers")
    harness.run_until_idle()
    assert bank.calls == list("edcab")
    assert [one.selected for one in app.operate().bulk.recent()] == [1, 2, 2]


def test_many_that_may_not_go_are_passed_over(
    app: App, harness: Harness, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "PAGE", 2)
    handle(app, bank, replay=auto_replay(TEN_MINUTES, times=1, batch=2))
    bank.down = ValueError("a bug")
    names = [f"{number:02}" for number in range(25)]
    for name in names:
        harness.append("orders", "order.placed", name, key=name)
    harness.run_until_idle()
    bank.calls = []
    harness.advance("140m")
    assert bank.calls == names


# ------------------------------------------------------------ how fast, and how long


def test_one_goes_alone_and_the_rate_grows_while_all_goes_well(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, concurrency=100, replay=auto_replay(TEN_MINUTES, rate="4/s"))
    names = [f"{number:03}" for number in range(100)]
    bank.down = DOWN
    for name in names:
        harness.append("orders", "order.placed", name, key=name)
    harness.run_until_idle()
    bank.down, bank.calls, bank.times, bank.clock = None, [], [], harness.clock.now
    harness.advance("10m")
    assert bank.calls == names
    seconds = [sum(1 for at in bank.times if begin <= at - bank.times[0] < begin + 5) for begin in range(0, 40, 5)]
    assert seconds[0] <= 8
    assert seconds[0] < seconds[1] < seconds[2]
    assert max(seconds) <= 4 * 5 + 1
    assert max(seconds) >= 4 * 5 - 2


def test_a_run_stops_at_the_first_relapse_and_what_was_not_tried_keeps_its_turn(
    app: App, harness: Harness, bank: Bank
) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES, times=1))
    fail(harness, bank, "a", "b", "c")
    bank.refuse = {"b": DOWN}
    harness.advance("10m")
    assert bank.calls == ["a", "b"]
    assert replays(harness) == {"a": 1, "b": 1, "c": 0}
    assert ended(harness) == ["relapse"]
    [operation] = app.operate().bulk.recent()
    assert (operation.state, operation.applied, operation.failed, operation.skipped) == ("done", 1, 1, 1)
    harness.advance("10m")
    assert bank.calls == ["a", "b", "c"]


def test_a_breaker_that_opens_ends_the_run(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, breaker=breaker("bank", failures=100, cooldown="1h"), replay=auto_replay(TEN_MINUTES))
    fail(harness, bank, "a", "b", "c")
    bank.before = lambda name: app.operate("ada").breakers.open("bank", "to see") if name == "a" else None
    harness.advance("10m")
    assert bank.calls == ["a"]
    assert ended(harness) == ["relapse"]
    assert replays(harness) == {"a": 1, "b": 0, "c": 0}
    bank.before = lambda name: None
    app.operate("ada").breakers.close("bank", "it answers")
    harness.run_until_idle()
    assert bank.calls == ["a", "b", "c"]


def test_an_operator_cancels_a_run_and_the_next_time_comes(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES))
    fail(harness, bank, "a", "b", "c")
    bank.before = lambda name: app.operate("ada").bulk.cancel(1) if name == "b" else None
    harness.advance("10m")
    assert bank.calls == ["a", "b"]
    assert ended(harness) == ["cancelled"]
    assert app.operate().bulk.get(1).state == "cancelled"
    bank.before = lambda name: None
    harness.advance("10m")
    assert sorted(bank.calls[2:]) == ["b", "c"]


def test_a_paused_subscription_is_left_alone(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES))
    fail(harness, bank, "a")
    app.operate("ada").subscriptions.pause("charge", "to see")
    harness.advance("1h")
    assert bank.calls == []
    assert replays(harness) == {"a": 0}
    app.operate("ada").subscriptions.resume("charge", "seen")
    harness.run_until_idle()
    assert bank.calls == ["a"]


def test_where_each_key_has_a_breaker_one_that_is_not_well_does_not_hold_up_the_others(
    app: App, harness: Harness, bank: Bank
) -> None:
    rule = breaker("bank", failures=1, cooldown="1d", per="key")
    handle(app, bank, breaker=rule, replay=auto_replay(TEN_MINUTES))
    bank.down = ValueError("a bug")
    put(harness, "a", "b")
    harness.run_until_idle()
    bank.down, bank.calls = None, []
    app.operate("ada").breakers.open("bank/a", "to see")
    harness.advance("11m")
    assert bank.calls == ["b"]
    assert [one.state for one in app.operate().bulk.recent()] == ["running"]
    app.operate("ada").breakers.close("bank/a", "seen")
    harness.advance("1d")
    assert bank.calls == ["b", "a"]
    assert replays(harness) == {"a": 1, "b": 1}


def test_a_breaker_of_each_key_has_no_recovery_to_wait_for(app: App, bank: Bank) -> None:
    with pytest.raises(UsageError, match="charge"):
        handle(app, bank, breaker=breaker("bank", per="key"), replay=auto_replay(on_recovery=True))


# ------------------------------------------------------------ whoever does it


def test_what_happened_can_be_seen(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES, rate="7/s"))
    fail(harness, bank, "a")
    harness.advance("10m")
    [operation] = app.operate().bulk.recent()
    assert (operation.who, operation.action, operation.state) == ("auto-replay", "replay", "done")
    assert (operation.reason, operation.rate, operation.applied) == ("cron */10 * * * *", 7.0, 1)
    [letter] = harness.letters("applied")
    [deed] = app.operate().letters.audit(letter)
    assert (deed.who, deed.action) == ("auto-replay", "replay")
    told = [one for one in harness.signals if isinstance(one, sig.AutoReplayed | sig.AutoReplayEnded)]
    assert told == [sig.AutoReplayed("charge", 1, 1, "cron"), sig.AutoReplayEnded("charge", 1, 1, 0, "done")]


@pytest.mark.parametrize("at", range(1, 8))  # begin, two letters, end; begin, one letter, end
@pytest.mark.parametrize("place", ["operator.before_commit", "operator.committed"])
def test_a_kill_in_the_middle_of_a_recovery_loses_nothing(
    app: App, harness: Harness, bank: Bank, place: str, at: int
) -> None:
    handle(app, bank, breaker=breaker("bank", failures=9, cooldown="1h"), replay=auto_replay(batch=2, times=1))
    fail(harness, bank, "a", "b", "c")
    bank.down = ValueError("a bug")
    app.operate("ada").breakers.open("bank", "to see")
    app.operate("ada").breakers.close("bank", "it answers")
    with failpoint(place, harness.crash, at=at), pytest.raises(Crashed):
        harness.run_until_idle()
    harness.run_until_idle()
    assert sorted(bank.calls) == ["a", "b", "c"]
    assert replays(harness) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("at", range(2, 8))
def test_after_a_kill_nobody_has_a_second_turn_in_the_same_run(app: App, harness: Harness, bank: Bank, at: int) -> None:
    handle(app, bank, breaker=breaker("bank", failures=9, cooldown="1h"), replay=auto_replay(batch=1, times=5))
    fail(harness, bank, "a", "b", "c")
    bank.down = ValueError("a bug")
    app.operate("ada").breakers.open("bank", "to see")
    app.operate("ada").breakers.close("bank", "it answers")
    with failpoint("operator.committed", harness.crash, at=at), pytest.raises(Crashed):
        harness.run_until_idle()
    harness.run_until_idle()
    assert bank.calls == ["a", "b", "c"]


def test_who_is_fenced_in_the_middle_of_a_step_writes_nothing(
    app: App, harness: Harness, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES))
    fail(harness, bank, "a")
    choose, replayed = policy.next_letters, []

    def take_over(letters: Any, room: int) -> Any:
        if not replayed:
            with app.runtime.store.transaction() as tx:
                tx.sql.run("epoch_bump", {"subscription": 1})
            replayed.append(replays(harness))
        else:
            replayed.append(replays(harness))
        return choose(letters, room)

    monkeypatch.setattr(policy, "next_letters", take_over)
    harness.advance("10m")
    assert replayed == [{"a": 0}] * 3, "chosen, chosen again by the next owner, and asked for"
    assert bank.calls == ["a"]
    assert len(app.operate().bulk.recent()) == 1


@pytest.mark.parametrize("at", range(1, 6))  # begin, three letters, end
@pytest.mark.parametrize("place", ["operator.before_commit", "operator.committed"])
def test_a_kill_anywhere_loses_nothing_and_never_replays_too_often(
    app: App, harness: Harness, bank: Bank, place: str, at: int
) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES, times=1))
    fail(harness, bank, "a", "b", "c")
    bank.down = ValueError("a bug")
    with failpoint(place, harness.crash, at=at), pytest.raises(Crashed):
        harness.advance("10m")
    harness.run_until_idle()
    harness.advance("1h")
    assert sorted(bank.calls) == ["a", "b", "c"]
    assert replays(harness) == {"a": 1, "b": 1, "c": 1}


def test_a_restart_in_the_middle_changes_nothing(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES))
    fail(harness, bank, "a", "b", "c", "d")
    bank.before = lambda name: app.runtime.supervisor.stop("a deploy") if name == "b" else None  # type: ignore[union-attr]
    harness.advance("10m")
    harness.restart()
    bank.before = lambda name: None
    harness.advance("1m")
    assert [name for name in bank.calls if name != "b"] == ["a", "c", "d"]
    assert replays(harness) == dict.fromkeys("abcd", 1)
    assert [one.selected for one in app.operate().bulk.recent()] == [4]


def test_of_several_workers_one_does_it(app: App, start: Any, bank: Bank) -> None:
    harness, apps = start(app), [app, App("/nonexistent/rival.db")]
    for one in apps:
        handle(one, bank, partitions=2, replay=auto_replay(TEN_MINUTES, times=1))
    fail(harness, bank, *"abcdef")
    rival = start(apps[1], harness.path, env=FakeEnv(harness.clock, owner="rival-1"))
    bank.down = ValueError("a bug")
    for _ in range(20):
        harness.advance("1m")
        rival.advance("1m")
    assert sorted(bank.calls) == list("abcdef")
    assert len(app.operate().bulk.recent()) == 1


def test_who_lost_the_lease_replays_nothing(app: App, start: Any, bank: Bank) -> None:
    harness, other = start(app), App("/nonexistent/rival.db")
    handle(app, bank, replay=auto_replay(TEN_MINUTES))
    handle(other, bank)
    fail(harness, bank, "a", "b")
    rival = start(other, harness.path, env=FakeEnv(harness.clock, owner="rival-1"))
    rival.env.dead.add(harness.env.owner)
    rival.run_until_idle()
    harness.advance("30m")
    rival.run_until_idle()
    assert bank.calls == []
    assert replays(harness) == {"a": 0, "b": 0}


def test_a_store_that_is_away_for_a_moment_does_no_harm(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES))
    fail(harness, bank, "a")
    harness.fault = StoreError("gone")
    harness.advance("10m")
    harness.fault = None
    harness.advance("10m")
    assert bank.calls == ["a"]


def test_a_clock_that_was_set_back_silences_nothing(app: App, harness: Harness, bank: Bank) -> None:
    handle(app, bank, replay=auto_replay(TEN_MINUTES))
    harness.advance("1h")
    harness.clock.jump(-86_400.0)
    fail(harness, bank, "a")
    harness.advance("10m")
    assert bank.calls == ["a"]


# ------------------------------------------------------------ saying it


def test_projections_have_it_too(app: App, harness: Harness, bank: Bank) -> None:
    @app.projection(app.log("orders"), name="count", retry=ONCE, replay=auto_replay(TEN_MINUTES))
    def count(event: Event[Any], tx: Any) -> None:
        bank(event.data)

    fail(harness, bank, "b", "a")
    harness.advance("10m")
    assert bank.calls == ["b", "a"]


def test_what_a_sink_refused_in_an_outage_is_delivered_when_it_is_back(app: App, harness: Harness, bank: Bank) -> None:
    class Crm(Sink):
        async def send(self, events: Sequence[Event[Any]]) -> None:
            for event in events:
                bank(event.data)

    app.deliver(app.log("orders"), to=Crm("crm"), start="first", retry=ONCE, replay=auto_replay())
    fail(harness, bank, "e", "d", "c", "b", "a")
    assert {letter.dependency for letter in harness.letters("dead")} == {"crm"}
    put(harness, "x", "y", "z")
    harness.advance("2m")
    assert bank.calls[3:] == ["e", "d", "c", "b", "a"]
    assert dead(harness) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "now and then"},
        {"cron": "0 0 30 2 *"},
        {"cron": 5},
        {"times": 0},
        {"batch": 0},
        {"rate": "fast"},
        {"max_age": "old"},
        {"on_recovery": "yes"},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        auto_replay(**wrong)


def test_what_could_never_start_is_refused(app: App, bank: Bank) -> None:
    for options in (
        {"replay": auto_replay()},
        {"replay": auto_replay(TEN_MINUTES, on_recovery=True)},
        {"replay": "*/10 * * * *"},
        {"replay": auto_replay(on_recovery=False), "breaker": CAREFUL},
    ):
        with pytest.raises(UsageError, match="charge"):
            handle(app, bank, **options)


@pytest.mark.parametrize(
    ("said", "in_code", "calls"),
    [
        (ReplaySettings(enabled=False), True, 0),
        (ReplaySettings(cron="0 * * * *"), True, 1),
        (ReplaySettings(cron=TEN_MINUTES, times=2), False, 2),
        (ReplaySettings(), True, 3),
    ],
)
def test_settings_have_the_last_word(
    app: App, start: Any, bank: Bank, said: ReplaySettings, in_code: bool, calls: int
) -> None:
    mine = {"charge": SubscriptionSettings(replay=said)}
    harness = start(app, settings=Settings(subscriptions=mine, lease=9e9, poll_min=9e8, poll_max=9e9))
    handle(app, bank, replay=auto_replay(TEN_MINUTES) if in_code else None)
    harness.advance(3_600.0 - harness.clock.now() % 3_600 + 1)
    fail(harness, bank, "a")
    bank.down = ValueError("a bug")
    harness.advance("61m")
    assert len(bank.calls) == calls


def test_settings_that_make_no_sense_are_refused(app: App, start: Any, bank: Bank) -> None:
    for said in (ReplaySettings(cron="often"), ReplaySettings(enabled=True), ReplaySettings(on_recovery=True)):
        mine = {"charge": SubscriptionSettings(replay=said)}
        app = App("/nonexistent/other.db", settings=Settings(subscriptions=mine))
        handle(app, bank)
        with pytest.raises(UsageError, match=r"subscriptions\.charge\.replay"):
            app._selected(None, ())
