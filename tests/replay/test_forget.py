"""Forgetting a subscription: all of its rows go, nothing is held back by it, and its name is free again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redrive import App, UsageError, mirrors
from redrive.replay.prune import What
from redrive.settings import Settings
from redrive.store.address import is_postgres
from redrive.store.forgotten import TABLES
from redrive.testing import Harness
from redrive.testing.fakes import FakeEnv

KEPT = {"audit", "operation_letters"}  # by name; the receipts of operations
LEASE = 10.0
SETTINGS = Settings(lease=LEASE, poll_min=0.5, poll_max=0.5)


class Place:
    """A store on which a program has run, whose functions `seen` and `work` are removed."""

    def __init__(self, stack: ExitStack, path: str) -> None:
        self.stack, self.path, self.clock = stack, path, FakeEnv().fake_clock
        self.calls: list[int] = []
        self.keys: list[str] = []
        self.number = 0  # of the subscription that has letters

    def program(self, *, removed: bool = False) -> App:
        app = App("/nonexistent/shop.db")
        orders = app.log("orders")
        app.on(orders, name="other", start="first")(lambda event, ctx: None)
        if not removed:
            app.projection(orders, name="seen", tables={"seen": "position INTEGER"})(self._see)
            app.on(orders, name="work", start="first")(self._work)
        return app

    def start(self, owner: str, *, removed: bool = False) -> Harness:
        env = FakeEnv(self.clock, owner=owner)
        return self.stack.enter_context(Harness(self.program(removed=removed), self.path, env=env, settings=SETTINGS))

    def _see(self, event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (:at)", {"at": event.position})

    def _work(self, event: Any, ctx: Any) -> None:
        self.calls.append(event.position)
        self.keys.append(ctx.idempotency_key)
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event.data["bad"]:
            raise ValueError("bad")

    def rows(self, harness: Harness, number: int) -> dict[str, int]:
        """What every table of the schema has of this subscription."""
        found = {}
        for table, column in columns_of(harness, self.path):
            name = f"redrive.{table}" if is_postgres(self.path) else f"redrive_{table}"
            where = f"{column} & 4294967295 = {number}" if column == "member" else f"{column} = {number}"
            if column == "letter":  # the fixture makes letters of no other subscription
                where = "letter > 0" if number == self.number else "letter < 0"
            [(found[table],)] = harness.query(f"SELECT count(*) FROM {name} WHERE {where}")
        return found


def columns_of(harness: Harness, path: str) -> list[tuple[str, str]]:
    """The tables that say which subscription a row belongs to, with the column that does."""
    if is_postgres(path):
        found = harness.query(
            "SELECT c.table_name, c.column_name FROM information_schema.columns c JOIN information_schema.tables t "
            "USING (table_schema, table_name) WHERE table_schema = 'redrive' AND table_type = 'BASE TABLE'"
        )
    else:
        found = harness.query(
            "SELECT substr(t.name, 9), c.name FROM sqlite_master t JOIN pragma_table_info(t.name) c "
            "WHERE t.type = 'table' AND t.name LIKE 'redrive\\_%' ESCAPE '\\'"
        )
    wanted = {"subscription", "member", "letter"}
    chosen = {table: column for table, column in sorted(found) if column in wanted and table not in KEPT}
    for table, column in found:  # the subscription says more than the letter
        if table in chosen and column in ("subscription", "member") and chosen[table] == "letter":
            chosen[table] = column
    return sorted(chosen.items())


@pytest.fixture
def place(tmp_path: Path, backend: str | None) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(stack, backend or str(tmp_path / "shop.db"))


@pytest.fixture
def left(place: Place) -> Harness:
    """The program without the functions, on a store in which they have left something of everything."""
    before = place.start("before-1")
    for number in range(4):
        before.append("orders", "order.placed", {"bad": number % 2 == 1}, key=f"k{number % 2}")
    before.run_until_idle()
    before.advance("1m")
    before.run_until_idle()
    desk = before.app.operate("ada")
    [dead, *_] = [letter for letter in before.letters("dead") if letter.subscription == "work"]
    desk.letters.edit(dead, {"bad": True, "note": 1}, "a note")
    number = desk.bulk.begin("replay", [dead], "all of them", None)
    assert number
    place.number = number_of(before, "work")
    before.close()
    return place.start("after-1", removed=True)


def number_of(harness: Harness, name: str) -> int:
    with harness.app.runtime.store.reading() as tx:
        row = tx.progress.find(name)
    assert row is not None
    return row.id


def test_every_table_with_rows_of_a_subscription_is_listed(place: Place) -> None:
    """A new table with a subscription, a member or a letter in it must be deleted, too, or named as kept."""
    harness = place.start("one-1")
    assert {table for table, _ in columns_of(harness, place.path)} | {"subscriptions"} == set(TABLES)
    with harness.app.runtime.store.reading() as tx:
        assert {table for table, _ in tx.sql.all("forget_counts", {"subscription": 1})} == set(TABLES)


@pytest.mark.parametrize("name", ["seen", "work"])
def test_forgetting_deletes_every_row(place: Place, left: Harness, name: str) -> None:
    number, other = number_of(left, name), number_of(left, "other")
    before, others = place.rows(left, number), place.rows(left, other)
    desk = left.app.operate("ada").subscriptions
    plan = desk.plan_forget(name, LEASE)
    done = desk.forget(name, "the function was removed", LEASE)
    assert plan.rows | {"changes": 0} == done.rows | {"changes": 0}  # this deed lists itself as a change
    assert sum(before.values()) > 0 and sum(place.rows(left, number).values()) == 0
    assert place.rows(left, other) == others
    assert done.rows["progress"] == 1 and done.rows["subscriptions"] == 1
    assert done.open_letters == (2 if name == "work" else 0)
    [(who, action, target)] = left.query(
        f"SELECT who, action, subscription FROM {'redrive.audit' if is_postgres(place.path) else 'redrive_audit'} "
        "WHERE action = 'forget'"
    )
    assert (who, action, target) == ("ada", "forget", name)
    verdicts = left.app.operate().verify()
    assert all(verdict.sound for verdict in verdicts) and name not in {one.subscription for one in verdicts}
    assert name not in {one.subscription for one in left.app.operate().status()}


def test_forgotten_subscription_no_longer_holds_back_prune(place: Place, left: Harness) -> None:
    left.run_until_idle()
    left.advance("2m")
    desk, what = left.app.operate("ada"), What(older_than=60.0, logs=("orders",))
    [plan] = desk.plan_prune(what).events
    assert plan.events == 0
    for name in ("seen", "work"):
        desk.subscriptions.forget(name, "removed", LEASE)
    [plan] = desk.plan_prune(what).events
    assert plan.events > 0
    desk.prune(what, desk.plan_prune(what))
    assert all(verdict.sound for verdict in desk.verify())


def test_operation_keeps_its_receipt(place: Place, left: Harness) -> None:
    desk = left.app.operate("ada")
    desk.subscriptions.forget("work", "removed", LEASE)
    [operation] = desk.bulk.recent(limit=5)
    assert (operation.selected, operation.skipped, operation.waiting) == (1, 1, 0)
    desk.bulk.ask(operation.id, lambda rows, ticket: desk.letters.replay(rows, "again", within=ticket))


def test_function_with_its_name_begins_as_new(place: Place, left: Harness) -> None:
    desk = left.app.operate("ada").subscriptions
    done = desk.forget("seen", "removed", LEASE, drop_tables=True)
    desk.forget("work", "removed", LEASE)
    assert (done.dropped, done.kept) == (("seen",), ())
    left.close()
    calls, keys = len(place.calls), set(place.keys)
    again = place.start("again-1")
    again.run_until_idle()
    assert again.query("SELECT position FROM seen ORDER BY position") == [(1,), (2,), (3,), (4,)]
    assert {1, 2, 3} <= set(place.calls[calls:])
    assert not keys & set(place.keys[calls:])  # another function: the outside must not take its calls for the old ones
    assert all(verdict.sound for verdict in again.app.operate().verify())


def test_tables_stay_unless_they_are_to_be_dropped(place: Place, left: Harness) -> None:
    done = left.app.operate("ada").subscriptions.forget("seen", "removed", LEASE)
    assert (done.tables, done.dropped, done.kept) == (("seen",), (), ("seen",))
    assert len(left.query("SELECT position FROM seen")) == 4


def test_forgetting_is_refused_while_a_worker_owns_it(place: Place, left: Harness) -> None:
    owner = place.start("owner-1")
    owner.run_until_idle()
    desk = left.app.operate("ada").subscriptions
    with pytest.raises(UsageError, match="'work' is run by owner-1: stop that worker first"):
        desk.forget("work", "removed", LEASE)
    owner.close()
    desk.forget("work", "removed", LEASE)


def test_forgetting_is_refused_while_a_worker_stands_by(place: Place, left: Harness) -> None:
    waiting = place.start("waiting-1")
    waiting.run_until_idle()
    with left.app.runtime.store.transaction() as tx:
        tx.sql.run("epoch_bump", {"subscription": number_of(left, "work")})
    with pytest.raises(UsageError, match="is in the program of waiting-1, which runs"):
        left.app.operate("ada").subscriptions.forget("work", "removed", LEASE)


def test_forgetting_is_refused_for_a_declared_function(place: Place, left: Harness) -> None:
    app = place.start("third-1").app
    with pytest.raises(UsageError, match="'work' is declared by this program"):
        app.operate("ada").subscriptions.forget("work", "removed", LEASE)


def test_forgetting_needs_a_reason_and_a_known_name(place: Place, left: Harness) -> None:
    desk = left.app.operate("ada").subscriptions
    with pytest.raises(UsageError, match="reason"):
        desk.forget("work", " ", LEASE)
    with pytest.raises(UsageError, match="did you mean 'work'"):
        desk.forget("wrok", "typo", LEASE)


def test_worker_whose_subscription_was_forgotten_stands_by(place: Place, left: Harness) -> None:
    """A process that was frozen for longer than a lease when it happened."""
    frozen = place.start("frozen-1")
    frozen.run_until_idle()
    left.advance("1m")
    left.app.operate("ada").subscriptions.forget("work", "removed", LEASE)
    frozen.append("orders", "order.placed", {"bad": False})
    calls = len(place.calls)
    frozen.advance("1s")
    assert "an operator has forgotten it" in frozen.halted["work"]
    assert len(place.calls) == calls


def test_forgetting_is_refused_while_a_mirror_lacks_its_letters(place: Place, left: Harness, tmp_path: Path) -> None:
    """Its dead letters would never have reached the mirror."""
    desk = left.app.operate("ada").subscriptions

    def mirror(owner: str) -> Harness:
        app = place.program(removed=True)
        app.mirror(to=mirrors.files(tmp_path / "mirror", name="dead-files"))
        env = FakeEnv(place.clock, owner=owner)
        return place.stack.enter_context(Harness(app, place.path, env=env, settings=SETTINGS))

    first = mirror("mirror-1")
    first.run_until_idle()
    desk.plan_forget("work", LEASE)
    first.close()
    [dead, *_] = [letter for letter in left.letters("dead") if letter.subscription == "work"]
    left.app.operate("ada").letters.discard(dead, "not needed")
    with pytest.raises(UsageError, match="mirror 'dead-files' has not yet written what happened to letters of 'work'"):
        desk.plan_forget("work", LEASE)
    with pytest.raises(UsageError, match="redrive forget dead-files"):
        desk.forget("work", "removed", LEASE)
    second = mirror("mirror-2")
    second.run_until_idle()
    second.close()
    desk.forget("work", "removed", LEASE)
