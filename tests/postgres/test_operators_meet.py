"""On SQLite one writes at a time. On Postgres operators and workers meet, and whoever came first is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from redrive import App, Event, Reject, Tx, no_retry
from redrive.draft import draft
from redrive.replay import transfer
from redrive.replay.deed import Operator
from redrive.replay.prune import What
from redrive.replay.prune_events import prune_events
from redrive.runner.enroll import repartition
from redrive.settings import Settings
from redrive.store.port import StoreTx


class Meeting:
    """A shop with settled letters, and a second thread that does something while a transaction is open here."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = App(url, settings=Settings(poll_min=0.01, poll_max=0.01))
        self.orders = self.app.log("orders")
        self.bad = {1, 2, 3}
        meeting = self

        @self.app.projection(self.orders, retry=no_retry)
        def check(event: Event[Any], tx: Tx) -> None:
            if event.data in meeting.bad:
                raise Reject("no")

        for number in range(10):
            self.orders.append("placed", number, key=str(number))
        self.app.run(until_idle=True)
        self.bad.clear()
        self.app.operate("ada").letters.replay([letter.id for letter in self.app.operate().letters.list()])
        self.app.run(until_idle=True)

    def during(self, first: Callable[[StoreTx], None], then: Callable[[], Any]) -> Any:
        """Begin with `first`, start `then` beside it, and commit when it waits for us."""
        with ThreadPoolExecutor(1) as pool:
            with self.app.runtime.store.transaction() as tx:
                first(tx)
                future = pool.submit(then)
                self.wait_for_a_wait(future)
            return future.result(timeout=30)

    def wait_for_a_wait(self, future: Future[Any]) -> None:
        pause = threading.Event()
        with psycopg.connect(self.url, autocommit=True) as connection:
            for _ in range(1000):
                waiting = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
                if waiting != (0,):
                    return
                assert not future.done(), f"it did not wait: {future.result()}"
                pause.wait(0.01)
        raise AssertionError("it neither waits nor ends")

    def check_sound(self) -> None:
        assert [verdict for verdict in self.app.operate().verify() if not verdict.sound] == []


@pytest.fixture
def meeting(postgres_url: str) -> Iterator[Meeting]:
    meeting = Meeting(postgres_url)
    yield meeting
    meeting.app.close()


def reset_within(tx: StoreTx) -> None:
    """What a reset does to progress and letters."""
    tx.progress.lock(1)
    values = {"subscription": 1, "above": 0, "now": 1.0, "was_open": "rewind: open", "was_settled": "rewind"}
    assert tx.sql.run("letters_supersede", values) == 3
    tx.sql.run("progress_reset", {"subscription": 1, "position": 0, "anchor": None, "quiet_until": 10})


def test_letters_are_not_pruned_from_under_a_reset(meeting: Meeting) -> None:
    """They would be counted as applied, of an account that begins anew."""
    what = What(-1000.0, None, (), ())
    plan = meeting.app.operate("ada").plan_prune(what)
    assert plan.applied == 3
    done = meeting.during(reset_within, lambda: meeting.app.operate("bob").prune(what, plan))
    assert done.applied == 0
    meeting.app.run(until_idle=True)
    meeting.check_sound()


def test_events_are_not_pruned_from_under_one_who_goes_back(meeting: Meeting) -> None:
    what = What(-1000.0, None, ("orders",), ("check",))
    plan = meeting.app.operate("ada").plan_prune(what)
    assert plan.events[0].events == 0  # each is the newest of its key
    for number in range(10):
        meeting.orders.append("placed", number, key=str(number))
    meeting.app.run(until_idle=True)
    plan = meeting.app.operate("ada").plan_prune(what)
    assert plan.events[0].events == 10

    def go_back(tx: StoreTx) -> None:
        tx.progress.lock(1)
        tx.sql.run(
            "progress_reset", {"subscription": 1, "position": 3, "anchor": tx.logs.anchor(1, 3), "quiet_until": 0}
        )

    done = meeting.during(go_back, lambda: prune_events(meeting.app.runtime.store, plan.events[0]))
    assert done.events == 2


def test_two_audit_rows_never_follow_the_same_one(meeting: Meeting) -> None:
    def write(tx: StoreTx) -> None:
        tx.books.audit(1.0, "ada", "pause", "check", "check", "", {})

    before = meeting.app.operate().verify_audit().rows
    meeting.during(write, lambda: meeting.app.operate("bob").subscriptions.pause("check"))
    verdict = meeting.app.operate().verify_audit()
    assert (verdict.sound, verdict.rows) == (True, before + 2)


def test_an_event_that_somebody_else_just_appended_is_not_new(meeting: Meeting) -> None:
    runtime = meeting.app.runtime
    operator = Operator(runtime.store, runtime.env)

    def append(tx: StoreTx) -> None:
        tx.logs.append("orders", [draft(runtime.types, runtime.env, "placed", 77, id="same")])

    def append_by_hand() -> tuple[Event[Any], bool]:
        return transfer.append(operator, runtime.types, "orders", "placed", b"77", id="same")

    event, is_new = meeting.during(append, append_by_hand)
    assert (event.data, is_new) == (77, False)


def test_another_number_of_partitions_begins_where_an_owner_that_is_committing_ends(meeting: Meeting) -> None:
    """From the mark of a moment ago, the event would be applied a second time."""
    store = meeting.app.runtime.store
    event = meeting.orders.append("placed", 10, key="10")

    def settle(tx: StoreTx) -> None:
        owner = tx.progress.member(1)
        tx.progress.fence(1, owner.epoch, owner.position)
        change = {"member": 1, "epoch": owner.epoch, "position": event.position, "anchor": event.id, "applied": 1}
        tx.progress.advance({**change, "ignored": 0, "now": 1.0, "last_type": "placed", "last_time_us": 1})

    def divide() -> None:
        with store.transaction() as tx:
            row = tx.progress.find("check")
            assert row is not None
            repartition(tx, row, 3)

    meeting.during(settle, divide)
    with store.reading() as tx:
        assert [member.position for member in tx.progress.members(1)] == [event.position] * 3
    meeting.check_sound()
