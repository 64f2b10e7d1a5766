"""What every contract of a store begins with: a store of its own, events to put in, a mini `raises`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from redrive.draft import draft
from redrive.event import NewEvent
from redrive.policy.lanes import Head
from redrive.policy.outcome import Failure
from redrive.store.letters import NewLetter
from redrive.store.port import Store, StoreTx, Subscribed
from redrive.testing.fakes import FakeEnv
from redrive.testing.scratch import ROOM, in_memory
from redrive.types import EventTypes

E = TypeVar("E", bound=BaseException)

NOW = 1_767_225_600.0
FAILURE = Failure("OSError", "it failed", "a traceback", "0123456789ab")


class StoreTests:
    """The common part: `self.store` is open and empty when a test begins."""

    store: Store

    def make_store(self, folder: Path) -> Store:
        """Open the store under test. Called again with the same folder, it must find what was committed."""
        raise AssertionError("a store's contract needs make_store(self, folder)")

    def setup_method(self) -> None:
        """Called by pytest before each test."""
        self._folder = Path(tempfile.mkdtemp(prefix="redrive-", dir=in_memory(ROOM)))
        self._env, self._types = FakeEnv(), EventTypes()
        self.store = self.make_store(self._folder)

    def teardown_method(self) -> None:
        """Called by pytest after each test."""
        self.store.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _reopen(self) -> None:
        self.store.close()
        self.store = self.make_store(self._folder)

    def _new(self, type: str = "order.placed", data: Any = None, **rest: Any) -> NewEvent:
        return draft(self._types, self._env, type, data, **rest)

    def _put(self, *events: NewEvent, log: str = "orders") -> list[int]:
        """Append; the positions."""
        with self.store.transaction() as tx:
            return [row[0] for row in tx.logs.append(log, events)[0]]

    def _subscribe(self, name: str = "charge", position: int = 0) -> Subscribed:
        with self.store.transaction() as tx:
            return tx.progress.add((name, "handler", "orders", "key"), position, None, NOW)


def take(tx: StoreTx, row: Subscribed, owner: str = "me") -> int:
    """Become the owner; the new epoch."""
    before = tx.progress.get(row.id)
    values = {
        "member": row.id, "epoch": before.epoch, "owner": owner, "until": NOW + 10, "now": NOW, "boot": "boot",
        "sure": 1,
    }  # fmt: skip
    taken = tx.sql.one("lease_take", values)
    assert taken is not None
    return int(taken[0])


def park(tx: StoreTx, row: Subscribed, position: int, lane: str | None, **rest: Any) -> int:
    """Hold an event as a failing letter, due at NOW + 1; the letter."""
    values: dict[str, Any] = {
        "state": "retrying", "reason": "failing", "failure": FAILURE, "attempts": 1, "due_at": NOW + 1, "delay": 1.0,
        **rest,
    }  # fmt: skip
    (letter,) = tx.letters.add(
        row.id, [NewLetter((position, f"id-{position}", "order.placed", lane), lane, **values)], NOW
    )
    return letter


def head_of(tx: StoreTx, row: Subscribed, lane: str) -> Head:
    """The head of a lane that has one."""
    head = tx.letters.head(row.id, lane)
    assert head is not None
    return head


def expect(kind: type[E], call: Callable[[], object]) -> E:
    """The exception of this kind that the call raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}")
