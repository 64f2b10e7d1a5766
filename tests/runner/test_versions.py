"""Several versions of one program on one store: a worker that differs from the store takes no lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive import App, UsageError
from redrive.errors import Unfit
from redrive.observe import signals as sig
from redrive.settings import Settings
from redrive.testing import Harness
from redrive.testing.fakes import FakeEnv

LEASE = Settings(lease=10.0, poll_min=0.5, poll_max=0.5)
Make = Callable[..., Harness]


class Programs:
    """Processes of several versions of one program, on one store and one clock."""

    def __init__(self, start: Any) -> None:
        self._start, self.harnesses = start, list[Harness]()
        self.dead = set[str]()  # owners that have died
        self.applied: list[tuple[str, int]] = []  # by which program, at which position

    def handler(self, program: str, **options: Any) -> Harness:
        app = App("/nonexistent/shop.db")

        async def work(event: Any, ctx: Any) -> None:
            self.applied.append((program, event.position))

        app.on(app.log("orders"), name="work", start="first", **options)(work)
        return self._begin(app, program)

    def projection(self, program: str, *types: str, columns: str = "program TEXT", **options: Any) -> Harness:
        app = App("/nonexistent/shop.db")

        def work(event: Any, tx: Any) -> None:
            tx.execute("INSERT INTO work (program) VALUES (:program)", {"program": program})

        app.projection(app.log("orders"), *types, name="work", tables={"work": columns}, **options)(work)
        app.on(app.log("orders"), name="other", start="first")(self._other(program))
        return self._begin(app, program)

    def _other(self, program: str) -> Any:
        async def other(event: Any, ctx: Any) -> None:
            self.applied.append((program, event.position))

        return other

    def _begin(self, app: App, program: str) -> Harness:
        first = self.harnesses[0] if self.harnesses else None
        env = FakeEnv(first.clock if first else None, owner=f"{program}-1")
        harness: Harness = self._start(app, first.path if first else None, settings=LEASE, env=env)
        for other in self.harnesses:
            other.env.dead, env.dead = self.dead, self.dead
        self.harnesses.append(harness)
        return harness

    def rows(self) -> list[str]:
        return [program for (program,) in self.harnesses[0].query("SELECT program FROM work")]


@pytest.fixture
def programs(start: Any) -> Programs:
    return Programs(start)


def append(harness: Harness, count: int = 1) -> None:
    for _ in range(count):
        harness.append("orders", "order.placed", {})


def told(harness: Harness, name: str = "work") -> list[str]:
    return [one.reason for one in harness.signals if isinstance(one, sig.StandingBy) and one.subscription == name]


def version(harness: Harness, name: str = "work") -> str | None:
    return next(one.version for one in harness.app.operate().status() if one.subscription == name)


def test_handler_of_new_version_waits_for_owner_and_then_runs_alone(programs: Programs) -> None:
    """A rolling deployment: nothing is taken from the owner; when it stops, no old process takes over."""
    old, spare = programs.handler("old", version=1), programs.handler("spare", version=1)
    append(old)
    old.run_until_idle()
    spare.run_until_idle()
    new = programs.handler("new", version=2)
    append(old)
    new.run_until_idle()
    old.run_until_idle()
    assert programs.applied == [("old", 1), ("old", 2)]
    assert new.halted == {"work": "standby"} and version(new) == "2"
    old.close()
    append(new)
    spare.run_until_idle()
    new.advance("1s")
    spare.advance("1s")
    assert programs.applied == [("old", 1), ("old", 2), ("new", 3)]
    [why] = told(spare)
    assert why.startswith("work: another version of this program declares it with version '2' (here '1'); restart")
    assert told(new) == []


def test_old_handler_declares_again_when_no_new_process_is_left(programs: Programs) -> None:
    """A deployment that was taken back: old processes that were never restarted go on by themselves."""
    old = programs.handler("old", version=1)
    old.run_until_idle()
    new = programs.handler("new", version=2)
    new.run_until_idle()
    with old.app.runtime.store.transaction() as tx:
        tx.sql.run("epoch_bump", {"subscription": 1})  # as after a lease that ran out
    new.advance("1s")
    old.advance("1s")
    append(new)
    new.run_until_idle()
    assert programs.applied == [("new", 1)]
    for _ in range(20):
        old.advance("1s")
        new.advance("1s")
    assert "version '2'" in old.halted["work"]
    new.close()
    append(old)
    old.advance("5s")
    assert programs.applied == [("new", 1)]
    old.advance("20s")
    assert programs.applied == [("new", 1), ("old", 2)]
    assert version(old) == "1"


def test_old_worker_never_declares_again_what_an_operator_declared(programs: Programs) -> None:
    old = programs.handler("old", version=1)
    append(old)
    old.run_until_idle()
    new = programs.handler("new", version=2)
    new.app.operate().reset("work", "all of it once more, with the new code")
    old.advance("60s")
    assert programs.applied == [("old", 1)]
    assert len(told(old)) == 1
    new.run_until_idle()
    assert programs.applied == [("old", 1), ("new", 1)]


def test_program_that_starts_during_a_rebuild_does_not_declare(programs: Programs) -> None:
    old = programs.handler("old", version=1)
    append(old)
    old.run_until_idle()
    old.close()
    new = programs.handler("new", version=2)
    new.app.operate().reset("work", "with the new code")
    late = programs.handler("late", version=1)
    late.run_until_idle()
    assert "version '2'" in late.halted["work"]
    assert version(new) == "2"
    new.run_until_idle()
    late.restart()
    late.run_until_idle()  # the rebuild is done: a program that starts may declare again
    assert version(new) == "1"
    assert programs.applied == [("old", 1), ("new", 1)]


def test_version_that_is_added_later_needs_no_rebuild(programs: Programs) -> None:
    before = programs.projection("before")
    append(before)
    before.run_until_idle()
    before.close()
    after = programs.projection("after", version=1)
    append(after)
    after.run_until_idle()
    assert programs.harnesses.pop(0) and programs.rows() == ["before", "after"]
    assert version(after) == "1"


def test_projection_of_another_version_is_refused_until_rebuilt(programs: Programs) -> None:
    old = programs.projection("old", version="gross")
    append(old)
    old.run_until_idle()
    old.close()
    new = programs.projection("new", version="net")
    with pytest.raises(Unfit, match=r"version 'gross' of the function has filled its tables, this .* version 'net'"):
        new.run_until_idle()
    new.app.operate().reset("work", "net")
    new.run_until_idle()
    assert programs.harnesses.pop(0) and programs.rows() == ["new"]


def test_projection_without_version_is_refused_after_a_version(programs: Programs) -> None:
    old = programs.projection("old", version=1)
    append(old)
    old.run_until_idle()
    old.close()
    new = programs.projection("new")
    with pytest.raises(UsageError, match="declares no version"):
        new.run_until_idle()


def test_accept_from_now_keeps_rows_and_takes_the_version(programs: Programs) -> None:
    old = programs.projection("old", version=1)
    append(old)
    old.run_until_idle()
    new = programs.projection("new", version=2)
    new.app.operate("ada").subscriptions.accept_from_now("work", "same rows as before")
    append(new)
    old.advance("1s")
    new.run_until_idle()
    assert programs.rows() == ["old", "new"]
    assert "version '2'" in old.halted["work"]
    [(details,)] = new.query("SELECT details FROM redrive_audit")
    assert '"version":{"former":"1","now":"2"}' in details.replace(" ", "")


def test_new_version_is_declared_freely_before_the_first_event(programs: Programs) -> None:
    old = programs.projection("old", version=1)
    old.run_until_idle()
    old.close()
    new = programs.projection("new", version=2)
    new.run_until_idle()
    assert version(new) == "2"


def test_store_of_an_older_format_is_compared_from_the_next_start(programs: Programs) -> None:
    old = programs.projection("old", key_by="user", version=1)
    old.run_until_idle()
    with old.app.runtime.store.transaction() as tx:
        statement = "UPDATE redrive_subscriptions SET version = NULL, key_function = NULL, declared_tables = NULL"
        tx.connection.execute(old.own(statement))  # type: ignore[attr-defined]
    old.restart()
    old.run_until_idle()
    assert old.halted == {}
    found = old.query("SELECT version, key_function, declared_tables FROM redrive_subscriptions WHERE name = 'work'")
    assert found == [("1", "data['user']", '["work"]')]


def test_new_key_function_fences_the_owner(programs: Programs) -> None:
    def by_order(event: Any) -> str:
        return "o"

    def by_user(event: Any) -> str:
        return "u"

    old = programs.handler("old", key_by=by_order)
    append(old)
    old.run_until_idle()
    new = programs.handler("new", key_by=by_user)
    new.run_until_idle()
    old.advance("1s")
    append(new)
    new.advance("1s")
    assert programs.applied == [("old", 1), ("new", 2)]
    assert "by_user() (here" in old.halted["work"]


def test_worker_without_a_declared_table_stands_by(programs: Programs) -> None:
    old = programs.projection("old")
    append(old)
    old.run_until_idle()
    app = App("/nonexistent/shop.db")

    @app.projection(app.log("orders"), name="work", tables={"work": "program TEXT", "more": "n INTEGER"})
    def work(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO work (program) VALUES ('new')")

    new = programs._begin(app, "new")
    new.app.operate().reset("work", "a second table")
    old.advance("1s")
    assert "tables more, work (here work)" in old.halted["work"]
    new.run_until_idle()
    assert programs.rows() == ["new"]


def test_rebuild_is_reserved_for_the_process_that_asked(programs: Programs) -> None:
    """Both declare the same: without the reservation, the other one could take the lease."""
    one, two = programs.projection("one"), programs.projection("two")
    append(one, 3)
    one.run_until_idle()
    two.run_until_idle()
    two.app.operate().rebuilds.begin("work", "the sums were wrong")
    one.advance("1s")
    assert programs.rows() == []
    assert told(one) == ["work: two-1 rebuilds it; until that is done, other workers wait"]
    [status] = [found for found in one.app.operate().status() if found.subscription == "work"]
    assert (status.reserved_by, status.state, status.halted) == ("two-1", "standby", None)
    assert [(wait.worker, wait.reason) for wait in status.not_run_by] == [("one-1", told(one)[0])]
    two.advance("1s")
    assert programs.rows() == ["two"] * 3
    two.advance("5s")
    assert one.query("SELECT reserved_by FROM redrive_subscriptions WHERE name = 'work'") == [(None,)]
    two.close()
    append(one)
    one.advance("1s")
    assert programs.rows() == ["two"] * 3 + ["one"]


def test_reservation_lapses_when_its_process_is_silent(programs: Programs) -> None:
    one, two = programs.projection("one"), programs.projection("two")
    append(one)
    one.run_until_idle()
    two.app.operate().rebuilds.begin("work", "it never begins")
    one.advance("55s")
    assert programs.rows() == []
    one.advance("10s")
    assert programs.rows() == ["one"]


def test_reservation_ends_with_a_process_known_to_be_dead(programs: Programs) -> None:
    one, two = programs.projection("one"), programs.projection("two")
    append(one)
    one.run_until_idle()
    two.app.operate().rebuilds.begin("work", "it never begins")
    programs.dead.add("two-1")
    one.advance("1s")
    assert programs.rows() == ["one"]


def test_reservation_ends_when_the_rebuild_is_given_up(programs: Programs) -> None:
    one, two = programs.projection("one"), programs.projection("two")
    append(one)
    one.run_until_idle()
    desk = two.app.operate().rebuilds
    desk.begin("work", "the wrong one")
    desk.end("work")
    one.advance("1s")
    assert programs.rows() == ["one"]


def test_worker_that_differs_does_not_log_at_each_look(programs: Programs) -> None:
    old = programs.handler("old", version=1)
    old.run_until_idle()
    new = programs.handler("new", version=2)
    new.app.operate().reset("work", "with the new code")
    new.run_until_idle()
    for _ in range(20):
        append(new)
        new.run_until_idle()
        old.advance("5s")
    assert len(told(old)) == 1
    assert not [one for one in old.signals if isinstance(one, sig.Halted)]
    assert [one.halted for one in new.app.operate().status()] == [None]


@pytest.mark.parametrize("version", ["", True, 1.5, "x" * 201, ["1"]])
def test_version_must_be_a_short_text_or_a_number(version: Any) -> None:
    app = App("unused.db")
    with pytest.raises(UsageError, match="version="):
        app.on(app.log("orders"), name="work", version=version)(lambda event, ctx: None)
