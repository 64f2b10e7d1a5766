"""What nobody has synced is on its way to the disk before a checkpoint waits for it."""

from __future__ import annotations

import os
import queue
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from redrive import App, failpoints
from redrive.settings import Settings
from redrive.store.sqlite import flush

PAGES = 80  # of the WAL, from which on it is checked in


def write(app: App, times: int, *, durable: bool) -> None:
    """Where writing happens: the writer looks behind each piece of work whether there is something to check in."""
    store: Any = app.runtime.store

    def work() -> None:
        with store.transaction(durable=durable) as tx:
            tx.execute("INSERT INTO t VALUES (zeroblob(3000))")

    for _ in range(times):
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        store.submit(work, partial(_put, answers))
        assert answers.get(timeout=30) is None


def _put(answers: queue.SimpleQueue[Any], result: Any, error: BaseException | None) -> None:
    answers.put(error)


@pytest.mark.sqlite(reason="a server syncs by itself")
def test_the_disk_has_the_wal_before_a_checkpoint_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    synced, before = threading.Event(), failpoints.armed()

    def sync(number: int) -> None:
        os.fdatasync(number)
        happened.append(threading.current_thread().name.partition(" ")[0])
        synced.set()

    def note(name: str) -> None:
        if name == "checkpoint.begun":
            assert synced.wait(30), "nobody was asked to sync"
            happened.append(name)

    monkeypatch.setattr(flush, "_sync", sync)
    app = App(str(tmp_path / "shop.db"), settings=Settings(checkpoint_pages=PAGES))
    with app.transaction() as tx:
        tx.execute("CREATE TABLE t (x BLOB)")
    write(app, PAGES, durable=True)  # the tables are checked in, synced by the commits that made them
    assert happened == []
    failpoints.arm(note)
    try:
        write(app, 2 * PAGES, durable=False)
    finally:
        failpoints.arm(before)
    app.close()
    assert (happened[0], "checkpoint.begun" in happened) == ("redrive-flush", True)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("redrive-flush")] == []


@pytest.mark.sqlite(reason="a server syncs by itself")
def test_what_is_synced_by_its_commit_is_not_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(flush, "_sync", found.append)
    app = App(str(tmp_path / "shop.db"), settings=Settings(checkpoint_pages=PAGES))
    with app.transaction() as tx:
        tx.execute("CREATE TABLE t (x BLOB)")
    write(app, 200, durable=True)
    app.close()
    assert found == []
