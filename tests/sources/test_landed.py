"""Rows of messages have no versions, those of emissions do; what the log holds already is noticed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from redrive import App, UsageError
from redrive.event import NewEvent, events_of
from redrive.replay.events import Wanted, following, newest
from redrive.replay.ledger import verify
from redrive.replay.prune_events import plan_events, prune_events
from redrive.runner.land import Landing, Repeated
from redrive.sources.port import Message, Plain
from redrive.store import landed
from redrive.store.sqlite.store import SqliteStore


@pytest.fixture
def app(backend: str | None, tmp_path: Path) -> Iterator[App]:
    app = App(backend or str(tmp_path / "x.db"))
    yield app
    app.close()


def event(id: str, key: str | None) -> NewEvent:
    return NewEvent(id, "a", key, 1, 0, None, b"1", None, False)


def land(app: App, *events: NewEvent, is_first: bool = False) -> None:
    store: Any = app.runtime.store
    with store.transaction() as tx:
        if landed.append_new(tx.logs, tx.sql, "x", events, is_first=is_first) is None:
            raise Repeated


def said(rows: Any) -> list[tuple[str, int | None]]:
    return [(row.id, row.version) for row in rows]


def test_what_lands_has_no_version_and_is_found_by_its_key_all_the_same(app: App) -> None:
    """Among events from before that have one, as a log of an older format holds them, and others that are appended."""
    app.log("x").append("a", key="a", id="e1")
    app.log("x").append("a", key="a", id="e2")
    land(app, event("m1", "a"), event("m2", None), event("m3", "b"), is_first=True)
    app.log("x").append("a", key="a", id="e3")
    land(app, event("m4", "a"), is_first=True)
    app.log("y").append("a", key="a", id="other")
    of_a = [("e1", 1), ("e2", 2), ("m1", None), ("e3", 3), ("m4", None)]
    assert said(app.log("x").read_key("a")) == of_a
    assert said(app.log("x").read_key("b")) == [("m3", None)]
    assert [said(app.log("x").read_key("a", after_version=n)) for n in (1, 2, 3)] == [of_a[1:], of_a[2:], of_a[4:]]
    store = app.runtime.store
    for log in ("x", None):
        others = [("other", 1)] if log is None else []
        assert said(newest(store, Wanted(log=log, key="a"), 10)) == of_a + others
        assert said(following(store, Wanted(log=log, key="a"), 1, 3)) == of_a[1:4]
    assert said(newest(store, Wanted(log="x", key="a"), 2)) == of_a[3:]
    assert said(newest(store, Wanted(log="x", key="a", type="b*"), 2)) == []


def test_a_plain_message_is_stored_as_any_other(app: App) -> None:
    plain = [Plain(0, "1", False, "m1", "a", "k", 7, b"1"), Plain(0, "2", False, "m2", "a", None, 8, b"[2]")]
    store: Any = app.runtime.store
    for log, is_plain in (("x", True), ("y", False)):
        with store.transaction() as tx:
            added = landed.append_new(tx.logs, tx.sql, log, plain, is_first=True, is_plain=is_plain)
            assert added is not None
            stored = tx.logs.after(tx.logs.id_of(log), 0, 10)
        assert [(*row[1:8], bytes(row[8])) for row in stored] == [
            ("m1", "a", "k", None, 1, 7, None, b"1"), ("m2", "a", None, None, 1, 8, None, b"[2]")]  # fmt: skip
        events = added.events(plain, app.runtime.types)
        assert events in ([], events_of(stored, app.runtime.types))  # on a server others may number theirs in between
        with store.transaction() as tx:
            assert landed.append_new(tx.logs, tx.sql, log, plain[1:], is_first=False, is_plain=is_plain) is None


def test_a_version_cannot_be_expected_where_messages_land(app: App) -> None:
    app.log("x").append("a", key="a", expected_version=0)
    land(app, event("m1", "a"), is_first=True)
    with pytest.raises(UsageError, match="log 'x': what lands from a broker has no versions"):
        app.log("x").append("a", key="a", expected_version=1)
    with pytest.raises(UsageError, match="log 'x': what lands from a broker has no versions"):
        app.log("x").append_many([{"type": "a", "key": k, "expected_version": 0} for k in "bc"])
    app.log("y").append("a", key="a", expected_version=0)


def test_what_the_log_holds_is_noticed(app: App) -> None:
    land(app, event("e1", "a"), event("e2", "a"), is_first=True)
    for repeated in ([event("e3", "a"), event("e1", "a")], [event("e3", "a"), event("e3", "b")]):
        with pytest.raises(Repeated):
            land(app, *repeated)
    land(app, event("e3", "a"))
    assert said(app.log("x").read()) == [("e1", None), ("e2", None), ("e3", None)]


def test_what_has_landed_may_be_pruned_up_to_the_last(app: App) -> None:
    """No version counts on from it; of what was appended beside it, the newest of a key stays."""
    app.log("x").append("a", key="a", id="e1")
    app.log("x").append("a", key="a", id="e2")
    land(app, event("m1", "a"), event("m2", "b"), event("m3", None), is_first=True)
    land(app, event("m4", "a"))
    store = app.runtime.store
    with store.reading() as tx:
        plan = plan_events(tx, "x", before=1e12, no_rebuild=())
    assert (plan.events, prune_events(store, plan).events) == (4, 4)
    assert said(app.log("x").read()) == [("e2", 2), ("m4", None)]
    assert app.log("x").append("a", key="a").version == 3


def test_what_the_log_has_lost_is_missing_in_the_account(app: App) -> None:
    @app.projection(app.log("x"), tables={"seen": "id TEXT PRIMARY KEY"})
    def see(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (:id)", {"id": event.id})

    land(app, event("m1", "a"), event("m2", "a"), event("m3", "a"), is_first=True)
    app.run(until_idle=True)
    store: Any = app.runtime.store
    assert [account.sound for account in verify(store)] == [True]
    with store.transaction() as tx:
        tx.sql.run("prune_events", {"positions": "[2]"})
    assert [account.sound for account in verify(store)] == [False]


def emit(tx: Any, numbers: range) -> None:
    tx.logs.append_derived("x", [event(f"m{n}", "abc"[n % 3])._replace(derived=True) for n in numbers])


def emit_in_vain(store: Any, numbers: range) -> None:
    with store.transaction() as tx:
        emit(tx, numbers)
        raise Repeated


def test_versions_of_emissions_have_no_gap_whatever_came_between(app: App) -> None:
    store: Any = app.runtime.store
    with store.transaction() as tx:
        emit(tx, range(48))
    with pytest.raises(Repeated):
        emit_in_vain(store, range(48, 96))
    app.log("x").append_many([{"type": "by.hand", "key": "z"}] * 48)  # as many as were taken back
    for numbers in (range(48, 64), range(40, 80)):  # at last some of them again
        with store.transaction() as tx:
            emit(tx, numbers)
    with store.transaction() as tx:
        emit(tx, range(80, 96))
        tx.savepoint()
        emit(tx, range(96, 144))
        tx.undo()
        tx.keep()
        tx.logs.append("x", [event("by-hand", "b")])
        emit(tx, range(96, 128))
    with store.transaction(durable=False) as tx:
        emit(tx, range(128, 160))
    with store.transaction() as tx:
        emit(tx, range(160, 200))
    for key in "abc":
        versions = [e.version for e in app.log("x").read_key(key)]
        assert versions == [*range(1, len(versions) + 1)]
    assert len(list(app.log("x").read())) == 200 + 49


def test_nobody_appends_between_the_look_and_the_landing(postgres_url: str) -> None:
    """It would have been found by nobody who looked, and then stood in the way: the reading had ended by that."""
    app = App(postgres_url)
    log = app.log("x")
    log.append("a", 0)
    duty: Any = SimpleNamespace(subscription=SimpleNamespace(source="x"), log_id=0, window=SimpleNamespace(position=0))
    landing = Landing(duty, Any)
    message = Message(0, "1", event("by-hand", "k"), has_id=True)
    found: list[Any] = []

    def look_and_land() -> None:
        store: Any = app.runtime.store
        with store.transaction() as tx:
            try:
                found.append(landing._append(tx, [message], is_wary=True)[1])
            except Repeated as error:
                found.append(error)

    with psycopg.connect(postgres_url) as by_hand, psycopg.connect(postgres_url, autocommit=True) as looks:
        log.append("a", 1, key="k", id="by-hand", tx=by_hand)
        thread = threading.Thread(target=look_and_land)
        thread.start()
        while thread.is_alive() and not looks.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
            thread.join(0.01)
        by_hand.commit()
        thread.join(30)
    assert found == [[]]
    app.close()


def test_the_key_of_the_last_row_is_told_only_if_all_rows_were_inserted() -> None:
    """Of one that was there already SQLite tells the key of some other."""
    store = SqliteStore(":memory:", inline=True)
    with store.transaction() as tx:
        log = tx.logs.id_of("orders", create=True)
        rows = [(log, id, "told", None, 0, b"1") for id in "abcd"]
        assert tx.sql.put_all("event_land_plain", rows[:3]) == (3, tx.logs.last(log))
        assert tx.sql.put_all("event_land_plain", [rows[3], rows[0]]) == (1, None)
    store.close()
