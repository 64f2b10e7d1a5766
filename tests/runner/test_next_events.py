"""What a projection reads next: all that follows, in order and once, in whatever way it is read."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive import App, Event
from redrive.runner import handle
from redrive.runner.handle import Handling
from redrive.store import packed
from redrive.store.packed import next_events, reach_of
from redrive.testing import Harness, make_event

LOGS = "orders", "others"


def write(app: App, what: list[tuple[int, int, str]]) -> None:
    """Runs of events: in which log, how many, and how they are."""
    for log, count, how in what:
        headers = {"x": "y"} if how == "headers" else None
        data = "x" * 5_000 if how == "large" else {"é\n": count}
        app.log(LOGS[log]).append_many([{"type": "t", "data": data, "headers": headers, "key": how}] * count)


def read(app: App, limit: int) -> tuple[list[Event[Any]], list[int]]:
    """All that is there, and how much was read at a time."""
    store, found, sizes, goes_on = app.runtime.store, list[Event[Any]](), list[int](), True
    while goes_on:
        with store.reading(snapshot=False) as tx:
            above = found[-1].position if found else 0
            events, goes_on = next_events(tx, tx.logs.id_of("orders"), above, limit, app.runtime.types)
        found += events
        sizes.append(len(events))
    return found, sizes


RUNS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 30), st.sampled_from(["plain", "headers", "large"])),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(deadline=None)
@given(runs=RUNS, limit=st.integers(1, 12), odd=st.sampled_from(["", "headers", "data"]))
def test_nothing_is_left_out_and_nothing_comes_twice(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int, str]], limit: int, odd: str
) -> None:
    app = App(str(tmp_path_factory.mktemp("log") / "shop.db"))
    app.log("orders").append("t", None, key="first")
    write(app, runs)
    if odd:  # as somebody else may have stored it
        with app.transaction() as tx:
            which = "headers = x'ff'" if odd == "headers" else "data = '\"é\"'"
            tx.connection.execute(f"UPDATE redrive_events SET {which} WHERE position % 7 = 3")
    found, _ = read(app, limit)
    with app.reader() as tx:
        sql = (
            "SELECT position, id, key, headers, data FROM redrive_events WHERE log = "
            "(SELECT id FROM redrive_logs WHERE name = 'orders') ORDER BY position"
        )
        rows = tx.connection.execute(sql).fetchall()
    assert [(e.position, e.id, e.key, e.headers_raw, e.data_raw) for e in found] == rows
    app.close()


def test_a_log_of_its_own_is_read_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, ways = App(str(tmp_path / "shop.db")), list[str]()
    some_after, packed_after = packed.some_after, packed.packed_after
    monkeypatch.setattr(packed, "some_after", lambda *a: (ways.append("rows"), some_after(*a))[1])
    monkeypatch.setattr(packed, "packed_after", lambda *a, **k: (ways.append("text"), packed_after(*a, **k))[1])
    write(app, [(0, 95, "plain")])
    assert read(app, 20)[1] == [20, 20, 20, 20, 15, 0]
    assert ways == ["rows", "text", "text", "text", "text", "text", "rows"]
    app.close()


def test_fewer_large_events_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "BYTES_MAX", 50_000)
    app = App(str(tmp_path / "shop.db"))
    write(app, [(0, 40, "large"), (0, 60, "plain")])
    found, sizes = read(app, 40)
    assert len(found) == 100
    assert sizes[:2] == [32, 9], "before the first nobody knows how large they are: it is looked at meanwhile"
    assert sizes[-2] > 9, "and small ones again as many as may be"
    app.close()


@pytest.mark.parametrize("others", [0, 3], ids=["in one step", "row by row"])
def test_where_events_are_suddenly_large_few_are_in_memory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    monkeypatch.setattr(packed, "BYTES_MAX", 50_000)
    monkeypatch.setattr(packed, "TEXT_MAX", 100_000)
    app = App(str(tmp_path / "shop.db"))
    for _ in range(300):
        write(app, [(0, 1, "plain"), (1, others, "plain")] if others else [(0, 1, "plain")])
    write(app, [(0, 300, "large"), (0, 20, "plain")])
    found, sizes = read(app, 200)
    assert [event.position for event in found] == sorted({event.position for event in found})
    assert len(found) == 620
    assert max(sizes) == 200, "of the small ones"
    at, largest = 0, 0
    for size in sizes:
        largest = max(largest, sum(len(event.data_raw) for event in found[at : at + size]))
        at += size
    assert largest <= 50_000 + 32 * 5_002, "one look later than there was enough"
    app.close()


def test_a_projection_reads_little_before_it_knows_how_large_events_are(
    app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "UNKNOWN_MAX", 10)
    sizes = list[int]()

    @app.projection(app.log("orders"), start="first", batch=True)
    def count(events: list[Event[Any]], tx: Any) -> None:
        sizes.append(len(events))

    app.log("orders").append_many([{"type": "t", "data": n} for n in range(50)])
    harness.run_until_idle()
    assert sizes == [10, 40]


def test_a_handler_holds_fewer_large_events_in_memory(
    app: App, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "BYTES_MAX", 50_000)
    monkeypatch.setattr(handle, "UNKNOWN_MAX", 20)
    held, handled = list[int](), list[int]()
    take_in = Handling.take_in

    def take(handling: Handling, events: list[Event[Any]]) -> int:
        count = take_in(handling, events)
        held.append(len(handling.desk))
        return count

    monkeypatch.setattr(Handling, "take_in", take)

    @app.on(app.log("orders"), start="first", concurrency=2)
    async def note(event: Event[Any], ctx: Any) -> None:
        handled.append(event.data[0])

    app.log("orders").append_many([{"type": "t", "data": [n, "x" * 5_000], "key": f"k{n % 7}"} for n in range(60)])
    harness.run_until_idle()
    assert sorted(handled) == list(range(60))
    assert held[0] == 20, "before the first nobody knows how large they are"
    assert all(now <= max(9, before - 1) for before, now in pairwise(held))
    assert held.count(9) > 3


def test_how_large_events_are_is_learnt_from_all_of_them() -> None:
    small, large = make_event("t", 1), make_event("t", "x" * 100_000)
    assert reach_of([small] * 70 + [large] * 930) < 200
    assert reach_of([large]) == 159


def test_as_many_large_events_are_handled_side_by_side_as_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "BYTES_MAX", 10_000)  # two of them
    monkeypatch.setattr(handle, "UNKNOWN_MAX", 2)
    app, running, most = App("/nonexistent/x.db"), [0], [0]

    @app.on(app.log("orders"), start="first", concurrency=8)
    async def slow(event: Any, ctx: Any) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(1)
        running[0] -= 1

    with Harness(app) as harness:
        app.log("orders").append_many([{"type": "t", "data": "x" * 5_000, "key": f"k{n}"} for n in range(40)])
        harness.advance("1m")
    assert most == [8]
