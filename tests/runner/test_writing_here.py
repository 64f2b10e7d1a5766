"""Jobs on the writer's thread, or on the thread of who asks if nobody is before it: always one at a time, in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import StoreError
from redrive.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "shop.db"), checkpoint_pages=8)
    yield store
    store.close()


class Jobs:
    """Jobs that say in which thread they ran, and after which others."""

    def __init__(self, store: SqliteStore) -> None:
        self.store, self.ran = store, list[tuple[str, int]]()
        self._running = threading.Lock()
        self._over: dict[str, threading.Event] = {}

    def submit(self, name: str, *, here: bool, until: threading.Event | None = None) -> threading.Event:
        begun = threading.Event()
        self._over[name] = threading.Event()

        def job() -> None:
            assert self._running.acquire(blocking=False), "two at a time"
            begun.set()
            assert until is None or until.wait(30)
            self.ran.append((name, threading.get_ident()))
            self._running.release()

        def done(result: Any, error: BaseException | None) -> None:
            assert error is None, error
            self._over[name].set()

        self.store.submit(job, done, here=here)
        return begun

    def wait(self) -> list[str]:
        assert all(over.wait(30) for over in self._over.values())
        return [name for name, _ in self.ran]


def settled(store: SqliteStore) -> None:
    """The writer's thread has nothing to do and knows it."""
    assert store._writer is not None
    while store._writer.is_busy:
        threading.Event().wait(0.001)


def test_who_may_do_it_here_does_if_nobody_is_before_it(store: SqliteStore) -> None:
    settled(store)
    jobs, me = Jobs(store), threading.get_ident()
    jobs.submit("here", here=True)
    assert jobs.ran == [("here", me)], "it is over when the call returns"
    jobs.submit("there", here=False)
    assert jobs.wait() == ["here", "there"]
    assert jobs.ran[1][1] != me


def test_who_meets_another_queues_up_behind_it(store: SqliteStore) -> None:
    jobs, go_on = Jobs(store), threading.Event()
    assert jobs.submit("first", here=False, until=go_on).wait(30)
    jobs.submit("second", here=True)
    assert jobs.ran == []
    go_on.set()
    assert jobs.wait() == ["first", "second"]
    assert jobs.ran[0][1] == jobs.ran[1][1], "both on the writer's thread"


def test_the_writers_thread_waits_for_who_does_it_elsewhere(store: SqliteStore) -> None:
    settled(store)
    jobs, go_on = Jobs(store), threading.Event()
    other = threading.Thread(target=lambda: jobs.submit("elsewhere", here=True, until=go_on))
    other.start()
    while not jobs._running.locked():
        threading.Event().wait(0.001)
    jobs.submit("there", here=False)
    assert jobs.ran == []
    go_on.set()
    other.join(30)
    assert jobs.wait() == ["elsewhere", "there"]


def test_what_is_written_here_is_checkpointed_all_the_same(store: SqliteStore, tmp_path: Path) -> None:
    """The thread that looks after the file is told when there is something to look at."""
    settled(store)
    before = store._checkpointed

    def write() -> None:
        with store.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS seen (n)")
            tx.executemany("INSERT INTO seen VALUES (?)", [(n,) for n in range(2_000)])

    store.submit(write, lambda result, error: None, here=True)
    for _ in range(30_000):
        if store._checkpointed > before:
            break
        threading.Event().wait(0.001)
    assert store._checkpointed > before


def test_a_store_that_is_closed_does_nothing_anywhere(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "closed.db"))
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.submit(lambda: None, lambda result, error: None, here=True)


def test_who_closes_the_store_waits_for_what_is_done_elsewhere(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "closing.db"))
    settled(store)
    begun, go_on, closing = threading.Event(), threading.Event(), threading.Event()
    found: list[Any] = []

    def job() -> int:
        begun.set()
        assert go_on.wait(30)
        with store.transaction() as tx:
            return int(tx.execute("SELECT 41 + 1").fetchone()[0])

    def close() -> None:
        closing.set()
        store.close()

    other = threading.Thread(
        target=lambda: store.submit(job, lambda result, error: found.append((result, error)), here=True)
    )
    closer = threading.Thread(target=close)
    other.start()
    assert begun.wait(30)
    closer.start()
    assert closing.wait(30)
    assert store._writer is not None
    store._writer._thread.join(0.2)
    assert store._writer._thread.is_alive(), "it waits for the job"
    go_on.set()
    closer.join(30)
    other.join(30)
    assert found == [(42, None)]


def test_who_closes_the_store_from_within_does_not_wait_for_itself(tmp_path: Path) -> None:
    store, found = SqliteStore(str(tmp_path / "within.db")), list[Any]()
    settled(store)
    store.submit(store._writer.stop, lambda result, error: found.append(error), here=True)  # type: ignore[union-attr]
    assert found == [None]
    store.close()
