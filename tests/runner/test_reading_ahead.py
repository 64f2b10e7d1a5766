"""Reading ahead: while events are called another thread reads what comes next, and nothing else changes."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import App
from redrive.clock import Env
from redrive.draft import draft
from redrive.errors import StoreBusy
from redrive.event import Event
from redrive.runner import coming
from redrive.runner.coming import Ask, Coming, Piece
from redrive.store import packed
from redrive.store.ahead import Ahead, Lookout, NoLookout, Offer
from redrive.store.log import some_after
from redrive.store.packed import BYTES_MAX, Packed, packed_after, unpacked
from redrive.store.sqlite.store import SqliteStore
from redrive.testing import make_event
from redrive.types import EventTypes

KEYS = 150  # more than a group must have to be worth another thread


def busy() -> None:
    raise StoreBusy("somebody else")


@pytest.fixture
def lookout() -> Iterator[Lookout]:
    made = Lookout("a test")
    yield made
    made.stop()


def test_it_is_read_by_another_thread(lookout: Lookout) -> None:
    assert lookout.ahead(lambda: threading.current_thread().name).result() == "redrive-lookout a test"


def test_what_went_wrong_is_told_to_who_wants_the_answer(lookout: Lookout) -> None:
    ahead, next_one = lookout.ahead(busy), lookout.ahead(lambda: "goes on")
    with pytest.raises(StoreBusy, match="somebody else"):
        ahead.result()
    assert next_one.result() == "goes on"


def test_without_threads_it_is_read_at_once_and_told_later() -> None:
    lookout, read = NoLookout("a test"), list[int]()
    ahead, failed = lookout.ahead(lambda: read.append(1)), lookout.ahead(busy)
    assert read == [1]
    assert ahead.result() is None
    with pytest.raises(StoreBusy, match="somebody else"):
        failed.result()


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_what_is_read_beside_a_commit_is_handled_once_and_in_order(tmp_path: Path, kind: str) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    handled: dict[str, list[int]] = defaultdict(list)
    readers: set[str] = set()
    look = Ahead.hear

    def handle(event: Any) -> None:
        handled[event.key].append(event.data["n"])

    if kind == "async":

        @app.on(orders, start="first")
        async def on_order(event: Any, ctx: Any) -> None:
            handle(event)
    else:

        @app.on(orders, start="first")
        def on_order_in_thread(event: Any, ctx: Any) -> None:
            handle(event)

    def hear(ahead: Ahead[Any], result: Any, error: BaseException | None) -> None:
        readers.add(threading.current_thread().name)
        look(ahead, result, error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ahead, "hear", hear)
        orders.append_many([{"type": "placed", "data": {"n": n}, "key": f"k{n % KEYS}"} for n in range(5_000)])
        asyncio.run(asyncio.wait_for(app.serve(until_idle=True), 60))
    lookouts = {name for name in readers if name.startswith("redrive-lookout")}
    assert len(lookouts) == 1
    assert all(name == "MainThread" or name.startswith("redrive-writer") for name in readers - lookouts)
    assert handled == {f"k{k}": list(range(k, 5_000, KEYS)) for k in range(KEYS)}
    app.close()
    assert not any(thread.name in lookouts for thread in threading.enumerate())


def test_what_a_group_emits_to_its_own_log_is_not_overlooked(tmp_path: Path) -> None:
    """It is read when the group may not be committed yet: what is found then is not all there is."""
    app = App(str(tmp_path / "shop.db"))
    orders, handled = app.log("orders"), []

    @app.on(orders, start="first")
    async def on_order(event: Any, ctx: Any) -> None:
        handled.append((event.key, event.data["left"]))
        if event.data["left"]:
            ctx.emit(orders, "placed", {"left": event.data["left"] - 1})

    orders.append_many([{"type": "placed", "data": {"left": 3}, "key": f"k{k}"} for k in range(KEYS)])
    asyncio.run(asyncio.wait_for(app.serve(until_idle=True), 60))
    assert sorted(handled) == sorted((f"k{k}", left) for k in range(KEYS) for left in range(4))
    app.close()


def test_an_offer_is_taken_up_once_by_whoever_comes_first() -> None:
    done = list[str]()
    offer = Offer(lambda: done.append("once"))
    assert not offer.is_there
    offer.take_up()
    offer.take_up()
    assert offer.is_there
    assert offer.result() is None
    offer.take_up()
    assert done == ["once"]


def test_who_wants_what_nobody_has_begun_does_it() -> None:
    assert Offer(lambda: threading.current_thread()).result() is threading.current_thread()
    with pytest.raises(StoreBusy, match="somebody else"):
        Offer(busy).result()


def test_who_wants_what_somebody_has_begun_waits_for_it() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert may_end.wait(30)
        return threading.current_thread().name

    offer = Offer(slow)
    other = threading.Thread(target=offer.take_up, name="somebody")
    other.start()
    assert begun.wait(30)
    threading.Timer(0, may_end.set).start()
    assert offer.result() == "somebody"
    other.join()


# ---------------------------------------------------------------- what comes next


class Beside(NoLookout):
    """One that may read while its asker writes."""

    is_beside = True


class Shelf:
    """A log of numbers, which counts how often it is looked at."""

    def __init__(
        self, last: int, lookout: Lookout | None = None, others: frozenset[int] = frozenset(), ask: Ask | None = None
    ) -> None:
        """`others`: of every ten positions, those that belong to another log."""
        self.last, self.now, self.ahead, self.others = last, 0, 0, others
        self.spans: list[int | None] = []
        self.coming = Coming(lookout or NoLookout("a test"), self.read_ahead, EventTypes(), ask)

    def positions(self, above: int, upto: int) -> list[int]:
        return [at for at in range(above + 1, min(upto, self.last) + 1) if at % 10 not in self.others]

    def read(self, above: int, count: int) -> list[Event[Any]]:
        self.now += 1
        return [make_event("told", at, position=at) for at in self.positions(above, self.last)[:count]]

    def read_ahead(self, above: int, count: int, span: int | None) -> Packed:
        self.ahead += 1
        self.spans.append(span)
        found = self.positions(above, self.last)[:count] if span is None else self.positions(above, above + span)
        rows = [make_event("told", at, position=at)._row() for at in found]
        texts = [[*row[:7], None, len(cast("bytes", row[8]))] for row in rows]
        data = b"".join(cast("bytes", row[8]) for row in rows)
        return Packed(json.dumps(texts), data, len(rows), found[-1] if found else None)

    def take(self, position: int, room: int) -> list[int]:
        taken = self.coming.take(position, room, self.read)
        self.coming.begin(taken, room)
        return [event.position for event in taken]


def test_what_was_read_before_is_taken_and_the_rest_is_kept_for_the_next_time() -> None:
    shelf = Shelf(1_000)
    assert shelf.take(0, 40) == [*range(1, 41)]
    assert shelf.take(40, 10) == [*range(41, 51)]
    assert shelf.take(50, 35) == [*range(51, 86)]
    assert shelf.now == 1, "only the first was read when it was wanted"


def test_whoever_goes_back_reads_again() -> None:
    shelf = Shelf(1_000)
    assert shelf.take(0, 40) == [*range(1, 41)]
    assert shelf.take(20, 40) == [*range(21, 61)]
    assert shelf.now == 2
    assert shelf.take(60, 5) == [*range(61, 66)]
    assert shelf.now == 2


def test_whoever_is_further_passes_over_what_lies_behind() -> None:
    shelf = Shelf(1_000)
    shelf.take(0, 40)
    assert shelf.take(43, 5) == [44, 45, 46, 47, 48]
    assert shelf.take(500, 5) == [501, 502, 503, 504, 505]
    assert shelf.now == 2


def test_at_the_end_nobody_reads_ahead_and_what_is_appended_then_is_found() -> None:
    shelf = Shelf(50)
    assert shelf.take(0, 40) == [*range(1, 41)]
    assert shelf.take(40, 40) == [*range(41, 51)]
    assert (shelf.now, shelf.ahead) == (1, 1)
    shelf.last = 60
    assert shelf.take(50, 40) == [*range(51, 61)]
    assert (shelf.now, shelf.ahead) == (2, 1)


def test_large_events_are_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming, "BYTES_MAX", 50)
    shelf = Shelf(1_000)
    assert shelf.take(0, 40) == [*range(1, 41)]
    assert shelf.take(40, 40) == [*range(41, 81)]
    assert (shelf.now, shelf.ahead) == (2, 0)


def test_what_could_not_be_read_ahead_is_read_when_it_is_wanted() -> None:
    shelf = Shelf(1_000)
    shelf.take(0, 40)
    shelf.coming._reading = Piece(45, 40), NoLookout("a test").ahead(busy)
    assert shelf.take(40, 40) == [*range(41, 81)]
    assert shelf.now == 2


def test_what_follows_is_read_while_what_was_read_is_unpacked() -> None:
    shelf = Shelf(1_000, Beside("a test"))
    assert shelf.take(0, 40) == [*range(1, 41)]
    for turn in range(1, 10):
        shelf.coming.unpack()
        shelf.coming.unpack()  # once more, as when a transaction is made again
        assert shelf.ahead == turn + 1
        assert shelf.take(40 * turn, 40) == [*range(40 * turn + 1, 40 * turn + 41)]
    assert (shelf.now, shelf.ahead) == (1, 10)


class Late(Beside):
    """One that has not read anything when it is asked whether it has."""

    def __init__(self) -> None:
        super().__init__("a test")
        self.asked: list[tuple[Callable[[], Any], Ahead[Any]]] = []

    def ahead(self, job: Callable[[], Any]) -> Ahead[Any]:
        self.asked.append((job, Ahead[Any]()))
        return self.asked[-1][1]

    def read(self) -> None:
        for job, ahead in self.asked:
            ahead.hear(job(), None)
        self.asked = []


def test_who_has_time_while_a_commit_waits_unpacks() -> None:
    asked = list[Callable[[], None]]()
    shelf = Shelf(1_000, Beside("a test"), ask=asked.append)
    shelf.take(0, 40)
    shelf.coming.unpack()
    assert shelf.coming._unpacking is not None
    piece, _ = shelf.coming._unpacking
    assert (len(asked), piece.events, shelf.ahead) == (1, [], 2), "what follows is read without waiting for that"
    asked.pop()()
    assert [event.position for event in piece.events] == [*range(41, 86)]
    assert shelf.take(40, 40) == [*range(41, 81)]
    assert shelf.now == 1


def test_who_has_no_time_to_unpack_is_not_waited_for() -> None:
    asked = list[Callable[[], None]]()
    shelf = Shelf(1_000, Beside("a test"), ask=asked.append)
    assert shelf.take(0, 40) == [*range(1, 41)]
    for turn in range(1, 10):
        shelf.coming.unpack()
        assert shelf.take(40 * turn, 40) == [*range(40 * turn + 1, 40 * turn + 41)]
    for late in asked:
        late()
    assert shelf.take(400, 40) == [*range(401, 441)]
    assert shelf.now == 1


def test_who_is_asked_to_unpack_does_not_wait_for_what_is_still_being_read() -> None:
    asked, lookout = list[Callable[[], None]](), Late()
    shelf = Shelf(1_000, lookout, ask=asked.append)
    shelf.take(0, 40)
    shelf.coming.unpack()
    asked.pop()()
    lookout.read()
    assert shelf.coming._unpacking is not None
    piece, _ = shelf.coming._unpacking
    assert piece.events == []
    assert shelf.take(40, 40) == [*range(41, 81)]
    assert shelf.now == 1


def test_who_would_see_what_is_not_committed_reads_nothing_meanwhile() -> None:
    shelf = Shelf(1_000)
    shelf.take(0, 40)
    shelf.coming.unpack()
    assert shelf.ahead == 1
    assert shelf.take(40, 40) == [*range(41, 81)]
    assert shelf.ahead == 2


def test_what_follows_what_nobody_took_is_not_put_behind_something_else() -> None:
    shelf = Shelf(1_000, Beside("a test"))
    shelf.take(0, 40)
    shelf.coming.unpack()  # 41 to 85 are here, and what follows is read
    assert shelf.take(20, 40) == [*range(21, 61)]
    assert shelf.take(60, 40) == [*range(61, 101)]
    assert shelf.take(100, 40) == [*range(101, 141)]


def test_a_piece_that_nobody_took_stays_as_it_is() -> None:
    """The lookout may be about to look where it ends."""
    shelf = Shelf(1_000, Beside("a test"))
    shelf.take(0, 40)
    shelf.coming.unpack()
    assert shelf.coming._unpacking is not None
    piece, _ = shelf.coming._unpacking
    shelf.coming._above = 20  # somebody went elsewhere meanwhile
    assert shelf.take(20, 40) == [*range(21, 61)]
    assert [event.position for event in piece.events] == [*range(41, 86)]


def test_at_the_end_what_follows_is_not_read() -> None:
    shelf = Shelf(50, Beside("a test"))
    assert shelf.take(0, 40) == [*range(1, 41)]
    shelf.coming.unpack()
    assert shelf.ahead == 1
    assert shelf.take(40, 40) == [*range(41, 51)]
    shelf.last = 60
    shelf.coming.unpack()
    assert shelf.take(50, 40) == [*range(51, 61)]


@pytest.mark.parametrize(("others", "span"), [({}, 45), ({3}, 51), ({1, 2, 3, 4, 5, 6}, None)])
def test_where_the_log_fills_most_of_the_table_it_is_read_as_it_lies_there(others: set[int], span: int | None) -> None:
    shelf = Shelf(1_000, others=frozenset(others))
    taken = [*shelf.take(0, 40), *shelf.take(shelf.positions(0, 1_000)[39], 40)]
    assert taken == shelf.positions(0, 1_000)[:80]
    assert shelf.spans[0] == span
    assert shelf.now == 1, "only the first was read when it was wanted"


def test_a_gap_in_the_log_is_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(1_000)
    there = [at for at in range(1, 1_001) if not 60 < at < 400]
    monkeypatch.setattr(shelf, "positions", lambda above, upto: [at for at in there if above < at <= upto])
    position, taken = 0, list[int]()
    while found := shelf.take(position, 40):
        taken += found
        position = found[-1]
    assert taken == there
    assert shelf.ahead > 10, "behind it, what follows is read ahead as before"


Steps = st.lists(st.tuples(st.integers(1, 30), st.integers(-10, 10), st.booleans(), st.booleans()), max_size=20)


@pytest.mark.parametrize("lookout", [NoLookout("a test"), Beside("a test")], ids=["apart", "beside"])
@pytest.mark.parametrize("has_loop", [False, True])
@given(steps=Steps, last=st.integers(0, 300), others=st.frozensets(st.integers(0, 9), max_size=9))
def test_whatever_is_asked_for_it_is_what_the_log_has(
    lookout: Lookout, has_loop: bool, steps: list[tuple[int, int, bool, bool]], last: int, others: frozenset[int]
) -> None:
    asked = list[Callable[[], None]]()
    shelf, position = Shelf(last, lookout, others, asked.append if has_loop else None), 0
    for room, jump, commits, has_time in steps:
        left = shelf.positions(position, shelf.last)
        taken = shelf.take(position, room)
        assert taken == left[: len(taken)]
        assert taken or not left or last < shelf.last
        position = max(0, (taken[-1] if taken else position) + (jump if abs(jump) > 5 else 0))
        shelf.last += room // 3
        if commits:
            shelf.coming.unpack()
        while asked and has_time:
            asked.pop()()


@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.binary(max_size=30), st.sampled_from([b'{"a":"\\u0000"}', b"null", b'"\xff"', b"\x00", b"\n"])
            ),
            st.one_of(st.none(), st.binary(max_size=10)),
            st.one_of(st.none(), st.text(st.characters(codec="utf-8"), min_size=1, max_size=10)),
            st.integers(-(2**62), 2**62),
        ),
        max_size=12,
    ),
    st.integers(1, 15),
)
def test_events_that_are_read_in_one_step_are_the_same(rows: list[tuple[Any, ...]], limit: int) -> None:
    store, types = SqliteStore(":memory:", inline=True), EventTypes()
    with store.transaction() as tx:
        log = tx.logs.id_of("orders", create=True)
        for number, (data, headers, key, time_us) in enumerate(rows):
            values = (log + number % 4 // 3, f'"{number}', "told", key, 1, time_us, headers, data)
            fields = "log, id, type, key, schema, time_us, headers, data"
            tx.execute(f"INSERT INTO redrive_events ({fields}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        expected = some_after(tx.logs, log, 1, limit, types, BYTES_MAX)[0]
        found = unpacked(packed_after(tx.sql, log, 1, limit), types)
        near = unpacked(packed_after(tx.sql, log, 1, 0, span=limit), types)
        tx.execute("PRAGMA reverse_unordered_selects = on")
        turned = unpacked(packed_after(tx.sql, log, 1, 0, span=limit), types)
    is_text = all(event.headers_raw is None or is_utf8(event.headers_raw) for event in expected)
    assert [event._row() for event in found] == [event._row() for event in expected if is_text]
    near_by = [event for event in expected if event.position <= 1 + limit]
    is_text = all(event.headers_raw is None or is_utf8(event.headers_raw) for event in near_by)
    assert [event._row() for event in near] == [event._row() for event in near_by if is_text]
    assert len(near) < 2 or turned == []
    store.close()


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_what_is_no_bytes_is_left_to_be_read_as_it_is() -> None:
    """Who else writes to the file may store a text, whose length is counted in characters."""
    store, types = SqliteStore(":memory:", inline=True), EventTypes()
    with store.transaction() as tx:
        log = tx.logs.id_of("orders", create=True)
        for data in ("\u00e4\u00f6", b"1"):
            values = (log, f"{data!r}", "told", 1, 0, data)
            tx.execute(
                "INSERT INTO redrive_events (log, id, type, schema, time_us, data) VALUES (?, ?, ?, ?, ?, ?)", values
            )
        assert unpacked(packed_after(tx.sql, log, 0, 10), types) == []
    store.close()


def test_what_is_too_much_for_one_text_is_left_to_be_read_when_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    store, types = SqliteStore(":memory:", inline=True), EventTypes()
    with store.transaction() as tx:
        rows, _ = tx.logs.append("orders", [draft(types, Env(), "told", "x" * 900) for _ in range(3)])
        log = tx.logs.id_of("orders")
        assert len(unpacked(packed_after(tx.sql, log, 0, 10), types)) == len(rows) == 3
        monkeypatch.setattr(packed, "TEXT_MAX", 2_000)
        assert unpacked(packed_after(tx.sql, log, 0, 10), types) == []
        assert tx.connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) > 2_000, "for this statement alone"
    store.close()
