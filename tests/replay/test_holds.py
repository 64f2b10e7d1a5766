"""Hold one key: its next event becomes a letter that is not called, and what follows waits behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redrive import App, Ctx, Event, Tx, UsageError, breaker, retry
from redrive.errors import RedriveError
from redrive.policy.holds import FOREVER
from redrive.replay.holds import HOLDS_MAX
from redrive.settings import Settings
from redrive.sinks import Sink, SomeFailed
from redrive.testing import Harness, failpoint

KINDS = ["projection", "projection in lists", "handler", "delivery"]
HOUR = 3_600.0


class Shop:
    """One function that writes down what it is called with, and fails for what is in `bad`."""

    def __init__(self, kind: str, order: str = "key", **options: Any) -> None:
        self.app = App("unused.db")
        self.orders = self.app.log("orders")
        self.calls: list[tuple[str | None, int]] = []
        self.bad: set[int] = set()
        options.setdefault("retry", retry(attempts=3, wait="10s", jitter=0))
        if kind == "delivery":
            self._deliver(order, options)
        elif kind == "handler":
            self._handle(order, options)
        else:
            self._project(order, options, in_lists=kind.endswith("lists"))
        self.name = "function"
        self.harness = Harness(self.app)

    def _call(self, event: Event[Any]) -> None:
        self.calls.append((event.key, event.data))
        if event.data in self.bad:
            raise RuntimeError(f"bad {event.data}")

    def _handle(self, order: str, options: dict[str, Any]) -> None:
        @self.app.on(self.orders, start="first", order=order, **options)
        def function(event: Event[Any], ctx: Ctx) -> None:
            self._call(event)

    def _deliver(self, order: str, options: dict[str, Any]) -> None:
        shop = self

        class Shelf(Sink):
            batch_max = 10

            async def send(self, events: list[Event[Any]]) -> None:
                for event in events:
                    shop.calls.append((event.key, event.data))
                if bad := {at: RuntimeError("bad") for at, event in enumerate(events) if event.data in shop.bad}:
                    raise SomeFailed(bad)

        self.app.deliver(self.orders, to=Shelf("function"), start="first", order=order, **options)

    def _project(self, order: str, options: dict[str, Any], *, in_lists: bool) -> None:
        if not in_lists:

            @self.app.projection(self.orders, order=order, **options)
            def function(event: Event[Any], tx: Tx) -> None:
                self._call(event)

        else:

            @self.app.projection(self.orders, order=order, batch=True, name="function", **options)
            def in_lists_of(events: list[Event[Any]], tx: Tx) -> None:
                for event in events:
                    self._call(event)

    @property
    def desk(self) -> Any:
        """An operator's hand."""
        return self.app.operate("ada")

    @property
    def now(self) -> float:
        """The present."""
        return float(self.app.runtime.env.clock.now())

    def hold(self, *arguments: Any, **options: Any) -> Any:
        """Hold a key. Only then may the worker run: on Postgres a projection learns of it when it is to commit."""
        status = self.desk.holds.hold(*arguments, **options)
        self.run()
        return status

    def order(self, key: str | None, *numbers: int) -> None:
        """Append."""
        for number in numbers:
            self.harness.append(self.orders, "placed", number, key=key)

    def run(self) -> None:
        """Until idle."""
        self.harness.run_until_idle()

    def called(self, key: str | None) -> list[int]:
        """What the function was called with, for this key."""
        return [number for at, number in self.calls if at == key]

    def open(self) -> list[tuple[str, str, int]]:
        """(state, reason, attempts) of the open letters, in order."""
        found = [letter for letter in self.harness.letters() if letter.state in ("retrying", "dead")]
        return [(one.state, one.reason, one.attempts) for one in sorted(found, key=lambda one: one.position)]

    def letter(self) -> Any:
        """The first open letter."""
        found = [letter for letter in self.harness.letters() if letter.state in ("retrying", "dead")]
        return min(found, key=lambda one: one.position)

    def check(self) -> None:
        """The ledger has nothing to say, and each key was applied in order."""
        for verdict in self.desk.verify():
            assert verdict.violations == (), verdict


@pytest.fixture
def open_shop() -> Iterator[Callable[..., Shop]]:
    """Shops that are closed at the end."""
    shops: list[Shop] = []

    def make(*arguments: Any, **options: Any) -> Shop:
        shops.append(Shop(*arguments, **options))
        return shops[-1]

    yield make
    for shop in shops:
        shop.harness.close()


@pytest.mark.parametrize("kind", KINDS)
def test_held_key_is_not_called_and_others_go_on(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind)
    shop.order("ada", 1)
    shop.order("bob", 1)
    shop.run()
    shop.hold("function", "wrong price", key="ada")
    shop.order("ada", 2, 3, 4)
    shop.order("bob", 2, 3)
    shop.run()
    assert (shop.called("ada"), shop.called("bob")) == ([1], [1, 2, 3])
    assert shop.open() == [("retrying", "held", 0), *[("retrying", "behind_head", 0)] * 2]
    assert shop.letter().due_at == FOREVER
    shop.harness.advance("400d")
    assert shop.called("ada") == [1]
    shop.check()


@pytest.mark.parametrize("kind", KINDS)
def test_release_runs_what_was_held_in_order(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind)
    shop.run()
    shop.hold("function", "wrong price", key="ada")
    shop.order("ada", 1, 2, 3)
    shop.run()
    assert shop.calls == []
    assert shop.desk.holds.release("function", "fixed", key="ada")
    shop.order("ada", 4)
    shop.run()
    assert shop.called("ada") == [1, 2, 3, 4]
    assert shop.open() == []
    assert [letter.attempts for letter in shop.harness.letters("applied")] == [1, 1, 1, 1]
    assert not shop.desk.holds.release("function", "again", key="ada")
    shop.check()


@pytest.mark.parametrize("kind", KINDS)
def test_hold_ends_by_itself_at_until(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind)
    shop.run()
    held = shop.hold("function", "wait for the bank", key="ada", until="2h")
    shop.order("ada", 1, 2)
    shop.run()
    assert held.until == shop.letter().due_at
    shop.harness.advance(1.9 * HOUR)
    assert shop.calls == []
    shop.harness.advance(0.1 * HOUR)
    assert shop.called("ada") == [1, 2]
    assert shop.desk.holds.list() == []
    shop.check()


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_hold_ends_by_itself_while_no_worker_runs(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind)
    shop.run()
    shop.hold("function", "wait for the bank", key="ada", until="2h")
    shop.order("ada", 1)
    shop.run()
    shop.harness.crash()
    shop.app.runtime.env.clock.advance(3 * HOUR)
    shop.harness.restart()
    shop.run()
    assert shop.called("ada") == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_held_key_stays_held_after_a_crash(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind)
    shop.run()
    shop.hold("function", "look at it", key="ada")
    shop.order("ada", 1)
    shop.run()
    shop.harness.crash()
    shop.harness.restart()
    shop.order("ada", 2)
    shop.order("bob", 1)
    shop.run()
    assert shop.calls == [("bob", 1)]
    shop.desk.holds.release("function", key="ada")
    shop.run()
    assert shop.called("ada") == [1, 2]
    shop.check()


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_holds_keys_that_no_event_had_before(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind)
    shop.run()
    shop.hold("function", "migration", prefix="tenant-7/")
    for key in ("tenant-7/ada", "tenant-7/bob", "tenant-70/ada", "tenant-7", None):
        shop.order(key, 1, 2)
    shop.run()
    assert {key for key, _ in shop.calls} == {"tenant-70/ada", "tenant-7", None}
    assert [one.letters for one in shop.desk.holds.list()] == [2]
    shop.desk.holds.release("function", prefix="tenant-7/")
    shop.run()
    assert shop.called("tenant-7/ada") == shop.called("tenant-7/bob") == [1, 2]
    shop.check()


@pytest.mark.parametrize("kind", KINDS)
def test_retrying_letter_of_a_held_key_waits(open_shop: Any, kind: str) -> None:
    """Its attempts and its due time stay: released before it is due, it is tried then."""
    shop = open_shop(kind)
    shop.bad = {1}
    shop.order("ada", 1, 2)
    shop.run()
    assert shop.open() == [("retrying", "failing", 1), ("retrying", "behind_head", 0)]
    shop.calls.clear()
    shop.hold("function", "look at it", key="ada")
    shop.harness.advance("1h")
    assert shop.calls == []
    shop.bad = set()
    shop.desk.holds.release("function", key="ada")
    shop.run()
    assert shop.called("ada") == [1, 2]
    assert [letter.attempts for letter in shop.harness.letters("applied")] == [2, 1]
    shop.check()


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_released_letter_does_not_wait_for_a_clock_that_was_set_back(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind, retry=retry(attempts=2, wait="1m", jitter=0))
    shop.bad = {1}
    shop.order("ada", 1)
    shop.run()
    shop.hold("function", "look at it", key="ada")
    shop.harness.advance("2m")
    shop.app.runtime.env.clock.jump(-HOUR)
    shop.run()
    shop.calls.clear()
    shop.bad = set()
    shop.desk.holds.release("function", key="ada")
    shop.harness.advance("1m")
    assert shop.called("ada") == [1]


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_dead_head_of_a_held_key_is_replayed_after_release(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind, retry=retry(attempts=1))
    shop.bad = {1}
    shop.order("ada", 1, 2)
    shop.run()
    shop.hold("function", "look at it", key="ada")
    shop.run()
    assert shop.letter().state == "dead"
    shop.bad = set()
    assert shop.desk.letters.replay(shop.letter()).done
    shop.run()
    assert shop.called("ada") == [1]
    shop.desk.holds.release("function", key="ada")
    shop.run()
    assert shop.called("ada") == [1, 1, 2]
    shop.check()


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_follower_of_a_discarded_head_stays_held(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind)
    shop.run()
    shop.hold("function", "look at it", key="ada")
    shop.order("ada", 1, 2, 3)
    shop.run()
    shop.desk.letters.discard(shop.letter(), "not wanted")
    shop.run()
    shop.harness.advance("1h")
    assert shop.calls == []
    shop.desk.holds.release("function", key="ada")
    shop.run()
    assert shop.called("ada") == [2, 3]
    shop.check()


@pytest.mark.parametrize("kind", ["projection", "projection in lists", "handler", "delivery"])
def test_hold_without_order_puts_each_event_of_the_key_aside(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind, order="none")
    shop.bad = {1}
    shop.order("ada", 1)
    shop.run()
    shop.calls.clear()
    shop.hold("function", "look at it", key="ada")
    shop.order("ada", 2, 3)
    shop.order("bob", 2)
    shop.run()
    shop.harness.advance("1h")
    assert shop.calls == [("bob", 2)]
    assert shop.open() == [("retrying", "failing", 1), *[("retrying", "held", 0)] * 2]
    shop.bad = set()
    shop.desk.holds.release("function", key="ada")
    shop.run()
    assert sorted(shop.called("ada")) == [1, 2, 3]
    shop.check()


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_hold_in_total_order_stops_the_subscription_at_the_key(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind, order="total")
    shop.run()
    shop.hold("function", "look at it", key="ada")
    shop.order("bob", 1)
    shop.order("ada", 1)
    shop.order("bob", 2)
    shop.run()
    shop.harness.advance("1h")
    assert shop.calls == [("bob", 1)]
    shop.desk.holds.release("function", key="ada")
    shop.run()
    assert shop.calls == [("bob", 1), ("ada", 1), ("bob", 2)]
    shop.check()


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_hold_goes_by_the_subscriptions_own_key(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind, key_by=lambda event: f"n{event.data}")
    shop.run()
    shop.hold("function", "look at it", key="n2")
    shop.order("ada", 1, 2, 3)
    shop.run()
    assert shop.called("ada") == [1, 3]
    shop.desk.holds.release("function", key="n2")
    shop.run()
    assert shop.called("ada") == [1, 3, 2]
    shop.check()


def test_hold_of_every_subscription_covers_those_declared_later(open_shop: Any) -> None:
    shop = open_shop("handler")
    later: list[int] = []
    shop.run()
    shop.hold(None, "look at it", key="ada", until="1d")
    shop.order("ada", 1)
    shop.run()

    @shop.app.projection(shop.orders)
    def newcomer(event: Event[Any], tx: Tx) -> None:
        later.append(event.data)

    shop.harness.restart()
    shop.run()
    assert shop.calls == later == []
    assert [(one.subscription, one.key, one.letters) for one in shop.desk.holds.list("newcomer")] == [(None, "ada", 1)]
    assert not shop.desk.holds.release("function", key="ada")
    assert shop.desk.holds.release(None, key="ada")
    shop.run()
    assert (shop.called("ada"), later) == ([1], [1])


def test_key_under_two_holds_waits_for_the_last(open_shop: Any) -> None:
    shop = open_shop("handler")
    shop.run()
    shop.hold("function", "one", key="tenant-7/ada")
    shop.hold("function", "two", prefix="tenant-7/", until="2h")
    shop.order("tenant-7/ada", 1)
    shop.run()
    assert shop.letter().due_at == FOREVER
    shop.desk.holds.release("function", key="tenant-7/ada")
    shop.run()
    assert shop.calls == []
    assert shop.letter().due_at == shop.desk.holds.list()[0].until
    shop.harness.advance("2h")
    assert shop.called("tenant-7/ada") == [1]


@pytest.mark.parametrize(("second", "waits"), [("30m", 0.5), ("5h", 5.0)])
def test_second_hold_of_a_key_changes_the_first(open_shop: Any, second: str, waits: float) -> None:
    shop = open_shop("projection")
    shop.run()
    shop.hold("function", "one", key="ada", until="2h")
    shop.order("ada", 1)
    shop.run()
    shop.hold("function", "two", key="ada", until=second)
    assert [(one.reason, one.who) for one in shop.desk.holds.list()] == [("two", "ada")]
    shop.harness.advance(waits * HOUR - 60)
    assert shop.calls == []
    shop.harness.advance(60)
    assert shop.called("ada") == [1]


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_hold_survives_reset_and_rename(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind)
    shop.order("ada", 1, 2)
    shop.run()
    shop.hold("function", "look at it", key="ada")
    shop.harness.crash()
    shop.desk.reset("function", "again")
    shop.harness.restart()
    shop.run()
    assert shop.called("ada") == [1, 2]
    assert shop.open()[0] == ("retrying", "held", 0)
    shop.harness.crash()
    shop.desk.subscriptions.rename("function", "renamed")
    assert [one.subscription for one in shop.desk.holds.list()] == ["renamed"]


def test_many_held_keys_are_released_some_at_a_time(open_shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.replay.holds.LETTERS_MAX", 3)
    shop = open_shop("projection")
    shop.run()
    shop.hold("function", "migration", prefix="t/")
    shop.hold("function", "this one longer", key="t/5")
    for number in range(10):
        shop.order(f"t/{number}", number)
    shop.run()
    assert shop.calls == []
    shop.desk.holds.release("function", prefix="t/")
    shop.run()
    assert sorted(number for _, number in shop.calls) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_hold_is_audited_and_needs_a_reason(open_shop: Any) -> None:
    shop = open_shop("handler")
    shop.run()
    shop.hold("function", "look at it", key="ada")
    shop.desk.holds.release("function", "seen", key="ada")
    with shop.app.runtime.store.reading() as tx:
        found = [(row[2], row[3], row[4], row[5], row[6]) for row in tx.books.audited()]
    assert found == [
        ("ada", "hold", "function", "key ada", "look at it"),
        ("ada", "release", "function", "key ada", "seen"),
    ]
    with pytest.raises(UsageError, match="needs a reason"):
        shop.desk.holds.hold("function", " ", key="ada")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "name a key or a prefix"),
        ({"key": "a", "prefix": "b"}, "name a key or a prefix"),
        ({"prefix": ""}, "redrive pause"),
        ({"key": ""}, "the key is empty"),
        ({"key": "a\nb"}, "key"),
        ({"key": "a", "until": "soon"}, "neither a duration like 2h nor a time"),
        ({"key": "a", "until": "2020-01-01T00:00Z"}, "is over"),
        ({"key": "a", "until": "2020-01-01T00:00"}, "no time zone"),
        ({"key": "a", "until": -1.0}, "is over"),
        ({"key": "a", "until": float("nan")}, "is over"),
        ({"key": "a", "until": []}, "is no time"),
    ],
)
def test_bad_hold_is_refused_and_leaves_nothing(open_shop: Any, arguments: dict[str, Any], said: str) -> None:
    shop = open_shop("handler")
    shop.run()
    with pytest.raises(RedriveError, match=said):
        shop.desk.holds.hold("function", "why", **arguments)
    with pytest.raises(UsageError, match="there is no subscription 'other'"):
        shop.desk.holds.hold("other", "why", key="ada")
    assert shop.desk.holds.list() == []


def test_too_many_holds_are_refused(open_shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert HOLDS_MAX >= 1_000
    monkeypatch.setattr("redrive.replay.holds.HOLDS_MAX", 2)
    shop = open_shop("handler")
    shop.run()
    for key in ("a", "b"):
        shop.hold("function", "why", key=key)
    with pytest.raises(UsageError, match="hold a prefix"):
        shop.desk.holds.hold("function", "why", key="c")
    shop.hold("function", "still", key="a")


# ---------------------------------------------------------------- now and postpone


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_now_makes_a_retrying_letter_due_and_keeps_its_attempts(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind, retry=retry(attempts=3, wait="5m", jitter=0))
    shop.bad = {1}
    shop.order("ada", 1, 2)
    shop.run()
    assert shop.desk.letters.now(shop.letter(), "fixed it").done
    shop.run()
    assert (shop.called("ada"), shop.open()[0]) == ([1, 1], ("retrying", "failing", 2))
    shop.desk.letters.now(shop.letter())
    shop.run()
    assert shop.open()[0] == ("dead", "attempts_exhausted", 3)
    shop.check()


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_postponed_letter_waits_until_its_time(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind)
    shop.bad = {1}
    shop.order("ada", 1)
    shop.run()
    until = shop.now + 2 * HOUR
    assert shop.desk.letters.postpone(shop.letter(), until, "the bank is closed").done
    assert (shop.letter().due_at, shop.letter().attempts) == (until, 1)
    shop.harness.advance(1.9 * HOUR)
    assert shop.called("ada") == [1]
    shop.harness.advance(0.1 * HOUR)
    assert shop.called("ada") == [1, 1]
    with shop.app.runtime.store.reading() as tx:
        found = [(row[3], row[6], json.loads(row[7])["until"]) for row in tx.books.audited()]
    assert found == [("postpone", "the bank is closed", until)]
    shop.check()


def test_now_refuses_what_has_no_due_time(open_shop: Any) -> None:
    shop = open_shop("handler", retry=retry(attempts=1))
    shop.bad = {1}
    shop.order("ada", 1, 2)
    shop.run()
    head, follower = sorted(shop.harness.letters(), key=lambda one: one.position)
    assert "dead: replay it" in shop.desk.letters.now(head).refused[0].why
    assert "waits behind letter" in shop.desk.letters.postpone(follower, "1h").refused[0].why
    assert "no such letter" in shop.desk.letters.now(99).refused[0].why
    with pytest.raises(UsageError, match="is over"):
        shop.desk.letters.postpone(head, shop.now - 1)


def test_now_refuses_a_letter_that_is_due_already(open_shop: Any) -> None:
    """It may run at this moment: a change would take its attempt back."""
    shop = open_shop("handler")
    shop.bad = {1}
    shop.order("ada", 1)
    shop.run()
    shop.desk.letters.now(shop.letter())
    assert shop.desk.letters.now(shop.letter()).refused[0].why == "it is due already"


@pytest.mark.parametrize("deed", ["hold", "release"])
def test_hold_does_not_take_back_an_attempt_under_way(open_shop: Any, deed: str) -> None:
    """A letter that was held once and runs now keeps its revision, whatever is held or released meanwhile."""
    shop = open_shop("handler")
    shop.run()
    shop.hold("function", "one", key="ada")
    shop.order("ada", 1)
    shop.run()
    shop.desk.holds.release("function", key="ada")
    rev = shop.letter().rev
    shop.desk.holds.hold("function", "two", key="ada")
    if deed == "release":
        shop.desk.holds.release("function", key="ada")
    assert shop.letter().rev == rev


def test_now_refuses_a_letter_of_a_held_key_and_names_the_release(open_shop: Any) -> None:
    shop = open_shop("handler")
    shop.run()
    shop.hold("function", "look at it", prefix="tenant-7/")
    shop.order("tenant-7/ada", 1)
    shop.run()
    why = shop.desk.letters.now(shop.letter()).refused[0].why
    assert "held by ada since" in why
    assert "redrive release function --key 'tenant-7/*'" in why


# ---------------------------------------------------------------- together with other deeds


def test_hold_beside_a_breaker_of_each_key(open_shop: Any) -> None:
    """The key's breaker is open when the hold comes; after both have ended the events run in order."""
    shop = open_shop("handler", breaker=breaker(per="key", failures=1, cooldown="1m", probes=1))
    shop.bad = {1}
    shop.order("ada", 1, 2)
    shop.run()
    shop.hold("function", "look at it", key="ada")
    shop.order("ada", 3)
    shop.order("bob", 7)
    shop.harness.advance("1h")
    assert shop.called("ada") == [1]
    assert shop.called("bob") == [7]
    shop.bad = set()
    shop.desk.holds.release("function", key="ada")
    shop.harness.advance("5m")
    assert shop.called("ada") == [1, 1, 2, 3]
    shop.check()


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_held_letters_follow_their_events_to_new_keys(open_shop: Any, kind: str) -> None:
    """After `rekey` the holds of the new keys decide: a letter is not kept for a key that nobody releases any more."""
    keys: dict[int, str] = {1: "old", 2: "old"}
    shop = open_shop(kind, key_by=lambda event: keys[event.data])
    shop.run()
    shop.hold("function", "look at it", key="old")
    shop.hold("function", "look at it", key="new-2")
    shop.order(None, 1, 2)
    shop.run()
    assert shop.calls == []
    shop.harness.crash()
    keys.update({1: "new-1", 2: "new-2"})
    shop.desk.subscriptions.rekey("function", "other keys")
    shop.harness.restart()
    shop.run()
    assert [number for _, number in shop.calls] == [1]
    shop.desk.holds.release("function", key="new-2")
    shop.run()
    assert [number for _, number in shop.calls] == [1, 2]
    shop.check()


@pytest.mark.parametrize("kind", ["projection", "handler"])
def test_hold_reaches_every_partition(open_shop: Any, kind: str) -> None:
    shop = open_shop(kind, partitions=3)
    shop.run()
    shop.hold("function", "migration", prefix="t/")
    names = [f"{where}/{number}" for where in "tu" for number in range(9)]
    for number, name in enumerate(names):
        shop.order(name, number)
    shop.run()
    assert {key[0] for key, _ in shop.calls} == {"u"}
    shop.desk.holds.release("function", prefix="t/")
    shop.run()
    assert sorted(key for key, _ in shop.calls) == sorted(names)
    shop.check()


def test_hold_may_be_taken_back_before_the_worker_writes_the_letter(open_shop: Any) -> None:
    """The worker keeps an event back, and the release is committed first: the letter is due at once."""
    shop = open_shop("handler")
    shop.run()
    shop.hold("function", "look at it", key="ada")
    shop.order("ada", 1, 2)

    with failpoint("round.called", lambda: shop.desk.holds.release("function", key="ada")) as place:
        shop.run()
    assert place.fired
    shop.run()
    assert shop.called("ada") == [1, 2]
    shop.check()


def test_hold_is_seen_while_all_workers_are_busy_and_nothing_more_is_read() -> None:
    """Workers take what is ready without asking: with a full window no commit of others was looked at before."""
    app, calls = App("unused.db"), list[str | None]()
    orders = app.log("orders")

    @app.on(orders, start="first", concurrency=1, timeout=None)
    async def function(event: Event[Any]) -> None:
        calls.append(event.key)
        await asyncio.sleep(10)
        if event.key == "slow":
            app.operate("ada").holds.hold("function", "wrong price", key="held")
            await asyncio.sleep(10)

    settings = Settings(window_max=4, settle_max=4, lease=1e4, poll_min=0.5, poll_max=0.5)
    with Harness(app, settings=settings) as harness:
        for key in ("slow", "held", *(f"other-{number}" for number in range(20))):
            harness.append(orders, "placed", {}, key=key)
        harness.run_until_idle()
        assert "held" not in calls
        assert len(calls) == 21
        assert [(letter.key, letter.reason) for letter in harness.letters()] == [("held", "held")]
