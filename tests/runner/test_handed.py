"""What has just landed is handed over in memory: nobody may notice, but by the time it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import App, Event, Tx, failpoints
from redrive.errors import StoreError, UsageError
from redrive.event import NewEvent
from redrive.observe.signals import Appended, Signal
from redrive.runner import batch, handed, joining
from redrive.runner.handed import Handed, Landed
from redrive.sources.port import Message, Plain, Positions, Reader, Source
from redrive.store.packed import next_events
from redrive.testing import Harness, make_event
from redrive.testing.failpoints import failpoint


class Shelf(Source):
    """A broker in memory, in order."""

    scheme, partitions, ordered, acknowledges = "shelf", 1, True, False

    def __init__(self, *said: int) -> None:
        self.name, self.said = "orders", [*said]

    def open(self, group: str) -> Reader:
        return ShelfReader(self)

    def check_order(self, order: str) -> None:
        """Whatever."""


class ShelfReader(Reader):
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message]:
        start = int(positions.get(0, "0"))
        found = self._shelf.said[start : start + min(limit, 3)]
        return [
            Message(0, str(at + 1), NewEvent(f"m{at}", "said", f"k{n % 2}", 1, 0, None, str(n).encode()), False)
            for at, n in enumerate(found, start)
        ]

    def settled(self, messages: Sequence[Message | Plain]) -> None:
        """Nothing to tell."""

    def close(self) -> None:
        """Nothing is open."""


class Shop:
    def __init__(self, *said: int) -> None:
        self.app, self.shelf = App("/nonexistent/x.db", name="shop"), Shelf(*said)

        @self.app.projection(self.shelf, tables={"given": "id TEXT, key TEXT, version INTEGER, n INTEGER"})
        def write_down(event: Event[Any], tx: Tx) -> None:
            tx.execute("INSERT INTO given VALUES (?, ?, ?, ?)", (event.id, event.key, event.version, event.data))

        self.harness = Harness(self.app)

    @property
    def given(self) -> list[Any]:
        return [n for (n,) in self.harness.query("SELECT n FROM given ORDER BY rowid")]


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop(*range(9))
    with shop.harness:
        yield shop


@pytest.fixture
def read_back(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The numbers of the events that each look into a log has found."""
    found: list[Any] = []

    def look(*where: Any) -> Any:
        events, goes_on = next_events(*where)
        found.append([int(event.data_raw) for event in events])
        return events, goes_on

    monkeypatch.setattr(batch, "next_events", look)
    return found


def test_what_has_landed_is_applied_as_the_log_has_it_and_not_read_back(shop: Shop, read_back: list[Any]) -> None:
    shop.harness.run_until_idle()
    assert shop.given == [*range(9)]
    rows = shop.harness.query("SELECT id, key, version, CAST(data AS INTEGER) FROM redrive_events ORDER BY position")
    assert shop.harness.query("SELECT * FROM given ORDER BY rowid") == rows
    assert sum(len(found) for found in read_back) <= 3  # the first landing makes the log


def test_what_others_append_in_between_is_not_passed_over(shop: Shop) -> None:
    log, more = shop.app.log("shelf:orders"), iter(range(100, 200))
    for at in (1, 2, 3):
        with failpoint("land.committed", lambda: log.append("by.hand", next(more), key="k0"), at=at):
            shop.harness.run_until_idle()
        shop.shelf.said += [*range(10 * at, 10 * at + 9)]
    shop.harness.run_until_idle()
    stored = [int(data) for (data,) in shop.harness.query("SELECT data FROM redrive_events ORDER BY position")]
    assert shop.given == stored
    assert sorted(shop.given) == sorted([*shop.shelf.said, 100, 101, 102])


def test_who_has_taken_from_memory_asks_the_log_for_more(shop: Shop) -> None:
    shop.harness.run_until_idle()
    store: Any = shop.app.runtime.store

    def slip_in() -> None:
        """Behind what has landed, and nobody is woken for it."""
        with store.transaction() as tx:
            tx.logs.append("shelf:orders", [NewEvent("late", "said", "k0", 1, 0, None, b"200")])

    shop.shelf.said += [100, 101]
    with failpoint("land.committed", slip_in):
        shop.harness.run_until_idle()
    assert shop.given == [*range(9), 100, 101, 200]


def test_who_begins_anew_reads_the_log(shop: Shop, read_back: list[Any]) -> None:
    shop.harness.run_until_idle()
    read_back.clear()
    shop.shelf.said += [100, 101]
    with failpoint("batch.fenced", StoreError("out of order")):  # its loop ends; its successor knows nothing
        shop.harness.run_until_idle()
    shop.harness.advance("1m")
    assert shop.given == shop.shelf.said
    assert [100, 101] in read_back


def test_a_large_landing_is_not_kept(shop: Shop, read_back: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed, "BYTES_MAX", 2)
    monkeypatch.setattr(joining, "JOINED_MAX", 0)
    shop.harness.run_until_idle()
    assert shop.given == [*range(9)]
    assert [n for found in read_back for n in found] == [*range(9)]


def test_who_rests_is_given_its_turn_by_who_lands(shop: Shop) -> None:
    """Before anybody is woken or told: each change of threads takes as long as the turn."""
    shop.harness.run_until_idle()
    seen = list[Any]()

    def look(batch: Sequence[Signal]) -> None:
        seen.extend(shop.given for told in batch if isinstance(told, Appended))

    shop.app.listen(look)
    shop.shelf.said += [*range(100, 109)]
    shop.harness.run_until_idle()
    assert seen[1:] == [shop.shelf.said[:15], shop.shelf.said]  # when the first lands nobody rests yet


def test_a_turn_that_fails_where_something_lands_is_no_failure_of_the_landing(shop: Shop) -> None:
    shop.harness.run_until_idle()
    shop.shelf.said += [100, 101]
    with failpoint("batch.fenced", StoreError("out of order")):
        shop.harness.run_until_idle()
    assert shop.harness.halted == {"write_down": "halted: out of order"}
    shop.harness.advance("1m")
    assert shop.given == shop.shelf.said


Steps = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=12)


@given(Steps, st.integers(1, 4), st.integers(1, 12))
def test_what_is_handed_over_is_what_the_log_has_next(steps: Any, limit: int, events_max: int) -> None:
    """Others leave gaps between landings, and append to the log themselves."""
    desk, log, at = Handed(), list[Any](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handed, "EVENTS_MAX", events_max)
        for gap, count, by_hand in steps:
            at += gap
            above = log[-1].position if log else 0
            events = [make_event("said", position=at + n) for n in range(1, count + 1)]
            at += count
            log += events
            if not by_hand:
                desk.put("x", Landed(above, events))
            kept = desk._landed.get("x", ())
            assert sum(len(one.events) for one in kept) <= events_max and len(kept) <= handed.LANDINGS_MAX
            for position in range(at + 2):
                found = desk.after("x", position, limit)
                assert found == [event for event in log if event.position > position][: len(found)]
        if steps and not steps[-1][2] and steps[-1][1] <= events_max:
            assert desk.after("x", at - 1, limit) == log[-1:]
    desk.forget("x")
    assert desk.after("x", at - 1, limit) == []
    assert desk.after("y", at - 1, limit) == []


HEADERS = '{"a":"ü"}'.encode()


class Said(Shelf):
    """Its messages are objects, with headers."""

    def open(self, group: str) -> Reader:
        return SaidReader(self)


class SaidReader(ShelfReader):
    def read(self, positions: Positions, limit: int, wait: float) -> Sequence[Message]:
        return [
            Message(0, m.position, m.event._replace(headers_raw=HEADERS, data_raw=b'{"user":"ada"}'), False)
            for m in super().read(positions, limit, wait)
        ]


def test_what_is_handed_over_to_several_is_what_the_log_has_and_is_not_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, shelf, read_back = App("/nonexistent/x.db", name="shop"), Said(), list[int]()
    given: dict[str, list[Any]] = {"a": [], "b": []}

    def look(*where: Any) -> Any:
        events, goes_on = next_events(*where)
        read_back.extend(event.position for event in events)
        return events, goes_on

    def declare(name: str) -> None:
        @app.projection(shelf, name=name)
        def write_down(event: Event[Any], tx: Tx) -> None:
            given[name].append((*event._row(), event.headers))

    declare("a")
    declare("b")
    with Harness(app) as harness:
        shelf.said += range(3)
        harness.run_until_idle()
        monkeypatch.setattr(batch, "next_events", look)
        shelf.said += range(3, 12)
        harness.run_until_idle()
        stored = list(app.log("shelf:orders").read())
    assert given["a"] == given["b"] == [(*event._row(), {"a": "ü"}) for event in stored]
    assert read_back == []


@pytest.mark.parametrize("how", ["key_by", "kept"])
def test_what_one_does_to_an_event_outside_of_its_call_nobody_else_sees(how: str) -> None:
    app, shelf, last = App("/nonexistent/x.db", name="shop"), Said(), list[Any]()
    seen, keys = list[Any](), list[Any]()

    def user(event: Event[Any]) -> str:
        keys.append(dict(event.data))
        return str(event.data.pop("user"))

    def change(event: Event[Any], tx: Tx) -> None:
        if how == "key_by":
            raise OSError("no")  # the others queue behind it, and are not called
        if last:
            last[-1].data.clear()
        last.append(event)

    app.projection(shelf, name="a", key_by=user if how == "key_by" else None)(change)

    @app.projection(shelf, name="b", key_by=user)
    def read(event: Event[Any], tx: Tx) -> None:
        seen.append(event.data)

    with Harness(app) as harness:
        for _ in range(2):
            shelf.said += range(4)
            harness.run_until_idle()
    assert seen == [{"user": "ada"}] * 8
    assert keys == [{"user": "ada"}] * len(keys)


@pytest.mark.parametrize("where", ["land.before_commit", "batch.called", "batch.before_commit"])
def test_a_tx_that_is_kept_emits_for_nobody_when_its_joined_turn_has_failed(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, kept, shelf, hits = App("/nonexistent/x.db", name="shop"), list[Any](), Shelf(), list[str]()

    @app.projection(shelf)
    def keep(event: Event[Any], tx: Tx) -> None:
        kept.append(tx)

    def fail(name: str) -> None:
        if (name == where and len(kept) == 18) or (hits and name == "land.fenced"):
            hits.append(name)
            raise StoreError("gone")

    with Harness(app) as harness:
        for _ in range(2):
            shelf.said += range(6)
            harness.run_until_idle()
        shelf.said += range(6)
        monkeypatch.setattr(failpoints, "_armed", fail)
        harness.run_until_idle()
        monkeypatch.setattr(failpoints, "_armed", None)
        assert hits == [where, "land.fenced"]
        with pytest.raises(UsageError, match="over"):
            kept[-1].emit(app.log("out"), "t", None, key=None)
        harness.advance("10m")
        assert harness.emitted("out") == []
