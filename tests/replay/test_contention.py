"""Another process holds the write lock of the file: an operator's command waits, tries again, or says who it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.clock import Env
from redrive.errors import StoreBusy
from redrive.replay.bulk import BulkDesk
from redrive.replay.deed import Operator, Receipt, Ticket
from redrive.replay.letters import LetterDesk
from redrive.store.letters import NewLetter
from redrive.store.port import LetterRow
from redrive.store.sqlite.store import SqliteStore

HOLD = """import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
"""


class Stranger:
    """A process that holds the write lock until it is told to let go."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", HOLD, str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None and self._process.stdout.readline() == b"held\n"
        self.pid = self._process.pid

    def let_go(self) -> None:
        self._process.communicate()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "shop.db"), busy_timeout=0.01)
    with store.transaction() as tx:
        row = tx.progress.add(("charge", "handler", "orders", "key"), 0, None, 0.0)
        new = [NewLetter((n, f"e{n}", "order", f"k{n}"), f"k{n}", "dead", "rejected") for n in range(1, 11)]
        tx.letters.add(row.id, new, 0.0)
    yield store
    store.close()


def desk_of(store: SqliteStore, patience: float) -> LetterDesk:
    return LetterDesk(store, Env(), patience=patience)


def test_operator_waits_until_the_write_lock_is_free(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger, waited = Stranger(tmp_path / "shop.db"), list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            stranger.let_go()

    monkeypatch.setattr("redrive.replay.deed.sleep", sleep)
    receipt = desk_of(store, 60.0).discard([1, 2], "given up")
    assert receipt.done == (1, 2)
    assert len(waited) == 3


def test_operator_learns_which_process_holds_the_write_lock(store: SqliteStore, tmp_path: Path) -> None:
    stranger = Stranger(tmp_path / "shop.db")
    with pytest.raises(StoreBusy) as found:
        desk_of(store, 0.0).discard([1], "given up")
    stranger.let_go()
    assert "another process holds the write lock" in str(found.value)
    assert f"process {stranger.pid} (" in str(found.value)
    assert "end its transaction" in str(found.value)


@pytest.mark.parametrize("action", ["replay", "discard"])
def test_operation_does_a_step_again_that_others_prevented(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr("redrive.replay.deed.sleep", lambda seconds: None)
    monkeypatch.setattr("redrive.replay.bulk.CHUNK_MAX", 3)
    desk = desk_of(store, 60.0)
    bulk = BulkDesk(Operator(store, Env(), patience=60.0), desk)
    number, calls = bulk.begin(action, desk.list(), "why"), 0

    def deed(rows: Any, ticket: Ticket) -> Receipt:
        nonlocal calls
        calls += 1
        if calls % 2 == 0:
            raise StoreBusy("another process holds the write lock")
        done = (
            desk.replay(rows, "why", within=ticket) if action == "replay" else desk.discard(rows, "why", within=ticket)
        )
        if calls == 3:  # it was committed, and then something went wrong
            raise StoreBusy("another process holds the write lock")
        return done

    bulk.ask(number, deed)
    found = bulk.get(number)
    assert found.state == ("running" if action == "replay" else "done")
    assert (found.selected, found.unasked, found.skipped) == (10, 0, 0)
    assert found.waiting + found.applied == 10


def test_operation_is_interrupted_when_the_stated_time_is_over(store: SqliteStore) -> None:
    desk = desk_of(store, 0.0)
    bulk = BulkDesk(Operator(store, Env(), patience=0.0), desk)
    number = bulk.begin("discard", desk.list(), "why")

    def deed(rows: list[LetterRow], ticket: Ticket) -> Receipt:
        raise StoreBusy("another process holds the write lock")

    with pytest.raises(StoreBusy):
        bulk.ask(number, deed)  # type: ignore[arg-type]
    assert bulk.get(number).state == "interrupted"


def test_transaction_takes_no_more_letters_when_its_time_is_over(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten letters, a transaction each: the time for one is over after its first letter."""
    monkeypatch.setattr("redrive.replay.letters.CHUNK_TIME_MAX", 0.0)
    with store.reading() as tx:
        before = tx.progress.get(1).parked_version
    receipt = desk_of(store, 0.0).discard(range(1, 11), "given up")
    with store.reading() as tx:
        assert tx.progress.get(1).parked_version == before + 10
    assert receipt.done == tuple(range(1, 11))


def test_cancel_takes_back_a_large_operation_in_several_transactions(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.replay.bulk.FROZEN_MAX", 4)
    monkeypatch.setattr("redrive.replay.bulk.CHUNK_TIME_MAX", 0.0)
    desk = desk_of(store, 0.0)
    bulk = BulkDesk(Operator(store, Env()), desk)
    number = bulk.begin("replay", desk.list(), "why", rate=1.0)
    assert bulk.get(number).selected == 10
    asked: list[int] = []

    def deed(rows: Any, ticket: Ticket) -> Receipt:
        if asked:
            raise StoreBusy("no more")
        asked.extend(row.id for row in rows[:3])
        return desk.replay(rows[:3], "why", within=ticket)

    monkeypatch.setattr("redrive.replay.bulk.CHUNK_MAX", 3)
    with pytest.raises(StoreBusy):
        bulk.ask(number, deed)
    assert (bulk.get(number).waiting, bulk.get(number).unasked) == (3, 7)
    found = bulk.cancel(number)
    assert (found.state, found.skipped, found.waiting, found.unasked) == ("cancelled", 10, 0, 0)
    assert {letter.state for letter in desk.list()} == {"dead"} and len(desk.list()) == 10
