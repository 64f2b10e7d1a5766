"""Keyed state in RocksDB: of the same moment as the effects whatever happens, or it halts and says what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from redrive import App, UsageError, no_retry
from redrive.errors import Fenced, RedriveError
from redrive.failpoints import NAMES
from redrive.replay.keyed import state_of
from redrive.rocksdb import RocksDB
from redrive.rocksdb.folder import open_keeper
from redrive.store.states import Owner
from redrive.testing import FaultProxy, Harness
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import FailpointHit, failpoint

KEYS = 3
ROUND = [name for name in NAMES if name.startswith("round.")]


class Shop:
    """An app that counts the events of each key in its state, and writes down with each event what it had counted."""

    def __init__(self, app: App, folder: Path, name: str = "count") -> None:
        self.app, self.folder, self.name, self.said, self.bad = app, folder, name, 0, set[int]()

        @app.on(app.log("orders"), name=name, start="first", retry=no_retry, state=RocksDB(folder))
        def count(event: Any, ctx: Any) -> None:
            if event.data in self.bad:
                ctx.state["n"] = -1
                raise ValueError("not this one")
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            ctx.execute(f"INSERT INTO {name} VALUES (:key, :n)", {"key": event.key, "n": ctx.state["n"]})
            ctx.emit(app.log("told"), "told", {"key": event.key, "n": ctx.state["n"]})

    def begin(self, harness: Harness) -> Shop:
        self.harness = harness
        with self.app.transaction() as tx:
            tx.execute(f"CREATE TABLE IF NOT EXISTS {self.name} (key TEXT NOT NULL, n INTEGER NOT NULL)")
        return self

    def say(self, number: int) -> None:
        for _ in range(number):
            self.harness.append("orders", "order.placed", self.said, key=f"k{self.said % KEYS}")
            self.said += 1

    def check(self) -> None:
        """Each event saw the state that the one before it left, and left its own: once."""
        assert self.harness.halted == {}
        rows = sorted(self.harness.query(f"SELECT key, n FROM {self.name}"))
        expected = [(f"k{key}", n + 1) for key in range(KEYS) for n in range(len(range(key, self.said, KEYS)))]
        assert rows == expected


@pytest.fixture
def shop(app: App, start: Any, tmp_path: Path) -> Shop:
    shop = Shop(app, tmp_path / "state")
    return shop.begin(start(app))


def test_state_survives_and_is_not_in_the_store(shop: Shop) -> None:
    shop.say(10)
    shop.harness.run_until_idle()
    shop.harness.restart()
    shop.say(10)
    shop.harness.run_until_idle()
    shop.check()
    assert shop.harness.query("SELECT count(*) FROM redrive_state") == [(0,)]
    with pytest.raises(RedriveError, match="outside the store"):
        state_of(shop.app.runtime.store, "count", "k0")


@pytest.mark.parametrize("place", ROUND)
def test_a_death_at_any_step_leaves_state_and_effects_of_one_moment(shop: Shop, place: str) -> None:
    shop.say(4)
    shop.harness.run_until_idle()
    for _ in range(3):
        shop.say(5)
        with failpoint(place, shop.harness.crash), pytest.raises(Crashed):
            shop.harness.run_until_idle()
        for _ in range(2):  # and who comes after it, while it repairs what was left
            with failpoint("lease.before_commit", shop.harness.crash), pytest.raises(Crashed):
                shop.harness.advance("1m")
    shop.harness.advance("1m")
    shop.check()


@pytest.mark.parametrize("place", ROUND)
def test_a_failure_at_any_step_leaves_state_and_effects_of_one_moment(shop: Shop, place: str) -> None:
    shop.say(4)
    shop.harness.run_until_idle()
    for _ in range(3):
        shop.say(5)
        with failpoint(place, FailpointHit) as armed:
            shop.harness.run_until_idle()
        assert armed.fired
        shop.harness.advance("2m")
    shop.check()


def test_a_failed_event_leaves_no_state_and_its_lane_goes_on_in_order(shop: Shop) -> None:
    shop.bad = {1, 4}
    shop.say(9)
    shop.harness.run_until_idle()
    assert [letter.position for letter in shop.harness.letters("dead")] == [2]
    shop.bad = set()
    shop.harness.replay()
    shop.harness.run_until_idle()
    shop.check()


def test_a_commit_that_is_refused_takes_its_state_back(app: App, tmp_path: Path, postgres_url: str) -> None:
    """On Postgres, where every constraint can be put off until the end."""
    told = []

    @app.on(app.log("orders"), name="use", start="first", retry=no_retry, state=RocksDB(tmp_path / "state"))
    def use(event: Any, ctx: Any) -> None:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        told.append((event.data, ctx.state["n"]))
        ctx.execute("INSERT INTO uses VALUES (:n)", {"n": 7 if event.data in bad else 1})

    bad = {4}
    with Harness(app, postgres_url) as harness:
        with app.transaction() as tx:
            tx.execute("CREATE TABLE known (n INTEGER PRIMARY KEY)")
            tx.execute("INSERT INTO known VALUES (1)")
            tx.execute("CREATE TABLE uses (n INTEGER REFERENCES known (n) DEFERRABLE INITIALLY DEFERRED)")
        for n in range(9):
            harness.append("orders", "order.placed", n, key=f"k{n % KEYS}")
        harness.run_until_idle()
        assert [letter.position for letter in harness.letters("dead")] == [5]
        bad.clear()
        harness.restart()
        harness.replay()
        harness.append("orders", "order.placed", 9, key="k1")
        harness.append("orders", "order.placed", 10, key="k2")
        harness.run_until_idle()
    last = dict(told)  # what each event counted when it was applied
    assert [last[n] for n in range(11)] == [n // KEYS + 1 for n in range(11)] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4]


def test_state_that_is_left_empty_is_gone(app: App, start: Any, tmp_path: Path) -> None:
    seen = []

    @app.on(app.log("orders"), start="first", state=RocksDB(tmp_path / "state"))
    def remember(event: Any, ctx: Any) -> None:
        seen.append(dict(ctx.state))
        ctx.state = {"n": event.data} if event.data else {}

    harness = start(app)
    for n in (1, 2, 0, 3):
        harness.append("orders", "order.placed", n, key="k")
        harness.run_until_idle()
        harness.restart()
    harness.append("orders", "order.placed", 4, key="k")
    harness.run_until_idle()
    assert seen == [{}, {"n": 1}, {"n": 2}, {}, {"n": 3}]


def test_subscriptions_share_a_folder_and_nothing_else(app: App, start: Any, tmp_path: Path) -> None:
    one, two = Shop(app, tmp_path / "state"), Shop(app, tmp_path / "state", "second")
    harness = start(app)
    one.begin(harness)
    two.begin(harness)
    one.say(7)
    two.said = 7
    harness.run_until_idle()
    app.operate().reset("second", "to see it")
    with app.transaction() as tx:
        tx.execute("DELETE FROM second")
    harness.run_until_idle()
    harness.restart()
    one.say(2)
    two.said += 2
    harness.run_until_idle()
    one.check()
    two.check()


# ------------------------------------------------------------ of different moments


def lose(shop: Shop, kept: Path) -> None:
    shutil.rmtree(shop.folder)


def bring_back(shop: Shop, kept: Path) -> None:
    shutil.rmtree(shop.folder)
    shutil.copytree(kept, shop.folder)


@pytest.mark.parametrize("deed", [lose, bring_back])
def test_a_folder_that_was_lost_or_restored_halts_until_the_state_is_built_anew(
    shop: Shop, tmp_path: Path, deed: Callable[[Shop, Path], None]
) -> None:
    shop.say(5)
    shop.harness.run_until_idle()
    shop.harness.restart()  # closes it
    shutil.copytree(shop.folder, tmp_path / "kept")
    shop.say(3)
    shop.harness.run_until_idle()
    shop.harness.restart()
    deed(shop, tmp_path / "kept")
    shop.say(3)
    shop.harness.run_until_idle()
    assert "of different moments" in shop.harness.halted["count"]
    assert "redrive rebuild count" in shop.harness.halted["count"]
    assert shop.harness.query("SELECT count(*) FROM count") == [(8,)]
    with shop.app.transaction() as tx:
        tx.execute("DELETE FROM count")
    shop.app.operate().reset("count", "its state is gone")
    shop.harness.advance("1m")
    shop.check()


@pytest.mark.sqlite("the store is a file that can be put back")
def test_a_store_that_was_restored_halts(app: App, tmp_path: Path) -> None:
    shop, file = Shop(app, tmp_path / "state"), tmp_path / "shop.db"
    with Harness(app, str(file)) as harness:
        shop.begin(harness).say(5)
        harness.run_until_idle()
    shutil.copy(file, tmp_path / "kept.db")
    for turn in range(2):
        with Harness(app, str(file)) as harness:
            for _ in range(2):  # one that is ahead by a single batch is what a crash leaves, and is repaired
                shop.begin(harness).say(3)
                harness.run_until_idle()
            assert turn == 0 or "of different moments" in harness.halted["count"]
        for left in tmp_path.glob("shop.db-*"):
            left.unlink()
        shutil.copy(tmp_path / "kept.db", file)


def test_the_state_of_another_store_is_left_alone(shop: Shop, tmp_path: Path) -> None:
    shop.say(3)
    shop.harness.run_until_idle()
    shop.harness.restart()
    other = Shop(App(str(tmp_path / "untouched.db")), shop.folder)
    with Harness(other.app) as harness:
        other.begin(harness).say(3)
        harness.run_until_idle()
        assert "belongs to another store" in harness.halted["count"]
    shop.say(3)
    shop.harness.run_until_idle()
    shop.check()


def test_a_folder_that_another_process_has_open_is_waited_for(shop: Shop) -> None:
    other = Rdict(str(shop.folder), Options(raw_mode=True))
    shop.say(3)
    shop.harness.run_until_idle()
    assert "in use by another process" in shop.harness.halted["count"]
    other.close()
    shop.harness.advance("2m")
    shop.check()


def test_a_former_owner_writes_no_more(shop: Shop) -> None:
    shop.say(3)
    shop.harness.run_until_idle()
    with shop.app.runtime.store.transaction() as tx:
        first = open_keeper(tx, Owner(1, "count", 7), shop.folder)
        second = open_keeper(tx, Owner(1, "count", 8), shop.folder)
        with pytest.raises(Fenced):
            first.write(tx, [("k0", (9, b"{}"))])
        with pytest.raises(Fenced):
            first.load("k0")
    assert second.load("k0")[1] == b'{"n":1}'
    second.close()


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"order": "none"}, "two events of a key could change it at once"),
        ({"partitions": 2}, "may move to another machine"),
        ({"rehearsable": True}, "a rehearsal cannot look into it"),
        ({"state": "a path"}, r"state= takes RocksDB\(path\)"),
    ],
)
def test_what_cannot_be_promised_is_refused(app: App, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        app.on(app.log("orders"), name="f", **{"state": RocksDB("x"), **options})(lambda event, ctx: None)


def test_state_does_not_move_by_itself(app: App, start: Any, tmp_path: Path, backend: str | None) -> None:
    store = backend or f"sqlite:///{tmp_path / 'shop.db'}"

    def run(app: App, **options: Any) -> None:
        @app.on(app.log("orders"), start="first", **options)
        def count(event: Any, ctx: Any) -> None:
            ctx.state["n"] = 1

        with Harness(app, store) as harness:
            harness.append("orders", "order.placed", 1, key="k")
            harness.run_until_idle()
            assert harness.halted == {}

    elsewhere = {"state": RocksDB(tmp_path / "state")}
    run(App("/nonexistent/1.db"))
    with pytest.raises(UsageError, match="keeps its state in the store so far"):
        run(App("/nonexistent/2.db"), **elsewhere)
    with Harness(App("/nonexistent/3.db"), store) as harness:
        harness.app.operate().reset("count", "it moves")
    run(App("/nonexistent/4.db"), **elsewhere)
    with pytest.raises(UsageError, match="keeps its state outside the store so far"):
        run(App("/nonexistent/5.db"))


# ------------------------------------------------------------ a commit of which nobody knows


@pytest.mark.parametrize("happened", [True, False], ids=["it happened", "it did not"])
def test_after_a_commit_without_an_answer_the_state_is_that_of_what_happened(
    app: App, postgres_url: str, tmp_path: Path, happened: bool
) -> None:
    with FaultProxy(postgres_url) as wire:
        shop = Shop(app, tmp_path / "state")
        with Harness(app, wire.at(postgres_url)) as harness:
            shop.begin(harness).say(4)
            harness.run_until_idle()
            for _ in range(3):
                shop.say(5)

                def strike() -> None:
                    wire.cut(on="replies" if happened else "requests", holding=b"COMMIT\x00")

                with failpoint("round.before_commit", strike) as armed:
                    harness.run_until_idle()
                assert armed.fired
                harness.advance("2m")
            shop.check()
