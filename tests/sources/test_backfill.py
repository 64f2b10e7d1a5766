"""A backfill stream: old events beside the live ones, which never wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Event
from redrive.redis import Stream
from redrive.runner import turns
from redrive.testing import Harness
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint

pytestmark = pytest.mark.sqlite("whose turn it is is asked of the store by statements that both have")
MANY = 3 * turns.BEHIND_MAX


class Shop:
    """Two streams, one function: it writes down what it was given, and by which."""

    def __init__(self, url: str, store: str | None = None, **how: Any) -> None:
        self.app = App(store or "/nonexistent/x.db", name="shop")
        self.given: list[tuple[str, int]] = []
        self.bad: set[int] = set()
        how = {"partitions": 1, **how}
        for name, stream in (
            ("live", Stream(url, "orders", **how)),
            ("late", Stream(url, "orders", backfill=True, **how)),
        ):
            self.app.on(stream, name=name, order="key" if stream.ordered else "none")(self.taking(name))

    def taking(self, name: str) -> Any:
        def take(event: Event[Any], ctx: Any) -> None:
            if event.data in self.bad:
                raise ValueError("never")
            self.given.append((name, event.data))

        return take


@pytest.fixture
def shop(valkey_url: str, server: Any) -> Iterator[Any]:
    shop = Shop(valkey_url)
    shop.harness = Harness(shop.app)  # type: ignore[attr-defined]
    yield shop
    shop.harness.close()  # type: ignore[attr-defined]


def say(server: Any, stream: str, numbers: range) -> None:
    pipe = server.pipeline()
    for n in numbers:
        pipe.xadd(stream, {"key": f"k{n % 5}", "data": n})
    pipe.execute()


def test_what_is_live_goes_first_and_all_of_both_is_applied_once_and_in_order(shop: Any, server: Any) -> None:
    say(server, "orders:backfill", range(MANY))
    say(server, "orders", range(2_500))
    shop.harness.run_until_idle()
    names = [name for name, _ in shop.given]
    assert names == ["live"] * 2_500 + ["late"] * MANY
    for name, count in (("live", 2_500), ("late", MANY)):
        for key in range(5):
            numbers = [n for one, n in shop.given if one == name and n % 5 == key]
            assert numbers == list(range(key, count, 5))


def test_a_live_event_in_the_middle_of_a_backfill_waits_for_one_batch_at_most(shop: Any, server: Any) -> None:
    say(server, "orders:backfill", range(MANY))

    class Given(list[Any]):
        def append(self, one: Any) -> None:
            if len(self) == 10:
                say(server, "orders", range(3))
                shop.harness._driver.supervisor.wakes["redis:orders"].ring()
            super().append(one)

    shop.given = Given()
    shop.harness.run_until_idle()
    before = [name for name, _ in shop.given].index("live")
    assert 10 < before <= 2 * turns.BEHIND_MAX
    assert len(shop.given) == MANY + 3


def test_its_letters_are_marked_by_where_they_come_from(shop: Any, server: Any) -> None:
    shop.bad = {1}
    say(server, "orders", range(3))
    say(server, "orders:backfill", range(3))
    shop.harness.advance("1d")
    letters = shop.app.operate().letters.list()
    assert {(one.subscription, one.source) for one in letters} == {
        ("late", "redis:orders:backfill"), ("live", "redis:orders"),
    }  # fmt: skip


@pytest.mark.parametrize("place", ["land.before_commit", "land.committed"])
def test_a_death_while_it_is_taken_in_changes_nothing(shop: Any, server: Any, place: str) -> None:
    say(server, "orders:backfill", range(MANY))
    with failpoint(place, shop.harness.crash, at=2), pytest.raises(Crashed):
        shop.harness.run_until_idle()
    shop.harness.run_until_idle()
    assert sorted(shop.given) == [("late", n) for n in range(MANY)]


def test_a_live_function_that_is_paused_holds_nothing_back(shop: Any, server: Any) -> None:
    shop.harness.run_until_idle()
    shop.app.operate().subscriptions.pause("live")
    say(server, "orders", range(3))
    say(server, "orders:backfill", range(3))
    shop.harness.run_until_idle()
    assert shop.given == [("late", n) for n in range(3)]


def test_a_real_worker_takes_in_both(valkey_url: str, server: Any, tmp_path: Path) -> None:
    shop = Shop(valkey_url, str(tmp_path / "shop.db"), partitions=None)
    say(server, "orders:backfill", range(MANY))
    say(server, "orders", range(20))
    shop.app.run(until_idle=True)
    shop.app.close()
    for name, count in (("live", 20), ("late", MANY)):
        assert sorted(n for one, n in shop.given if one == name) == list(range(count))
