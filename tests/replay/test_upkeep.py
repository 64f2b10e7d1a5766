"""Pruning by itself: at its times, by one worker, and only what `redrive prune` would delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Ctx, Event, Reject, Tx, UsageError, no_retry
from redrive.replay.deed import Operator
from redrive.replay.upkeep import Upkeep
from redrive.settings import Settings, load_settings
from redrive.testing import Harness

DAY = 86_400.0
DAILY = "0 3 * * *"
ENTRIES = "key TEXT PRIMARY KEY, n INTEGER NOT NULL"


class Shop:
    """A projection and a handler on a log that is kept for as long as the test says."""

    def __init__(self, store: str | None = None, *, retention: str | None = None, **settings: Any) -> None:
        self.app = App("unused.db", settings=Settings(**settings))
        self.orders = self.app.log("orders", retention=retention)
        self.bad = {"poison"}

        @self.app.projection(self.orders, tables={"entries": ENTRIES}, retry=no_retry)
        def entries(event: Event[Any], tx: Tx) -> None:
            if event.type in self.bad:
                raise Reject("poison")
            tx.execute(
                "INSERT INTO entries VALUES (:k, 1) ON CONFLICT (key) DO UPDATE SET n = entries.n + 1",
                {"k": event.key or ""},
            )

        @self.app.on(self.orders, start="first", retry=no_retry)
        def watch(event: Event[Any], ctx: Ctx) -> None:
            if event.type in self.bad:
                raise Reject("poison")

        self.harness = Harness(self.app, store)

    def place(self, key: str, type: str = "placed") -> int:
        return self.harness.append("orders", type, {}, key=key).position

    def run(self, days: float = 0.0) -> None:
        """So many days later, until idle."""
        self.harness.clock.advance(days * DAY)
        self.harness.run_until_idle()
        for verdict in self.app.operate().verify():
            assert verdict.violations == (), verdict

    def count(self, table: str) -> int:
        return int(self.harness.query(f"SELECT count(*) FROM redrive_{table}")[0][0])

    def pruned(self) -> list[tuple[str, str]]:
        """(who, target) of every time that something was pruned."""
        found = self.harness.query("SELECT who, target FROM redrive_audit WHERE action = 'prune' ORDER BY id")
        return [(str(who), str(target)) for who, target in found]


Opened = Callable[..., Shop]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Shops that are closed again."""
    with ExitStack() as stack:

        def open_one(**options: Any) -> Shop:
            shop = Shop(**options)
            stack.callback(shop.harness.close)
            return shop

        yield open_one


def with_settled_letters(opened: Opened, **settings: Any) -> Shop:
    """Two dead letters that were replayed, and are applied now."""
    shop = opened(**settings)
    shop.place("a", "poison")
    shop.run()
    shop.bad.clear()
    shop.harness.replay()
    shop.run()
    assert [letter.state for letter in shop.harness.letters()] == ["applied", "applied"]
    return shop


def test_settled_letters_go_when_they_are_old_and_the_time_has_come(opened: Opened) -> None:
    shop = with_settled_letters(opened, prune_cron=DAILY, prune_older_than=10 * DAY)
    for _ in range(9):
        shop.run(days=1)
    assert (shop.count("letters"), shop.pruned()) == (2, [])
    shop.run(days=2)
    assert (shop.count("letters"), shop.count("attempts")) == (0, 0)
    assert shop.pruned() == [("auto-prune", "letters older than 10d")]
    assert [one.action for one in shop.harness.signals if type(one).__name__ == "Operated"][-1] == "prune"
    shop.run(days=1)
    assert len(shop.pruned()) == 1, "where there is nothing to prune, nothing is written down"


def test_nothing_goes_by_itself_unless_somebody_asks_for_it(opened: Opened) -> None:
    shop = with_settled_letters(opened)
    shop.run(days=400)
    assert (shop.count("letters"), shop.pruned()) == (2, [])


def test_open_letters_never_expire(opened: Opened) -> None:
    shop = opened(prune_cron=DAILY, prune_older_than=DAY, retention="1d")
    shop.place("a", "poison")
    shop.place("a")
    shop.run()
    shop.run(days=30)
    assert sorted(letter.state for letter in shop.harness.letters()) == ["dead", "dead", "retrying", "retrying"]
    assert shop.count("events") == 2


def test_whoever_begins_does_not_delete_at_once_and_a_time_without_workers_is_made_up_for_once(opened: Opened) -> None:
    shop = with_settled_letters(opened)
    shop.harness.clock.advance(100 * DAY)
    operator = Operator(shop.app.runtime.store, shop.harness.env)
    upkeep = Upkeep(operator, DAILY, 10 * DAY, {})
    assert upkeep.step().idle
    assert shop.count("letters") == 2, "it may be a mistake in the settings: there is a day to notice it"
    shop.harness.clock.advance(3 * DAY)
    again = Upkeep(operator, DAILY, 10 * DAY, {})  # another worker
    turns = 0
    while not again.step().idle:
        turns += 1
        assert upkeep.step().idle, "one of them is enough"
    assert (turns > 0, shop.count("letters"), len(shop.pruned())) == (True, 0, 1)
    assert again.step().wait <= DAY


def test_events_go_when_their_log_is_kept_no_longer_than_that(opened: Opened) -> None:
    shop = opened(retention="90d")
    for number in range(2_500):  # several short transactions
        shop.place(f"k{number % 2}")
    shop.run()
    shop.run(days=60)
    shop.place("k0")
    shop.run(days=31)
    left = shop.harness.query("SELECT position FROM redrive_events ORDER BY position")
    assert left == [(2_500,), (2_501,)], "the newest of each key stays: versions count on from it"
    assert shop.pruned() == [("auto-prune", "log orders older than 90d")]
    assert dict(shop.harness.query("SELECT key, n FROM entries")) == {"k0": 1_251, "k1": 1_250}
    with pytest.raises(UsageError, match="pruned"):
        shop.app.operate().reset("entries", "to see")


def test_what_somebody_has_not_read_stays(opened: Opened) -> None:
    shop = opened(retention="1d")
    shop.place("a")
    shop.place("a")
    shop.run()
    shop.app.operate().subscriptions.pause("watch", "to see")
    shop.place("a")
    shop.place("a")
    shop.run()
    shop.run(days=3)
    assert [one for (one,) in shop.harness.query("SELECT position FROM redrive_events ORDER BY position")] == [2, 3, 4]


def test_a_worker_that_dies_on_the_way_leaves_the_rest_for_the_next_time(opened: Opened) -> None:
    shop = opened(retention="1d")
    for _ in range(2_500):
        shop.place("a")
    shop.run()
    shop.harness.clock.advance(3 * DAY)
    operator = Operator(shop.app.runtime.store, shop.harness.env)
    dying = Upkeep(operator, None, 0.0, {"orders": DAY})
    assert not dying.step().idle
    assert 0 < shop.count("events") < 2_500
    shop.run()
    assert shop.count("events") > 1, "not before the next time"
    shop.run(days=0.1)
    assert shop.count("events") == 1


def test_a_log_that_is_not_there_yet_is_no_trouble(opened: Opened) -> None:
    shop = opened(retention="1d")
    shop.run()
    shop.run(days=2)
    assert shop.pruned() == []


@pytest.mark.parametrize("wrong", ["every day", "0 3 * *", "0 0 31 2 *", ""])
def test_a_line_that_is_never_due_is_refused_with_its_place(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "redrive.toml"
    file.write_text(f'prune_cron = "{wrong}"\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"prune_cron.*redrive\.toml.*no line of five fields"):
        load_settings(file, {})


@pytest.mark.parametrize("wrong", ["soon", -1, True])
def test_a_retention_is_a_duration(wrong: Any) -> None:
    with pytest.raises(UsageError, match="log 'orders': retention"):
        App("unused.db").log("orders", retention=wrong)
