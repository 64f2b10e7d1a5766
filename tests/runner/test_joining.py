"""A turn in the transaction in which its events land: one commit for both, and whatever goes wrong with one of the two
leaves the other as it would be by itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redrive import App, Event, Ignore, Reject, Tx, failpoints, retry
from redrive.errors import CommitUnknown, StoreError
from redrive.event import NewEvent
from redrive.observe.signals import Appended, LeaseTaken, Settled
from redrive.policy.retry import Retry
from redrive.runner import joining, strides
from redrive.testing import Harness
from redrive.testing.crashing import Crashed, MortalStore
from redrive.testing.failpoints import failpoint
from tests.runner.test_crash_counting import run_through
from tests.runner.test_handed import Shelf

MANY = """INSERT INTO given WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < 10000)
SELECT n FROM up"""
LANDING = ["land.fenced", "land.before_commit", "land.committed"]
TURN = ["batch.read", "batch.fenced", "batch.called", "batch.before_commit", "batch.committed"]
TOGETHER = [LANDING[0], *TURN[:-1], LANDING[1], TURN[-1], LANDING[2]]


class Shop:
    """A projection that rests, and a shelf that is filled while it does."""

    def __init__(self, *, rule: Retry | None = None, order: Any = "key") -> None:
        self.app, self.shelf = App("/nonexistent/x.db", name="shop"), Shelf()
        self.calls: list[int] = []
        self.deed: Callable[[Event[Any], Tx], object] = lambda event, tx: None

        @self.app.projection(
            self.shelf, order=order, retry=rule or retry(attempts=1), name="write", tables={"given": "n INTEGER"}
        )
        def write_down(event: Event[Any], tx: Tx) -> None:
            self.calls.append(event.data)
            tx.execute("INSERT INTO given VALUES (?)", (event.data,))
            self.deed(event, tx)

        self.harness = Harness(self.app)

    def begin(self) -> None:
        """Until everybody rests, and what lands next is taken in by who lands it."""
        self.say(0, 1, 2, 3, 4, 5)
        assert self.given == [0, 1, 2, 3, 4, 5]

    def say(self, *said: int) -> None:
        self.shelf.said += said
        self.harness.run_until_idle()

    @property
    def given(self) -> list[int]:
        return [n for (n,) in self.harness.query("SELECT n FROM given ORDER BY rowid")]

    @property
    def stored(self) -> list[int]:
        found = self.harness.query("SELECT data FROM redrive_events WHERE type = 'said' ORDER BY position")
        return [int(data) for (data,) in found]

    def check(self, *missing: int) -> None:
        """All that was said is in the log, and applied once, but for these."""
        assert self.stored == self.shelf.said
        assert sorted(self.given) == sorted(set(self.shelf.said) - set(missing))
        assert [one for one in self.app.operate("ada").verify() if not one.sound] == []


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    with shop.harness:
        shop.begin()
        yield shop


class Passed:
    """The failpoints that are passed, from here on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        monkeypatch.setattr(failpoints, "_armed", self.names.append)

    @property
    def writes(self) -> list[str]:
        return [name for name in self.names if name.startswith(("land.", "batch."))]


@pytest.fixture
def passed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Passed:
    return Passed(monkeypatch)


def test_what_lands_and_its_effect_are_one_transaction(shop: Shop, passed: Passed) -> None:
    shop.say(*range(10, 19))
    assert passed.writes[-16:] == TOGETHER * 2
    shop.check()


def test_who_listens_hears_of_it_after_the_commit_and_of_the_effect_first(shop: Shop) -> None:
    seen: list[Any] = []

    def look(batch: Any) -> None:
        seen.extend((type(told), shop.given[-1:]) for told in batch if isinstance(told, (Appended, Settled)))

    shop.app.listen(look)
    shop.say(*range(10, 16))
    assert seen[-2:] == [(Settled, [15]), (Appended, [15])]


def test_more_than_a_few_have_a_transaction_of_their_own(
    shop: Shop, passed: Passed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "JOINED_MAX", 2)
    shop.say(*range(10, 19))
    assert passed.writes[-8:] == [*LANDING, *TURN]
    shop.check()


def test_calls_that_take_long_have_a_transaction_of_their_own_which_ends_in_time(shop: Shop, passed: Passed) -> None:
    """A few of them would hold the write lock for longer than a batch may."""
    limit = shop.app.runtime.settings.batch_time_max

    def take_long(event: Event[Any], tx: Tx) -> None:
        shop.harness.clock.advance(limit / 8)

    shop.deed = take_long
    shop.say(*range(10, 16))
    shop.say(*range(20, 26))
    assert passed.writes[-8:] == [*LANDING, *TURN]
    shop.deed = lambda event, tx: None
    shop.say(*range(30, 39))
    shop.say(*range(40, 49))
    assert passed.writes[-8:] == TOGETHER
    shop.check()


@pytest.mark.parametrize("order", ["key", "none", "total"])
@pytest.mark.parametrize(("error", "state"), [(RuntimeError("no"), "dead"), (Reject("no"), "dead"), (Ignore(), None)])
def test_an_event_that_fails_where_it_lands_has_made_that_attempt(
    order: Any, error: Exception, state: str | None
) -> None:
    shop = Shop(order=order)

    def fail(event: Event[Any], tx: Tx) -> None:
        if event.data == 13:
            raise error

    with shop.harness as harness:
        shop.begin()
        shop.deed = fail
        shop.say(10, 11, 12, 13, 14)
        assert shop.calls.count(13) == 1, "one attempt is one call, in whatever transaction"
        assert [(one.state, one.attempts) for one in harness.letters()][:1] == ([(state, 1)] if state else [])
        assert 13 not in shop.given and shop.stored == shop.shelf.said
        for letter in harness.letters("dead"):
            shop.app.operate("ada").letters.discard([letter.id], "a test")
        shop.say(20, 21)
        shop.check(13)


def test_an_event_that_fails_is_tried_as_often_as_its_rule_says() -> None:
    shop = Shop(rule=retry(attempts=4, wait="1s", wait_max="1s", jitter=0))

    def fail(event: Event[Any], tx: Tx) -> None:
        if event.data == 13 and shop.calls.count(13) < 4:
            raise RuntimeError("not yet")

    with shop.harness as harness:
        shop.begin()
        shop.deed = fail
        shop.say(10, 11, 12, 13, 14, 15)
        assert shop.given[-2:] == [12, 14], "of another key; 15 waits behind it"
        harness.advance("1m")
        assert shop.calls.count(13) == 4
        shop.check()
        assert shop.given.index(13) < shop.given.index(15), "of one key, in order"


def test_a_call_that_is_to_end_the_program_ends_it_and_is_given_back(shop: Shop) -> None:
    def leave(event: Event[Any], tx: Tx) -> None:
        if event.data == 13 and shop.calls.count(13) == 1:
            raise SystemExit

    shop.deed = leave
    shop.say(10, 11, 12, 13)
    shop.harness.restart()
    shop.harness.run_until_idle()
    assert shop.harness.letters() == []
    shop.check()


def test_what_is_emitted_is_emitted_once_and_durably_and_the_landing_need_not_be(
    shop: Shop, passed: Passed, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.deed = lambda event, tx: tx.emit(shop.app.log("alerts"), "seen", event.data)
    durably: list[bool] = []
    begin = MortalStore._begin

    def note(store: MortalStore, tx: Any) -> None:
        durably.append(tx is store._full)
        begin(store, tx)

    monkeypatch.setattr(MortalStore, "_begin", note)
    shop.say(*range(10, 19))
    assert shop.harness.emitted("alerts") == [("seen", n) for n in range(10, 19)]
    assert durably.count(True) >= 3, "each turn has its own, and waits for the disk"
    shop.check()


def test_a_function_that_swallows_what_an_emission_raises_is_found_out(shop: Shop) -> None:
    def emit(event: Event[Any], tx: Tx) -> None:
        try:
            tx.emit(shop.app.log("alerts"), "seen", event.data)
        except BaseException:
            return

    shop.shelf.said += 10, 11, 12  # when the first lands nobody rests yet
    shop.deed = lambda event, tx: emit(event, tx) if event.data > 12 else None
    shop.say(13, 14, 15)
    assert shop.harness.emitted("alerts") == [("seen", n) for n in (13, 14, 15)]
    assert shop.calls.count(13) == 2, "once more, durably, and no more"
    shop.check()


@pytest.mark.parametrize("place", ["batch.read", "batch.fenced", "batch.called", "batch.before_commit"])
def test_a_turn_that_cannot_be_is_no_failure_of_the_landing(
    shop: Shop, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(name: str) -> None:
        if name == place and len(shop.given) > 8 and left:
            left.pop()
            raise StoreError("out of order")

    left = [1, 2]  # where it lands, and by itself
    monkeypatch.setattr(failpoints, "_armed", act)
    shop.say(*range(10, 16))
    assert shop.stored == shop.shelf.said, "what has landed stays, whatever becomes of the turn"
    assert shop.harness.halted == {"write": "halted: out of order"} and not left
    shop.harness.advance("1m")
    shop.check()


def commits(store: Any, monkeypatch: pytest.MonkeyPatch, fail: Callable[[Any, Callable[[], None]], None]) -> None:
    """The next commit of a transaction that both have written to is this one's affair."""
    commit, left = MortalStore._commit, [True]

    def strange(self: MortalStore, tx: Any) -> None:
        named = tx.connection.execute("SELECT count(*) FROM given WHERE n = 15").fetchone()[0]
        if self is store and named and left:
            left.clear()
            fail(tx, lambda: commit(self, tx))
        else:
            commit(self, tx)

    monkeypatch.setattr(MortalStore, "_commit", strange)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_commit_of_both_of_which_nobody_knows_is_looked_for_by_both(
    shop: Shop, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(tx: Any, commit: Callable[[], None]) -> None:
        if is_written:
            commit()
        raise CommitUnknown("who knows")

    commits(shop.app.runtime.store, monkeypatch, lose)
    taken: list[str] = []
    shop.app.listen(lambda batch: taken.extend(told.subscription for told in batch if isinstance(told, LeaseTaken)))
    shop.say(*range(10, 16))
    assert sorted(taken) == ["shelf:orders", "write"], "what both have in memory may be wrong"
    shop.say(16, 17)
    shop.check()


def test_a_commit_of_both_that_fails_for_certain_is_made_again_by_each(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(tx: Any, commit: Callable[[], None]) -> None:
        raise StoreError("SQLite ended the transaction by itself")

    commits(shop.app.runtime.store, monkeypatch, end)
    shop.say(*range(10, 16))
    assert shop.harness.halted == {}
    shop.check()


def test_a_constraint_that_is_checked_at_the_commit_is_the_events_and_not_the_landings(shop: Shop) -> None:
    with shop.app.transaction() as tx:
        tx.execute("CREATE TABLE parents (n INTEGER PRIMARY KEY)")
        tx.execute("CREATE TABLE children (n INTEGER REFERENCES parents (n) DEFERRABLE INITIALLY DEFERRED)")
    shop.app.runtime.store._normal.connection.execute("PRAGMA foreign_keys = 1")

    def refer(event: Event[Any], tx: Tx) -> None:
        if event.data == 14:
            tx.execute("INSERT INTO children VALUES (7)")

    shop.deed = refer
    shop.say(*range(10, 16))
    assert [(letter.state, letter.attempts) for letter in shop.harness.letters("dead")] == [("dead", 1)]
    shop.check(14)


def test_a_transaction_that_sqlite_ends_is_no_failure_of_the_landing(shop: Shop) -> None:
    """As a full disk does: the statement fails, and with it the whole transaction is gone."""

    def interrupt(event: Event[Any], tx: Tx) -> None:
        if event.data == 14 and shop.calls.count(14) <= 2:
            tx.connection.set_progress_handler(lambda: 1, 100)
            try:
                with pytest.raises(sqlite3.OperationalError):
                    tx.execute(MANY)
            finally:
                tx.connection.set_progress_handler(None, 0)
            assert not tx.connection.in_transaction

    shop.deed = interrupt
    shop.say(*range(10, 16))
    assert shop.stored == shop.shelf.said
    shop.harness.advance("1m")
    assert shop.harness.letters() == []
    shop.check()


def test_what_is_the_worlds_fault_is_no_attempt_of_the_event(shop: Shop) -> None:
    def interrupt(event: Event[Any], tx: Tx) -> None:
        if event.data == 14 and shop.calls.count(14) == 1:
            tx.connection.set_progress_handler(lambda: 1, 100)
            try:
                tx.execute(MANY)
            finally:
                tx.connection.set_progress_handler(None, 0)

    shop.deed = interrupt
    shop.say(*range(10, 16))
    assert shop.calls.count(14) == 2 and shop.harness.halted == {}
    shop.check()


def test_a_disk_that_is_full_keeps_what_there_is(shop: Shop) -> None:
    store: Any = shop.app.runtime.store
    pages = store._normal.connection.execute("PRAGMA page_count").fetchone()[0]

    def limit(count: int) -> None:
        store._normal.guard.engine = True  # a function may not do this
        store._normal.connection.execute(f"PRAGMA max_page_count = {count}")
        store._normal.guard.engine = False

    def grow(event: Event[Any], tx: Tx) -> None:
        if event.data == 14:
            tx.execute("CREATE TABLE IF NOT EXISTS large (data BLOB)")
            tx.execute("INSERT INTO large VALUES (zeroblob(10000000))")

    limit(pages + 20)
    shop.deed = grow
    shop.say(*range(10, 16))
    assert shop.stored == shop.shelf.said, "what is small has room"
    assert shop.harness.halted.keys() == {"write"}
    limit(1_000_000)
    shop.harness.advance("1m")
    assert shop.harness.letters() == []
    shop.check()


def test_a_pause_is_kept_to_though_messages_land(shop: Shop) -> None:
    with failpoint("land.fenced", lambda: paused.append(1), at=2):
        paused: list[int] = []
        shop.app.operate("ada").subscriptions.pause("write")
        shop.say(*range(10, 16))
    assert paused and shop.stored == shop.shelf.said
    assert shop.given == [0, 1, 2, 3, 4, 5]
    shop.app.operate("ada").subscriptions.resume("write")
    shop.say(16, 17)
    shop.check()


def in_between(shop: Shop, sql: str) -> None:
    """Somebody else writes before the third landing, without a word to anybody."""
    store: Any = shop.app.runtime.store

    def write() -> None:
        with store.transaction() as tx:
            tx.execute(sql)

    with failpoint("land.committed", write, at=2):
        shop.say(*range(10, 19))


def test_a_pause_in_between_is_seen_by_the_fence(shop: Shop) -> None:
    in_between(shop, f"UPDATE redrive_progress SET paused = 1 WHERE {MEMBER_OF.format('write')}")
    assert shop.stored == shop.shelf.said
    assert shop.given == [0, 1, 2, 3, 4, 5, *range(10, 16)]
    shop.app.operate("ada").subscriptions.resume("write")
    shop.say(20)
    shop.check()


MEMBER_OF = "subscription = (SELECT id FROM redrive_subscriptions WHERE name = '{}')"


@pytest.mark.parametrize("name", ["write", "shelf:orders"])
def test_another_owner_of_one_of_the_two_fences_that_one_only(shop: Shop, name: str, passed: Passed) -> None:
    in_between(shop, f"UPDATE redrive_progress SET epoch = epoch + 1 WHERE {MEMBER_OF.format(name)}")
    if name == "write":
        assert shop.stored == shop.shelf.said
    shop.harness.advance("1m")
    shop.say(20, 21)
    shop.check()


def test_an_operator_in_between_is_heard(shop: Shop) -> None:
    """The lanes that we know are old: they are read again before anything is done."""
    in_between(
        shop, f"UPDATE redrive_progress SET parked_version = parked_version + 1 WHERE {MEMBER_OF.format('write')}"
    )
    [(version,)] = shop.harness.query(f"SELECT parked_version FROM redrive_progress WHERE {MEMBER_OF.format('write')}")
    supervisor = shop.harness._driver.supervisor
    assert supervisor is not None and supervisor.loops["write"].duty.parked_version == version == 1
    shop.say(20, 21, 22)
    shop.check()


def test_what_others_append_in_between_is_not_passed_over(shop: Shop) -> None:
    store: Any = shop.app.runtime.store

    def slip_in() -> None:
        """Behind what has landed, and nobody is woken for it."""
        with store.transaction() as tx:
            tx.logs.append("shelf:orders", [NewEvent("late", "by.hand", "k0", 1, 0, None, b"200")])

    with failpoint("land.committed", slip_in, at=2):
        shop.say(*range(10, 19))
    assert shop.given[6:] == [*range(10, 16), 200, 16, 17, 18]


def test_nobody_passes_a_letter_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strides, "WARY_AFTER_FAILURE", 0)  # what has failed is forgotten, but for its letter
    shop = Shop(rule=retry(attempts=9, wait="1h", wait_max="1h", jitter=0))

    def fail(event: Event[Any], tx: Tx) -> None:
        if event.data == 13 and shop.calls.count(13) == 1:
            raise RuntimeError("not yet")

    with shop.harness as harness:
        shop.begin()
        shop.deed = fail
        shop.say(*range(10, 16))
        shop.say(*range(20, 32))
        assert [n for n in shop.given[6:] if n % 2] == [11], "13 has an hour to wait, and its key with it"
        harness.advance("2h")
        assert [n for n in shop.given if n % 2] == [n for n in shop.shelf.said if n % 2]
        shop.check()


def test_where_one_has_failed_turns_have_transactions_of_their_own_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(order="none")

    def fail(event: Event[Any], tx: Tx) -> None:
        if event.data == 13:
            raise RuntimeError("no")

    with shop.harness:
        shop.begin()
        shop.deed = fail
        shop.say(10, 11, 12, 13)
        passed = Passed(monkeypatch)
        shop.say(*range(20, 29))
        assert passed.writes[-8:] == [*LANDING, *TURN]
        shop.check(13)


@pytest.mark.parametrize("place", TOGETHER)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_who_dies_on_the_way_has_done_both_or_nothing(shop: Shop, place: str, at: int) -> None:
    with failpoint(place, shop.harness.crash, at=at), pytest.raises(Crashed):
        shop.say(*range(10, 22))
    shop.harness.run_until_idle()
    shop.say(30, 31)
    shop.check()


def test_an_event_that_kills_where_it_lands_is_found_and_buried_and_its_neighbours_are_not(shop: Shop) -> None:
    """What was in flight is not in the log: whoever comes after a death lets what lands first run alone."""
    shop.deed = lambda event, tx: event.data == 14 and shop.harness.crash()
    shop.shelf.said += range(10, 19)
    assert run_through(shop.harness) == 4, "the first death was in company: nobody is charged"
    assert [(letter.state, letter.reason) for letter in shop.harness.letters("dead")] == [("dead", "crashed_worker")]
    shop.app.operate("ada").letters.discard([shop.harness.letters("dead")[0].id], "a test")
    shop.say(20, 21)
    shop.check(14)


def test_after_a_death_turns_are_joined_again_once_nothing_can_have_been_in_flight(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failpoint("land.committed", shop.harness.crash), pytest.raises(Crashed):
        shop.say(10)
    shop.say(*range(11, 11 + joining.JOINED_MAX))
    passed = Passed(monkeypatch)
    shop.say(*range(50, 59))
    assert passed.writes[-8:] == TOGETHER
    shop.check()
