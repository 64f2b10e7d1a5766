"""A small bank whose functions fail on demand, for tests of what operators do.

Every test runs on each store: where it is Postgres, a database takes the place of each file that a test names or a
harness makes, and has views that are called as redrive's tables are on SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive import App, Ctx, Event, Ignore, Reject, Tx, no_retry
from redrive.replay.operations import Operations
from redrive.store.postgres import PostgresStore
from redrive.testing import Harness
from redrive.testing.servers import Databases

VIEWS = """DO $$ DECLARE name text; BEGIN
FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'redrive' UNION SELECT 'done' LOOP
    EXECUTE format('CREATE VIEW redrive_%1$s AS SELECT * FROM redrive.%1$I', name);
END LOOP; END $$"""
BALANCES = "account TEXT PRIMARY KEY, cents INTEGER NOT NULL"


class Bank:
    """`balances` is a projection, `remind` a handler; an event is rejected while its note is in `bad`."""

    def __init__(self, store: str | None = None) -> None:
        self.app = App("unused.db")
        self.deposits, self.letters_sent = self.app.log("deposits"), self.app.log("letters_sent")
        self.bad = {"poison"}
        self.calls: list[tuple[str, int, str]] = []  # (function, position, idempotency key)
        bank = self

        @self.app.projection(self.deposits, tables={"balances": BALANCES}, retry=no_retry)
        def balances(event: Event[Any], tx: Tx) -> None:
            bank.check(event)
            tx.execute(
                "INSERT INTO balances VALUES (:a, :c) ON CONFLICT (account) DO UPDATE SET cents = balances.cents + :c",
                {"a": event.key or "", "c": event.data["cents"]},
            )
            tx.emit(bank.letters_sent, "balance.changed", {"of": event.position})
            bank.calls.append(("balances", event.position, ""))  # last: the first emission runs it once more

        @self.app.on(self.deposits, start="first", retry=no_retry)
        def remind(event: Event[Any], ctx: Ctx) -> None:
            bank.check(event)
            ctx.state["seen"] = [*ctx.state.get("seen", []), event.position]
            bank.calls.append(("remind", event.position, ctx.idempotency_key))
            ctx.emit(bank.letters_sent, "reminded", {"of": event.position})

        self.harness = Harness(self.app, store)

    def check(self, event: Event[Any]) -> None:
        """Reject or ignore what is marked."""
        note = event.data.get("note", "")
        if note in self.bad:
            raise Reject(f"note {note}")
        if note == "ignore":
            raise Ignore("nothing to do")

    @property
    def desk(self) -> Operations:
        """An operator's hand."""
        return self.app.operate("ada")

    def deposit(self, account: str | None, cents: int, note: str = "") -> int:
        """Append and return the position."""
        return self.harness.append(self.deposits, "deposited", {"cents": cents, "note": note}, key=account).position

    def run(self) -> None:
        """Until idle."""
        self.harness.run_until_idle()

    def balances(self) -> dict[str, int]:
        """What the projection says."""
        return dict(self.harness.query("SELECT account, cents FROM balances"))

    def letter(self, subscription: str, position: int) -> int:
        """The id of the letter that holds a position, not counting superseded ones."""
        found = self.harness.query(
            "SELECT l.id FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription "
            "WHERE s.name = ? AND l.position = ? AND l.state <> 'superseded'",
            (subscription, position),
        )
        return int(found[0][0])

    def state_of(self, subscription: str, position: int) -> str:
        """The state of that letter."""
        letter = self.desk.letters.get(self.letter(subscription, position))
        assert letter is not None
        return letter.state

    def emitted(self, kind: str) -> list[int]:
        """Positions for which an event of this type was emitted, in order of emission."""
        return [data["of"] for name, data in self.harness.emitted(self.letters_sent) if name == kind]

    def audit(self) -> list[tuple[str, str, str, str]]:
        """(who, action, target, reason) of everything done."""
        rows = self.harness.query("SELECT who, action, target, reason FROM redrive_audit ORDER BY id")
        return [(str(who), str(action), str(target), str(reason)) for who, action, target, reason in rows]

    def check_sound(self) -> None:
        """The ledger has nothing to say."""
        for verdict in self.desk.verify():
            assert verdict.violations == (), verdict


@pytest.fixture(autouse=True)
def _everywhere(backend: str | None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A database for each file: one that is emptied afterwards for the first that nobody named, else another."""
    found: dict[object, str] = {}

    def database(file: object) -> str:
        if file not in found:
            if isinstance(file, Harness) and backend not in found.values():
                found[file] = str(backend)
            else:
                found[file] = databases.make()
                PostgresStore(found[file], inline=True).close()
            with psycopg.connect(found[file], autocommit=True) as connection:
                connection.execute(VIEWS)
        return found[file]

    if backend is not None:
        databases: Databases = request.getfixturevalue("postgres")
        monkeypatch.setattr("redrive.testing.harness.temporary_file", database)
        monkeypatch.setattr("redrive.testing.harness.store_address", database)
    yield
    for url in found.values():
        if url != backend:
            databases.drop(url)


@pytest.fixture
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bank]:
    damaged = "books" in request.fixturenames  # triggers and indexes, too: that store is for nobody else
    bank = Bank(str(tmp_path / "bank.db") if damaged else None)
    with bank.harness:
        yield bank
