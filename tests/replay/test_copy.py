"""Moving to another store: everything arrives, a kill in the middle costs nothing, and nobody uses half a copy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from redrive import App, UsageError
from redrive.replay.causes import note
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
from redrive.testing import Harness
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
    bank.harness.restart()  # stopped; the next run would start it again
    return Operator(bank.app.runtime.store, bank.harness.env)


def content(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, read by other statements than those that copy."""
    found = {}
    with store.reading() as tx:
        on_postgres = not isinstance(store, SqliteStore) and "postgresql" in store.url
        for name in [*(table.name for table in TABLES), "letter_counts", "lanes", "causes"]:
            cursor = tx.connection.execute(f"SELECT * FROM {'redrive.' if on_postgres else 'redrive_'}{name}")
            columns = [column[0] for column in cursor.description]
            kept = [at for at, column in enumerate(columns) if name != "progress" or column not in LEASED]
            rows = [tuple(row[at] for at in kept) for row in cursor.fetchall()]
            found[name] = sorted(rows, key=lambda row: [(value is not None, value) for value in row])
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
                number = desk.bulk.begin("replay", letters, "fixed")
                if dice.randrange(3):  # else it is left as if its command had been killed
                    desk.bulk.ask(number, lambda rows, ticket: desk.letters.replay(rows, "fixed", within=ticket))
                if dice.randrange(3):
                    bank.run()
            case 11:
                action = dice.choice(["pause", "resume", "note", "reset", "skip"])
                _operate(bank, desk, action, step)
    desk.holds.hold("remind", "moves with the store", prefix="nobody/")
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
        note(desk.operator, letters[0].fingerprint, f"seen at {step}")


@pytest.mark.parametrize("seed", range(4))
def test_everything_arrives_and_the_ledger_says_the_same(bank: Any, place: Place, seed: int) -> None:
    live(bank, seed)
    written = source(bank).store
    with written.transaction() as tx:  # as if some had named a dependency, and been replayed automatically
        letters = "redrive_letters" if isinstance(written, SqliteStore) else "redrive.letters"
        tx.execute(f"UPDATE {letters} SET dependency = type, auto_replays = position % 3 WHERE position % 2 = 0")
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


@pytest.mark.parametrize("seed", range(2))
def test_a_copy_that_is_killed_goes_on_where_it_was(
    bank: Any, place: Place, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(bank, 7)
    old = content(source(bank).store)
    monkeypatch.setattr(pages, "PAGE", 7)
    done, kills, dice, result = [0], 0, random.Random(seed), None
    while result is None:
        try:
            with failpoint("operator.before_commit", FailpointHit, at=dice.randrange(1, 16)):
                result = move(bank, place, tables_moved=True, told=lambda there, total: done.append(there))
        except FailpointHit:
            kills += 1
    assert kills >= 3 and result.resumed and done == sorted(done), "rows are not copied twice"
    with closing(place.open()) as store:
        new = content(store)
        assert new | {"audit": new["audit"][:-1]} == old


def test_half_a_copy_is_of_no_use_to_anybody(bank: Any, place: Place) -> None:
    live(bank, 1)
    with failpoint("operator.before_commit", FailpointHit, at=5), pytest.raises(FailpointHit):
        move(bank, place)
    with closing(App(place.address)) as app:
        with pytest.raises(UsageError, match="run the same `redrive copy` again"):
            app.log("deposits").append("deposited", {"cents": 1})
        with pytest.raises(UsageError, match="is not finished"):
            app.operate().status()
    move(bank, place)
    with closing(App(place.address)) as app:
        assert app.operate().status()


def test_what_is_copied_runs_on_without_a_doubled_or_a_lost_event(bank: Any, place: Place) -> None:
    live(bank, 3)
    for subscription in ("remind", "balances"):
        bank.desk.subscriptions.resume(subscription)
    bank.run()
    waiting = bank.deposit("waiting", 5)
    highest = bank.harness.query("SELECT max(id) FROM redrive_letters")[0][0]
    last = max(event.position for log in (bank.deposits, bank.letters_sent) for event in log.read())
    emitted = len(list(bank.letters_sent.read()))
    epochs = dict(bank.harness.query("SELECT member, epoch FROM redrive_progress"))
    move(bank, place, tables_moved=True)
    moved = type(bank)(place.address)
    with moved.harness, moved.app.transaction() as tx:
        tx.execute("CREATE TABLE balances (account TEXT PRIMARY KEY, cents INTEGER NOT NULL)")
        rows = bank.harness.query("SELECT account, cents FROM balances")
        tx.executemany("INSERT INTO balances VALUES (?, ?)", rows)
    with closing(place.open()) as store, store.reading() as reading:
        assert {row[0]: row[4] for row in reading.sql.all("copy_progress", (-1, 10))} == epochs, "they never restart"
    moved = type(bank)(place.address)
    with moved.harness:
        moved.bad |= bank.bad
        first = moved.deposit("new", 7)
        assert first > last, "positions are never given twice"
        moved.deposit("new", 7, "poison")
        moved.run()
        assert {position for _, position, _ in moved.calls} == {waiting, first}
        assert moved.balances() == bank.balances() | {"new": 7, "waiting": 5}
        assert len(list(moved.letters_sent.read())) == emitted + 4, "two functions, two events"
        assert all(letter.id > highest for letter in moved.desk.letters.list() if letter.position > first)
        moved.check_sound()
        assert moved.desk.verify_audit().sound


def test_a_projection_waits_for_its_tables(bank: Any, place: Place) -> None:
    live(bank, 5)
    assert move(bank, place).rebuild == ("balances",)
    moved = type(bank)(place.address)
    with moved.harness:
        moved.bad |= bank.bad
        with pytest.raises(UsageError, match="`redrive rebuild balances --app MODULE:APP` fills it from the log"):
            moved.run()
        before = list(moved.letters_sent.read())
        moved.desk.reset("balances", "moved to another store")
        moved.run()
        assert moved.balances() == bank.balances()
        assert list(moved.letters_sent.read()) == before, "nothing is emitted again"
        moved.check_sound()


def test_a_worker_or_a_standby_at_the_source_is_refused(bank: Any, place: Place) -> None:
    bank.deposit("a", 1)
    bank.run()
    with closing(place.open()) as store, pytest.raises(UsageError, match="stop every worker and producer first"):
        copy(Operator(bank.app.runtime.store, bank.harness.env), Operator(store, FakeEnv()), lease=LEASE)
    with closing(place.open()) as store, store.reading() as tx:
        assert cursor_of(tx) is None


def test_copy_stops_if_a_worker_has_started_meanwhile(bank: Any, place: Place) -> None:
    """It owns nothing yet, so that neither marks nor counts of the source differ."""
    live(bank, 2)
    operator = source(bank)
    with ExitStack() as stack:

        def start(done: int, total: int) -> None:
            if done == total:
                env = FakeEnv(bank.harness.clock, owner="second-1")
                stack.enter_context(Harness(App("unused.db"), bank.harness.path, env=env)).run_until_idle()

        with closing(place.open()) as store, pytest.raises(UsageError, match="works on the source: stop every worker"):
            copy(operator, Operator(store, FakeEnv()), lease=LEASE, told=start)
    with closing(App(place.address)) as app, pytest.raises(UsageError, match="is not finished"):
        app.operate().status()


def test_one_that_has_died_is_no_worker_any_more_and_its_crash_is_remembered(bank: Any, place: Place) -> None:
    bank.deposit("a", 1)
    bank.run()
    bank.harness.crash()
    store = bank.app.runtime.store
    with closing(place.open()) as target:
        copy(Operator(store, bank.harness.env), Operator(target, FakeEnv()), lease=LEASE)
        with target.reading() as tx:
            assert [(row.owner, row.lease_until, row.unclean) for row in tx.progress.members(1)] == [(None, 0.0, 1)]


def test_a_target_that_holds_anything_is_refused_and_left_alone(bank: Any, place: Place) -> None:
    bank.deposit("a", 1)
    with closing(App(place.address)) as app:
        app.log("mine").append("thing", 1)
    with pytest.raises(UsageError, match=r"is not empty: it holds 1 logs, 1 events"):
        move(bank, place)
    with closing(App(place.address)) as app:
        assert [event.type for event in app.log("mine").read()] == ["thing"]


def test_a_source_that_has_moved_on_is_refused(bank: Any, place: Place) -> None:
    live(bank, 2)
    with failpoint("operator.before_commit", FailpointHit, at=4), pytest.raises(FailpointHit):
        move(bank, place)
    bank.deposit("a", 1)
    with pytest.raises(UsageError, match="the source has changed since this copy was begun"):
        move(bank, place)


def test_a_source_that_is_written_to_while_it_is_copied_is_refused(bank: Any, place: Place) -> None:
    live(bank, 2)
    late = iter([None])

    def append(done: int, total: int) -> None:
        if next(late, 0) is None:
            bank.deposit("a", 1)

    with pytest.raises(UsageError, match="the source has changed since this copy was begun"):
        move(bank, place, told=append)


def test_a_target_that_somebody_else_writes_to_stays_closed(bank: Any, place: Place) -> None:
    live(bank, 2)
    with failpoint("operator.before_commit", FailpointHit, at=12), pytest.raises(FailpointHit):
        move(bank, place)
    with closing(place.open()) as store, store.transaction() as tx:
        tx.books.ask(1, "reopen", 10**6, 0, "eve", "", 0.0)
    with pytest.raises(UsageError, match=r"somebody else has written to the target \(controls\)"):
        move(bank, place)


def test_books_that_do_not_add_up_are_not_copied(bank: Any, place: Place) -> None:
    live(bank, 2)
    operator = source(bank)
    with operator.store.transaction() as tx:
        tx.sql.run("prune_applied_add", {"applied": 1, "subscription": 1})
    with pytest.raises(UsageError, match="the source does not add up"):
        move(bank, place)


def test_a_second_call_finds_that_all_is_there(bank: Any, place: Place) -> None:
    live(bank, 2)
    first = move(bank, place)
    again = move(bank, place)
    assert first.copied > 0 and (again.copied, again.rows, again.accounts) == (0, first.rows, first.accounts)


def test_a_copy_goes_on_in_the_way_it_was_begun(bank: Any, place: Place) -> None:
    live(bank, 2)
    with failpoint("operator.before_commit", FailpointHit, at=4), pytest.raises(FailpointHit):
        move(bank, place)
    with pytest.raises(UsageError, match="begun without --tables-moved"):
        move(bank, place, tables_moved=True)


@pytest.mark.sqlite  # a text that Postgres could not have stored
def test_a_text_that_the_target_cannot_store_is_named(bank: Any, place: Place) -> None:
    bank.deposit("a", 1, "poison")
    bank.run()
    note(bank.desk.operator, bank.desk.letters.list()[0].fingerprint, "a\0b")
    with pytest.raises(UsageError, match=r"table notes, above \[-1\]: Postgres cannot store U\+0000"):
        move(bank, place)


def test_numbers_go_on_where_all_rows_are_gone(bank: Any, place: Place) -> None:
    bank.deposit("a", 1)
    operator = source(bank)
    with operator.store.transaction() as tx:
        tx.books.ask(1, "pause", 0, 0, "ada", "", 0.0)
        ((number, *_),) = tx.books.asked(1)
        tx.books.answered(number)
    move(bank, place)
    with closing(place.open()) as store, store.transaction() as tx:
        tx.books.ask(1, "pause", 0, 0, "ada", "", 0.0)
        assert [row[0] for row in tx.books.asked(1)] == [number + 1]


def test_every_table_is_copied_or_made_anew(bank: Any) -> None:
    """Whoever adds a table decides what becomes of it here."""
    derived = {"letter_counts", "lanes", "causes", "spans", "keys", "keyed", "sieve", "audit_end"}
    left_behind = {"workers", "breakers", "probes", "buckets", "changes"}  # of the moment: they are made anew
    with bank.app.runtime.store.reading() as tx:
        on_postgres = "postgresql" in bank.app.runtime.store.url
        found = tx.connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'redrive'"
            if on_postgres
            else "SELECT substr(name, 9) FROM sqlite_master WHERE type = 'table' AND name LIKE 'redrive_%'"
        ).fetchall()
    names = {name for (name,) in found}
    assert names <= {table.name for table in TABLES} | derived | left_behind
    assert {table.name for table in TABLES} <= names
