"""Partitions: one subscription, several workers, each event once and in the order of its key."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from redrive import App, UsageError
from redrive.policy.partitions import place
from redrive.policy.retry import retry
from redrive.settings import Settings
from redrive.testing.fakes import FakeEnv

SETTINGS = Settings(lease=9.0, poll_min=0.5, poll_max=0.5)
KINDS = pytest.mark.parametrize("kind", ["projection", "handler"])
KEYS = [f"order-{number}" for number in range(12)]


class Fleet:
    """Workers of one program on one store and one clock. Who is not advanced stands still."""

    def __init__(self, start: Any, kind: str, partitions: int = 4) -> None:
        self._start, self._kind, self.partitions = start, kind, partitions
        self.poison: set[int] = set()
        self.workers: dict[str, Any] = {}
        self.sent: list[tuple[str, int]] = []

    def boot(self, name: str, partitions: int | None = None) -> Any:
        app, first = App("/nonexistent/shop.db"), next(iter(self.workers.values()), None)

        def apply(event: Any, out: Any) -> None:
            out.execute(
                "INSERT INTO applied (worker, k, n) VALUES (:worker, :k, :n)",
                {"worker": name, "k": event.key, "n": event.data},
            )
            if event.data in self.poison:
                raise ValueError(event.data)

        env = FakeEnv(owner=name) if first is None else FakeEnv(first.clock, owner=name)
        harness = self._start(app, first and first.path, settings=SETTINGS, env=env)
        if first is None:
            number = (
                "BIGINT GENERATED ALWAYS AS IDENTITY" if harness.on_postgres else "INTEGER PRIMARY KEY AUTOINCREMENT"
            )
            with app.transaction() as tx:
                tx.execute(f"CREATE TABLE applied (seq {number}, worker TEXT, k TEXT, n BIGINT)")
        declared: dict[str, Any] = {
            "name": "apply", "partitions": partitions or self.partitions, "retry": retry(attempts=1),
        }  # fmt: skip
        if self._kind == "projection":
            app.projection(app.log("orders"), **declared)(apply)
        else:
            app.on(app.log("orders"), start="first", **declared)(apply)
        self.workers[name] = harness
        return harness

    def send(self, count: int) -> None:
        for _ in range(count):
            key = KEYS[len(self.sent) * 5 % len(KEYS)]
            self.any.append("orders", "order.placed", len(self.sent), key=key)
            self.sent.append((key, len(self.sent)))

    def go(self, seconds: float, *names: str) -> None:
        """These workers, or all, live on; a little at a time, one after the other."""
        for _ in range(int(seconds * 2)):
            for name in names or tuple(self.workers):
                self.workers[name].advance(0.5 / len(names or self.workers))

    @property
    def any(self) -> Any:
        return next(iter(self.workers.values()))

    def owners(self) -> list[str | None]:
        return [owner for (owner,) in self.any.query("SELECT owner FROM redrive_progress ORDER BY member")]

    def applied(self) -> dict[str, list[int]]:
        lanes: dict[str, list[int]] = defaultdict(list)
        for key, number in self.any.query("SELECT k, n FROM applied ORDER BY seq"):
            lanes[key].append(number)
        return dict(lanes)

    def expected(self) -> dict[str, list[int]]:
        lanes: dict[str, list[int]] = defaultdict(list)
        for key, number in self.sent:
            lanes[key].append(number)
        return dict(lanes)

    def check(self) -> None:
        assert self.applied() == self.expected()
        [verdict] = self.any.app.operate().verify()
        assert verdict.sound, verdict.violations
        assert (verdict.applied, verdict.pending) == (len(self.sent), 0)


@pytest.fixture
def fleet(start: Any, kind: str) -> Fleet:
    return Fleet(start, kind)


@KINDS
def test_one_worker_owns_all_partitions(fleet: Fleet) -> None:
    fleet.boot("a")
    fleet.send(60)
    fleet.go(2)
    assert fleet.owners() == ["a"] * 4
    fleet.check()


@KINDS
def test_a_second_worker_gets_half_of_them_within_two_leases(fleet: Fleet) -> None:
    fleet.boot("a")
    fleet.send(20)
    fleet.go(1)
    fleet.boot("b")
    fleet.send(40)
    fleet.go(18)
    assert sorted(map(str, fleet.owners())) == ["a", "a", "b", "b"]
    fleet.send(40)
    fleet.go(3)
    fleet.check()
    assert {worker for (worker,) in fleet.any.query("SELECT worker FROM applied WHERE n >= 60")} == {"a", "b"}


@KINDS
def test_who_stops_gracefully_is_replaced_at_once(fleet: Fleet) -> None:
    fleet.boot("a")
    fleet.boot("b")
    fleet.go(18)
    fleet.workers["b"].close()
    fleet.go(4, "a")
    assert fleet.owners() == ["a"] * 4
    fleet.send(30)
    fleet.go(2, "a")
    fleet.check()


@KINDS
def test_who_stands_still_is_replaced_after_its_lease_and_commits_nothing_when_it_wakes(fleet: Fleet) -> None:
    fleet.boot("a")
    fleet.boot("b")
    fleet.go(18)
    fleet.send(30)
    fleet.go(20, "a")  # b stands still
    assert fleet.owners() == ["a"] * 4
    fleet.send(30)
    fleet.go(20)
    assert sorted(map(str, fleet.owners())) == ["a", "a", "b", "b"]
    fleet.check()


@KINDS
def test_a_slow_partition_holds_up_nobody_else(fleet: Fleet) -> None:
    fleet.boot("a")
    fleet.boot("b")
    fleet.go(18)
    owners = fleet.owners()
    fleet.send(60)
    fleet.go(3, "a")  # less than a lease: b keeps its partitions, and does nothing
    theirs = {key for key in KEYS if owners[place(key, 4)] == "a"}
    assert fleet.applied() == {key: lane for key, lane in fleet.expected().items() if key in theirs}
    assert 0 < len(theirs) < len(KEYS)
    [status] = fleet.any.app.operate().status()
    assert status.lag_events == sum(len(lane) for key, lane in fleet.expected().items() if key not in theirs)
    [verdict] = fleet.any.app.operate().verify()
    assert verdict.sound, verdict.violations
    fleet.go(3)
    fleet.check()


@KINDS
@pytest.mark.parametrize("count", [1, 3, 7])
def test_another_number_of_partitions_loses_and_doubles_nothing(fleet: Fleet, count: int) -> None:
    fleet.boot("a")
    fleet.boot("b")
    fleet.go(18)
    fleet.send(60)
    fleet.go(3, "a")  # some partitions are far ahead of the others
    fleet.boot("c", count)
    fleet.send(20)
    fleet.go(20, "c")
    assert fleet.owners() == ["c"] * count
    fleet.check()
    fleet.go(5)  # who has the former number says so, and stands still
    assert "partitions" in str(fleet.workers["a"].halted)
    fleet.send(20)
    fleet.go(5)
    fleet.check()


@KINDS
def test_a_letter_is_replayed_by_whoever_owns_its_partition(fleet: Fleet) -> None:
    fleet.boot("a")
    fleet.boot("b")
    fleet.go(18)
    fleet.poison = set(range(12))  # the first of every key
    fleet.send(36)
    fleet.go(3)
    operate = fleet.any.app.operate()
    dead = operate.letters.list("dead")
    assert sorted(letter.key for letter in dead) == sorted(KEYS)
    assert fleet.applied() == {}
    fleet.poison = set()
    for letter in dead:
        operate.letters.replay(letter.id, reason="fixed")
    fleet.go(3)
    fleet.check()
    assert {worker for (worker,) in fleet.any.query("SELECT worker FROM applied")} == {"a", "b"}


def test_a_rebuild_takes_all_partitions_back(start: Any) -> None:
    fleet = Fleet(start, "projection")
    fleet.boot("a")
    fleet.boot("b")
    fleet.go(18)
    fleet.send(40)
    fleet.go(3)
    before = fleet.owners()
    with fleet.any.app.transaction() as tx:
        tx.execute("DELETE FROM applied")
    fleet.any.app.operate().reset("apply", reason="again")
    fleet.send(20)
    fleet.go(18)
    fleet.check()
    assert sorted(map(str, fleet.owners())) == sorted(map(str, before))


def test_a_crash_of_one_worker_is_charged_to_its_own_partitions(start: Any) -> None:
    fleet = Fleet(start, "handler", partitions=2)
    fleet.boot("a")
    fleet.boot("b")
    fleet.go(18)
    fleet.send(24)
    fleet.workers["b"].crash()
    fleet.workers["a"].env.dead.add("b")
    fleet.go(20, "a")
    assert fleet.owners() == ["a", "a"]
    fleet.check()


def test_what_cannot_be_partitioned_is_refused() -> None:
    app = App("/nonexistent/shop.db")
    orders = app.log("orders")
    for wrong in (0, -1, 1025, True, "2"):
        with pytest.raises(UsageError, match="give a number from 1 to 1,024"):
            app.projection(orders, partitions=wrong)(lambda event, tx: None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="total order"):
        app.on(orders, partitions=2, order="total")(lambda event, ctx: None)
    with pytest.raises(UsageError, match="another log"):
        app.on(orders, partitions=2, key_by="user")(lambda event, ctx: None)


@KINDS
def test_everybody_sees_who_owns_what(fleet: Fleet) -> None:
    fleet.boot("a")
    fleet.boot("b")
    fleet.go(18)
    found = fleet.any.app.operate().workers(9.0)
    assert [(one.name, one.state, len(one.owns)) for one in found] == [("a", "working", 2), ("b", "working", 2)]
    assert {(part.subscription, part.partition) for one in found for part in one.owns} == {
        ("apply", n) for n in range(4)
    }
    fleet.go(10, "a")
    found = fleet.any.app.operate().workers(9.0)
    assert [(one.name, one.state, len(one.owns)) for one in found] == [("a", "working", 4), ("b", "silent", 0)]


def test_lists_that_emit_are_not_divided(app: App, start: Any) -> None:
    """The id of an emission would come of the list it was made for, which a rebuild cuts in other places."""
    harness = start(app)

    @app.projection(app.log("orders"), batch=True, partitions=2, retry=retry(attempts=1))
    def copy(events: Any, tx: Any) -> None:
        for event in events:
            tx.emit(app.log("copies"), "copied", event.data, key=event.key)

    harness.append("orders", "order.placed", 1, key="a")
    harness.run_until_idle()
    [letter] = harness.letters()
    assert (letter.state, letter.error_type) == ("dead", "redrive.errors.UsageError")
    assert "needs partitions=1" in letter.error_message
    assert harness.emitted("copies") == []
