"""Appends that share a commit, appends that need no other thread, and the write-ahead log they leave behind."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from redrive import App, IdConflict, VersionConflict
from redrive.draft import draft
from redrive.errors import StoreError
from redrive.observe.signals import Appended
from redrive.settings import Settings
from redrive.sources import answers
from redrive.store import writer
from redrive.store.sqlite.connection import ROLLBACK
from redrive.testing.failpoints import failpoint


def test_a_group_counts_positions_and_versions_one_by_one(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    logs = [app.log("orders"), app.log("bills")]

    async def produce(n: int) -> Any:
        return await logs[n % 2].append_async("made", {"n": n}, key=None if n % 5 == 0 else f"k{n % 3}")

    async def main() -> list[Any]:
        return await asyncio.gather(*(produce(n) for n in range(300)))

    told = asyncio.run(main())
    stored = [event for log in logs for event in log.read()]
    assert sorted(event.position for event in stored) == list(range(1, 301))
    assert {event.id: event for event in stored} == {event.id: event for event in told}
    for log in logs:
        for key in ("k0", "k1", "k2"):
            events = log.read_key(key)
            assert [event.version for event in events] == list(range(1, len(events) + 1))
            assert [event.position for event in events] == sorted(event.position for event in events)
    app.close()


def produced(app: App, count: int) -> tuple[list[Any], list[int]]:
    """What so many producers get that ask in the same round of the loop, and how many appends were told at a time."""
    told: list[int] = []
    app.listen(lambda batch: told.extend(signal.count for signal in batch if isinstance(signal, Appended)))

    async def main() -> list[Any]:
        log = app.log("orders")
        return await asyncio.gather(*(log.append_async("made", n, key=f"k{n % 7}") for n in range(count)))

    events = asyncio.run(main())
    app.runtime.signals.flush(30)
    return events, told


def test_what_is_asked_for_in_one_round_of_the_loop_is_committed_and_told_at_once(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    commits: list[None] = []
    with failpoint("append.committed", lambda: commits.append(None)):
        events, told = produced(app, 300)
    assert [event.data for event in events] == [event.data for event in app.log("orders").read()] == [*range(300)]
    assert (len(commits), told) == (1, [300])
    app.close()


def test_a_commit_has_its_limit_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (answers, writer):
        monkeypatch.setattr(module, "APPEND_GROUP_MAX", 64)
    app = App(str(tmp_path / "shop.db"))
    events, told = produced(app, 300)
    assert [event.position for event in events] == [*range(1, 301)]
    assert told == [64, 64, 64, 64, 44]
    app.close()


def test_each_who_asked_in_a_round_is_refused_for_a_reason_of_its_own(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    log = app.log("orders")
    log.append("made", 0, key="a", id="x")

    async def main() -> list[Any]:
        given: list[dict[str, Any]] = [{"id": "x"}, {"expected_version": 7}, {"expected_version": 1}, {}]
        return await asyncio.gather(
            *(log.append_async("made", 1, key="a", **one) for one in given), return_exceptions=True
        )

    taken, late, right, plain = asyncio.run(main())
    assert isinstance(taken, IdConflict) and isinstance(late, VersionConflict)
    assert (right.version, plain.version) == (2, 3)
    assert [event.version for event in log.read()] == [1, 2, 3]
    app.close()


def test_who_asks_a_store_that_is_closed_before_the_round_is_over_is_told(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    log = app.log("orders")

    async def main() -> list[Any]:
        waiting = [asyncio.ensure_future(log.append_async("made", n)) for n in range(3)]
        await asyncio.sleep(0)  # they have asked, and nothing is sent yet
        app.runtime.store.close()
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(error) for error in asyncio.run(main())] == [StoreError] * 3
    assert App(str(tmp_path / "shop.db")).log("orders").read_key("made") == []


def test_an_id_given_twice_in_one_list_is_one_event(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    same = {"type": "paid", "data": 1, "key": "a", "id": "x"}
    first, other, again = orders.append_many([same, {"type": "paid", "data": 2, "key": "a"}, same])
    assert (first, first.version, other.version) == (again, 1, 2)
    assert [event.position for event in orders.read()] == [1, 2]
    with pytest.raises(IdConflict):
        orders.append_many([{"type": "paid", "key": "a"}, same | {"data": 3}])
    with pytest.raises(VersionConflict):
        orders.append_many([{"type": "paid", "key": "a"}, {"type": "paid", "key": "a", "expected_version": 2}])
    assert len(list(orders.read())) == 2
    app.close()


def versions_are_whole(app: App) -> bool:
    by_key: dict[str | None, list[int | None]] = {}
    for event in app.log("orders").read():
        by_key.setdefault(event.key, []).append(event.version)
    return all(found == [*range(1, len(found) + 1)] for found in by_key.values())


def test_versions_that_are_remembered_hold_only_while_nobody_else_appends(tmp_path: Path) -> None:
    one, other = App(str(tmp_path / "shop.db")), App(str(tmp_path / "shop.db"))
    batch = [{"type": "paid", "key": key} for key in "abca"]
    for app in (one, one, other, one, other, other, one):
        assert len(app.log("orders").append_many(batch)) == 4
        if app is other:
            app.log("orders").append("paid", key="a")
        with app.transaction() as tx:
            for key in "bc":
                app.log("orders").append("paid", key=key, tx=tx)
    assert versions_are_whole(one)
    assert [event.version for event in one.log("orders").read_key("a")] == [*range(1, 18)]
    one.close()
    other.close()


@pytest.mark.parametrize("ends", ["by an error", "by itself"])
def test_versions_that_were_counted_in_vain_are_forgotten(tmp_path: Path, ends: str) -> None:
    app, other = App(str(tmp_path / "shop.db")), App(str(tmp_path / "shop.db"))
    store: Any = app.runtime.store
    drafts = [draft(app.runtime.types, app.runtime.env, "paid", key=key) for key in "ab"]

    def append_in_vain() -> None:
        with store.transaction() as tx:
            assert [row[4] for row in tx.logs.append("orders", drafts)[0]] == [1, 1]
            if ends == "by an error":
                raise KeyError
            tx.control(ROLLBACK)  # as SQLite does when the disk is full

    with pytest.raises((StoreError, KeyError)):
        append_in_vain()
    other.log("orders").append_many([{"type": "paid", "key": key} for key in "cd"])  # in the places of those two
    app.log("orders").append_many([{"type": "paid", "key": key} for key in "ab"])
    assert versions_are_whole(app)
    app.close()
    other.close()


def test_an_append_needs_no_other_thread_unless_somebody_else_writes(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    where: list[str] = []

    def note() -> None:
        where.append(threading.current_thread().name)

    with failpoint("append.begun", note):
        orders.append("paid", {"n": 1})
    with failpoint("append.begun", note):
        with app.transaction():
            waiting = threading.Thread(target=orders.append, args=("paid", {"n": 2}))
            waiting.start()
            waiting.join(0.05)
            assert waiting.is_alive()
        waiting.join()
    assert where[0] == threading.current_thread().name
    assert where[1].startswith("redrive-writer")
    assert [event.data["n"] for event in orders.read()] == [1, 2]
    app.close()


def test_the_write_ahead_log_is_copied_back_and_used_again(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"), settings=Settings(checkpoint_pages=50))
    orders = app.log("orders")
    for n in range(400):  # five pages each
        orders.append("paid", {"n": n}, key=str(n))
    assert 50 * 4096 < (tmp_path / "shop.db-wal").stat().st_size < 200 * 4096
    app.close()
    assert len(list(App(str(tmp_path / "shop.db")).log("orders").read())) == 400


def test_an_interrupted_append_leaves_no_transaction_open(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    for place in ("append.begun", "append.before_commit"):
        with failpoint(place, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            orders.append("paid", {})
    assert orders.append("paid", {}).position == 1
    app.close()
