"""Moving to another store: everything arrives, a kill in the middle costs nothing, and nobody uses half a copy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from redrive import App, UsageError
from redrive.replay import copy as copying
from redrive.replay.chain import verify_audit
from redrive.replay.copy import Copied, copy
from redrive.replay.deed import Operator
from redrive.replay.ledger import verify
from redrive.runtime import store_address
from redrive.store import copying as pages
from redrive.store.copying import TABLES, cursor_of
from redrive.store.port import Store
from redrive.store.postgres import PostgresStore
from redrive.store.sqlite import SqliteStore
from redrive.testing.failpoints import FailpointHit, failpoint
from redrive.testing.fakes import FakeEnv
from redrive.testing.servers import Databases

LEASE = 10.0
LEASED = {"owner", "lease_until", "lease_set_at", "taken_at"}  # columns of progress that stay behind


class Place:
    """Where to move to: the other kind of store than the bank's."""

    def __init__(self, address: str) -> None:
        self.address = address

    def open(self) -> Store:
        """As a command would."""
        if self.address.startswith("postgresql"):
            return PostgresStore(self.address, inline=True)
        return SqliteStore(self.address, inline=True)


@pytest.fixture
def place(
    backend: str | None, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    monkeypatch.setattr("redrive.testing.harness.store_address", store_address)  # a file is a file here
    if backend is not None:
        yield Place(str(tmp_path / "copy.db"))
        return
    databases: Databases = request.getfixturevalue("postgres")
    url = databases.make()
    yield Place(url)
    databases.drop(url)


def move(bank: Any, place: Place, **options: Any) -> Copied:
    with closing(place.open()) as store:
        return copy(source(bank), Operator(store, FakeEnv(), who="ada"), lease=LEASE, **options)


def source(bank: Any) -> Operator:
    bank.harness.stop()
    return Operator(bank.app.runtime.store, bank.harness.env)


def content(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, read by other statements than those that copy."""
    found = {}
    with store.reading() as tx:
        on_postgres = not isinstance(store, SqliteStore) and "postgresql" in store.url
        for name in [*(table.name for table in TABLES), "letter_counts", "lanes"]:
            cursor = tx.connection.execute(f"SELECT * FROM {'redrive.' if on_postgres else 'redrive_'}{name}")
            columns = [column[0] for column in cursor.description]
            kept = [at for at, column in enumerate(columns) if name != "progress" or column not in LEASED]
            rows = [tuple(row[at] for at in kept) for row in cursor.fetchall()]
            found[name] = sorted(rows, key=repr)
    own = {"format", "compatible_from", "syncs", "copied"}
    found["meta"] = [row for row in found["meta"] if row[0] not in own]
    return found


def live(bank: Any, seed: int, steps: int = 60) -> None:
    """Some days in the life of a bank and of its operators."""
    dice = random.Random(seed)
    desk = bank.desk
    bank.bad.add("late")
    for step in range(steps):
        match dice.randrange(12):
            case 0 | 1 | 2 | 3 | 4 | 5:
                account = dice.choice(["a", "b", "c", "d", "é\u4e2d", None])
                bank.deposit(account, dice.randrange(100), dice.choice(["", "", "", "poison", "late", "ignore"]))
            case 6 | 7:
                bank.run()
            case 8 if letters := desk.letters.list():
                desk.letters.discard(dice.choice(letters).id, "stale")
            case 9 if letters := desk.letters.list():
                desk.letters.edit(dice.choice(letters).id, {"cents": 1, "note": dice.choice(["", "poison"])}, "typo")
            case 10 if letters := desk.letters.list():
                desk.letters.replay([dice.choice(letters).id])
                bank.run()
            case 11:
                action = dice.choice(["pause", "resume", "note", "reset", "skip"])
                _operate(bank, desk, action, step)
    bank.run()


def _operate(bank: Any, desk: Any, action: str, step: int) -> None:
    if action == "pause":
        desk.subscriptions.pause("remind")
    elif action == "resume":
        desk.subscriptions.resume("remind")
    elif action == "reset":
        bank.run()
        desk.reset("balances", f"step {step}")
    elif action == "skip":
        bank.run()
        skipped = bank.deposit("z", 1)
        desk.subscriptions.seek("remind", skipped, "junk")
    elif letters := desk.letters.list():
        desk.shelf.note(letters[0].fingerprint, f"seen at {step}")


@pytest.mark.parametrize("seed", range(4))
def test_everything_arrives_and_the_ledger_says_the_same(bank: Any, place: Place, seed: int) -> None:
    live(bank, seed)
    before = verify(source(bank).store), verify_audit(source(bank).store)
    old = content(source(bank).store)
    result = move(bank, place, tables_moved=True)
    assert list(result.accounts) == before[0]
    with closing(place.open()) as store:
        new = content(store)
        *audit, last = new.pop("audit")
        assert (audit, last[3], last[2]) == (old.pop("audit"), "copy", "ada")
        assert new == old
        assert verify_audit(store).sound and result.audit.rows == before[1].rows + 1
    assert content(source(bank).store) == old | {"audit": audit}, "the source is only read"
