"""Appending: what is stored, what is refused, and what happens together or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from redrive import App, EventError, IdConflict, UsageError, VersionConflict
from redrive.testing import Harness


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_an_event_comes_back_with_its_position_version_id_and_time(app: App, harness: Harness) -> None:
    first = harness.append("orders", "order.placed", {"cents": 1}, key="a", headers={"trace": "x"})
    second = harness.append("orders", "order.paid", key="a")
    third = harness.append("orders", "order.paid")
    assert [event.position for event in (first, second, third)] == [1, 2, 3]
    assert [event.version for event in (first, second, third)] == [1, 2, None]
    assert first.id < second.id < third.id
    assert first.id[14] == "7"
    assert (first.data, first.headers, first.schema) == ({"cents": 1}, {"trace": "x"}, 1)
    assert first.time == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"data": "x" * 1_048_576}, "the limit is 1,048,576"),
        ({"data": nested(101)}, "deeper than 100"),
        ({"data": {"n": float("nan")}}, "NaN"),
        ({"data": 2**70}, "beyond 64 bit"),
        ({"data": {1: 2}}, "a key that is not text"),
        ({"data": "\ud800"}, "surrogate"),
        ({"data": object()}, "JSON"),
        ({"key": "k" * 513}, "the limit is 512"),
        ({"key": "é" * 257}, "the limit is 512"),
        ({"key": ""}, "empty"),
        ({"key": "a\nb"}, "control characters"),
        ({"key": 7}, "must be text"),
        ({"id": ""}, "1 to 200"),
        ({"type": "two words"}, "white space"),
        ({"type": "x" * 201}, "1 to 200"),
        ({"headers": {"a": 1}}, "must be text"),
        ({"headers": {"a": "x" * 20_000}}, "the limit is 16,384"),
        ({"key": "a", "expected_version": -1}, "expected_version"),
        ({"time": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"time": "2026-01-01T00:00:00Z"}, "takes a datetime"),
        ({"time": datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))}, "cannot be told in UTC"),
        ({"headers": [("a", "b")]}, "headers"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_append(app: App, harness: Harness, arguments: Any, says: str) -> None:
    arguments = {"type": "order.placed", **arguments}
    with pytest.raises(EventError, match=says):
        app.log("orders").append(arguments.pop("type"), **arguments)
    assert list(app.log("orders").read()) == []


def test_the_limits_themselves_are_allowed(app: App, harness: Harness) -> None:
    harness.append("orders", "o", "x" * (1_048_576 - 2), key="k" * 512)
    harness.append("orders", "t" * 200, nested(100), id="i" * 200)
    assert [len(event.raw) for event in app.log("orders").read()] == [1_048_576, 201]


@pytest.mark.parametrize("time", [datetime.max.replace(tzinfo=UTC), datetime(2999, 1, 1, 0, 0, 0, 1, tzinfo=UTC)])
def test_a_time_comes_back_to_the_microsecond(app: App, harness: Harness, time: datetime) -> None:
    assert harness.append("orders", "order.placed", time=time).time == time


def test_a_repeated_id_with_the_same_content_is_the_same_event(app: App, harness: Harness) -> None:
    first = harness.append("orders", "order.placed", {"cents": 1}, key="a", id="order-1")
    again = harness.append("orders", "order.placed", {"cents": 1}, key="a", id="order-1")
    assert (again, again.version) == (first, 1)
    assert len(list(app.log("orders").read())) == 1


def test_the_same_content_may_be_written_in_another_way(app: App, harness: Harness) -> None:
    first = harness.append("orders", "order.placed", {"cents": 1, "of": {"a": 1, "b": [2]}}, id="order-1")
    for again in ({"of": {"b": [2], "a": 1}, "cents": 1}, msgspec.Raw(b'{ "cents": 1, "of": {"b": [2], "a": 1}}')):
        assert harness.append("orders", "order.placed", again, id="order-1") == first
    for other in ({"cents": 1.0, "of": {"a": 1, "b": [2]}}, {"cents": True, "of": {"a": 1, "b": [2]}}):
        with pytest.raises(IdConflict):
            harness.append("orders", "order.placed", other, id="order-1")


@pytest.mark.parametrize(
    "other", [{"data": {"cents": 2}}, {"type": "order.paid"}, {"key": "b"}, {"key": None}], ids=str
)
def test_a_repeated_id_with_other_content_is_an_error(app: App, harness: Harness, other: Any) -> None:
    same = {"type": "order.placed", "data": {"cents": 1}, "key": "a"}
    app.log("orders").append(**same, id="order-1")
    with pytest.raises(IdConflict, match="an id names one fact"):
        app.log("orders").append(**{**same, **other}, id="order-1")


def test_the_same_id_in_another_log_is_another_event(app: App, harness: Harness) -> None:
    one = harness.append("orders", "order.placed", id="x")
    two = harness.append("payments", "payment.due", id="x")
    assert one.position != two.position


def test_an_expected_version_guards_a_key(app: App, harness: Harness) -> None:
    orders = app.log("orders")
    orders.append("order.placed", key="a", expected_version=0)
    orders.append("order.paid", key="a", expected_version=1)
    orders.append("order.paid", key="a")
    for wrong in (0, 1, 2, 4):
        with pytest.raises(VersionConflict, match="found 3") as caught:
            orders.append("order.sent", key="a", expected_version=wrong)
        assert (caught.value.expected, caught.value.actual, caught.value.key) == (wrong, 3, "a")
    with pytest.raises(VersionConflict):
        orders.append("order.paid", key="new", expected_version=1)
    assert [event.version for event in orders.read_key("a")] == [1, 2, 3]


def test_an_expected_version_without_a_key_is_a_mistake(app: App, harness: Harness) -> None:
    with pytest.raises(UsageError, match="needs a key"):
        app.log("orders").append("order.placed", expected_version=0)


def test_many_are_appended_in_order(app: App, harness: Harness) -> None:
    events = app.log("orders").append_many([{"type": "order.placed", "data": n, "key": "a"} for n in range(5)])
    assert [(event.data, event.version) for event in events] == [(n, n + 1) for n in range(5)]
    assert app.log("orders").append_many([]) == []


def test_one_event_is_no_list_of_events(app: App, harness: Harness) -> None:
    """Its names would be event types."""
    for one in ({"type": "order.placed", "data": 1}, "order.placed"):
        with pytest.raises(UsageError, match="a list"):
            app.log("orders").append_many(one)
    assert list(app.log("orders").read()) == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"type": "order.placed", "data": float("nan")}, EventError),
        ({"type": "order.placed", "key": "a", "expected_version": 9}, VersionConflict),
        ({"type": "order.placed", "id": "taken", "data": "other"}, IdConflict),
        ({"data": 1}, EventError),
        ({"type": "order.placed", "keys": "a"}, EventError),
        (7, UsageError),
        ("order.placed", UsageError),
    ],
)
def test_many_are_appended_all_or_none(app: App, harness: Harness, bad: Any, error: Any) -> None:
    app.log("orders").append("order.placed", id="taken")
    with pytest.raises(error):
        app.log("orders").append_many([{"type": "order.placed", "key": "a"}, bad, {"type": "order.placed"}])
    assert len(list(app.log("orders").read())) == 1
    assert app.log("orders").append("order.placed", key="a", expected_version=0).version == 1


def test_a_business_write_and_its_event_are_one_transaction(app: App, harness: Harness) -> None:
    orders, seen = app.log("orders"), []
    app.on(orders, start="first", name="see")(lambda event, ctx: seen.append(event.data))
    harness.run_until_idle()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")
        tx.execute("INSERT INTO mine VALUES (:n)", {"n": 1})
        assert orders.append("order.placed", 1, key="a", tx=tx) is None
        orders.append_many([{"type": "order.placed", "data": 2}, {"type": "order.placed", "data": 3}], tx=tx)
        assert list(orders.read()) == [], "appended at commit"
    harness.run_until_idle()
    assert harness.query("SELECT n FROM mine") == [(1,)]
    assert seen == [1, 2, 3]


def test_a_transaction_that_fails_takes_both_back(app: App, harness: Harness) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")

    def fail() -> None:
        with app.transaction() as tx:
            tx.execute("INSERT INTO mine VALUES (1)")
            app.log("orders").append("order.placed", tx=tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert harness.query("SELECT * FROM mine") == []
    assert list(app.log("orders").read()) == []


def test_a_version_conflict_at_commit_takes_the_business_write_back(app: App, harness: Harness) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")

    def conflict() -> None:
        with app.transaction() as tx:
            tx.execute("INSERT INTO mine VALUES (1)")
            app.log("orders").append("order.placed", key="a", expected_version=5, tx=tx)

    with pytest.raises(VersionConflict):
        conflict()
    assert harness.query("SELECT * FROM mine") == []


def test_a_transaction_that_is_over_takes_no_more_events(app: App, harness: Harness) -> None:
    """Nobody would append them any more."""
    orders = app.log("orders")
    with app.transaction() as committed:
        orders.append("order.placed", 1, tx=committed)
    with suppress(LookupError), app.transaction() as failed:
        raise LookupError
    for tx in (committed, failed):
        with pytest.raises(UsageError, match="is over"):
            orders.append("order.placed", 2, tx=tx)
        with pytest.raises(UsageError, match="is over"):
            orders.append_many([{"type": "order.placed"}], tx=tx)
        with pytest.raises(UsageError, match="is over"):
            orders.cancel("reminder", tx=tx)
    assert [event.data for event in orders.read()] == [1]


def test_a_transaction_that_is_over_runs_no_more_statements(app: App, harness: Harness) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE notes (n INTEGER)")
    for call in (lambda: tx.execute("SELECT 1"), lambda: tx.executemany("INSERT INTO notes VALUES (?)", [(1,)])):
        with pytest.raises(UsageError, match="tx is over"):
            call()
    assert harness.query("SELECT n FROM notes") == []
    with app.reader() as reader:
        assert reader.execute("SELECT 1").fetchall()
    with pytest.raises(UsageError, match="tx is over"):
        reader.execute("SELECT 1")


@pytest.mark.parametrize("after", ["x", 1.5, 1 << 70])
def test_a_log_is_read_after_a_position(app: App, harness: Harness, after: Any) -> None:
    with pytest.raises(UsageError, match="after= is a position"):
        list(app.log("orders").read(after=after))


def test_a_transaction_of_another_store_is_no_place_for_an_event(tmp_path: Path) -> None:
    """It would be in a log of that name over there, where nobody looks for it."""
    here, there, same = App(str(tmp_path / "a.db")), App(str(tmp_path / "b.db")), App(f"sqlite:///{tmp_path}/./a.db")
    with there.transaction() as tx, pytest.raises(UsageError, match=r"a transaction of .*b\.db.* is in .*a\.db"):
        here.log("orders").append("order.placed", tx=tx)
    with same.transaction() as tx:
        here.log("orders").append("order.placed", 1, tx=tx)
    assert [event.data for event in here.log("orders").read()] == [1]
    assert list(there.log("orders").read()) == []
    for app in (here, there, same):
        app.close()


def test_an_append_beside_an_open_transaction_of_the_same_thread_is_refused(app: App, harness: Harness) -> None:
    with app.transaction(), pytest.raises(UsageError, match="tx=tx"):
        app.log("orders").append("order.placed")


def test_a_transaction_inside_a_transaction_is_refused(app: App, harness: Harness) -> None:
    with app.transaction(), pytest.raises(UsageError, match="already inside"), app.transaction():
        pass


def test_a_transaction_cannot_be_ended_from_inside(app: App, harness: Harness) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")
        with pytest.raises(UsageError if harness.on_postgres else sqlite3.DatabaseError):
            tx.execute("COMMIT")
    assert harness.query("SELECT * FROM mine") == []


def test_a_projections_tx_is_no_place_for_append(app: App, harness: Harness) -> None:
    @app.projection(app.log("orders"))
    def project(event, tx):
        app.log("out").append("x", tx=tx)

    harness.append("orders", "order.placed")
    harness.run_until_idle()
    assert "in a projection use tx.emit" in harness.letters()[0].error_message


def test_a_reader_sees_one_moment_and_cannot_write(app: App, harness: Harness) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")
    with app.reader() as reader:
        assert reader.execute("SELECT count(*) FROM mine").fetchone() == (0,)
        with app.transaction() as tx:
            tx.execute("INSERT INTO mine VALUES (1)")
        assert reader.execute("SELECT count(*) FROM mine").fetchone() == (0,)
        refusal = psycopg.errors.ReadOnlySqlTransaction if harness.on_postgres else sqlite3.OperationalError
        with pytest.raises(refusal, match=r"read-?only"):
            reader.execute("INSERT INTO mine VALUES (2)")
    with app.reader() as reader:
        assert reader.execute("SELECT count(*) FROM mine").fetchone() == (1,)


def test_reading_goes_page_by_page_and_from_a_position(app: App, harness: Harness) -> None:
    orders = app.log("orders")
    orders.append_many([{"type": "order.placed", "data": n} for n in range(1234)])
    assert [event.data for event in orders.read()] == list(range(1234))
    assert [event.data for event in orders.read(after=1230)] == [1230, 1231, 1232, 1233]
    assert list(app.log("empty").read()) == []


def test_a_key_is_read_from_a_version(app: App, harness: Harness) -> None:
    for key in "abab":
        harness.append("orders", "order.placed", key, key=key)
    assert [(event.version, event.data) for event in app.log("orders").read_key("b")] == [(1, "b"), (2, "b")]
    assert [event.version for event in app.log("orders").read_key("b", after_version=1)] == [2]
    assert app.log("orders").read_key("z") == []


def test_coroutines_that_append_together_share_commits(tmp_path: Path) -> None:
    app = App(str(tmp_path / "real.db"))

    async def scenario() -> list[Any]:
        log = app.log("orders")
        good = [log.append_async("order.placed", n, key=f"k{n % 7}") for n in range(200)]
        bad = log.append_async("order.placed", "x", key="k0", expected_version=99)
        return await asyncio.gather(*good, bad, return_exceptions=True)

    results = asyncio.run(scenario())
    assert isinstance(results.pop(), VersionConflict)
    assert sorted(event.data for event in results) == list(range(200))
    assert len({event.position for event in results}) == 200
    app.close()


def test_append_async_in_the_transaction_of_the_same_coroutine_is_refused(tmp_path: Path) -> None:
    app = App(str(tmp_path / "real.db"))

    async def scenario() -> None:
        with app.transaction():
            await app.log("orders").append_async("order.placed")

    with pytest.raises(UsageError, match="tx=tx"):
        asyncio.run(asyncio.wait_for(scenario(), 10))
    app.close()


def test_append_async_on_a_loop_inside_of_a_transaction_is_refused(tmp_path: Path) -> None:
    app = App(str(tmp_path / "real.db"))
    log = app.log("orders")

    async def append() -> None:
        await log.append_async("order.placed")

    with app.transaction(), pytest.raises(UsageError, match="tx=tx"):
        asyncio.run(asyncio.wait_for(append(), 10))
    with app.transaction():  # another thread only waits for its turn
        waiting = threading.Thread(target=asyncio.run, args=(append(),))
        waiting.start()
    waiting.join()
    assert len(list(log.read())) == 1
    app.close()


@pytest.mark.parametrize("name", ["", "two words", 7])
def test_a_log_needs_a_name(app: App, name: Any) -> None:
    with pytest.raises(UsageError, match="log's name"):
        app.log(name)


def test_an_app_without_a_store_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)
    with pytest.raises(UsageError, match=r"REDRIVE_STORE.*--store"):
        App().log("orders").append("order.placed")
    monkeypatch.setenv("REDRIVE_STORE", "sqlite:///from-environment.db")
    app = App()
    app.log("orders").append("order.placed")
    app.close()
    assert (tmp_path / "from-environment.db").exists()


@pytest.mark.parametrize("name", [":memory:", "sqlite:///", "sqlite://", "sqlite:///:memory:"])
def test_a_store_in_memory_would_keep_nothing_and_is_refused(name: str) -> None:
    """A variable that is empty makes such a name: REDRIVE_STORE=sqlite:///$FILE."""
    with pytest.raises(UsageError, match="in memory"):
        App(name).log("orders").append("order.placed")


def test_a_store_may_be_named_by_a_path(tmp_path: Path) -> None:
    app = App(tmp_path / "shop.db")
    assert app.log("orders").append("order.placed").position == 1
    app.close()
    assert (tmp_path / "shop.db").exists()


def test_declaring_does_no_io(tmp_path: Path) -> None:
    app = App(str(tmp_path / "no" / "such" / "folder" / "shop.db"))
    app.projection(app.log("orders"))(lambda event, tx: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{}, {"after": "1h"}], ids=["now", "later"])
def test_await_of_append_names_append_async(harness: Harness, options: dict[str, Any]) -> None:
    """The event is stored by then: who reads only that an Event cannot be awaited may append it again."""
    log = harness.app.log("orders")

    async def program() -> None:
        await log.append("order.placed", 1, id="one", **options)

    with pytest.raises(TypeError, match=r"stored already \(id 'one'\).*`await log.append_async\(…\)`"):
        asyncio.run(program())


def test_append_returns_an_event_like_any_other(harness: Harness) -> None:
    log = harness.app.log("orders")
    event = log.append("order.placed", {"cents": 1}, key="a")
    [read] = log.read()
    assert (event, hash(event), repr(event)) == (read, hash(read), repr(read))
    assert read == event
