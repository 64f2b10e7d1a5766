"""Rows of messages and of emissions: versions are counted, and what the log holds already is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App
from redrive.event import NewEvent
from redrive.runner.land import Repeated
from redrive.store import landed
from redrive.store.versions import Versions


@pytest.fixture
def app(backend: str | None, tmp_path: Path) -> Iterator[App]:
    app = App(backend or str(tmp_path / "x.db"))
    yield app
    app.close()


def event(id: str, key: str | None) -> NewEvent:
    return NewEvent(id, "a", key, 1, 0, None, b"1", None, False)


def land(app: App, events: list[NewEvent], versions: Versions) -> None:
    store: Any = app.runtime.store
    with store.transaction() as tx:
        position = _append(tx, events, versions)
    versions.upto = position


def _append(tx: Any, events: list[NewEvent], versions: Versions) -> int:
    added = landed.append_new(tx.logs, tx.sql, "x", events, versions)
    if added is None:
        raise Repeated
    return added.position


def test_versions_go_on_whoever_else_appends(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, n = Versions(), Versions(), 0
    for round_number in range(6):
        if round_number == 4:
            monkeypatch.setattr("redrive.store.versions.KEYS_MAX", 0)
        for owner in (one, one, other):
            land(app, [event(f"e{n}", "a"), event(f"e{n}b", None), event(f"e{n}c", "b")], owner)
            n += 1
        app.log("x").append("by.hand", key="a")
    found = {key: [(e.version, e.type) for e in app.log("x").read_key(key)] for key in ("a", "b")}
    assert [version for version, _ in found["a"]] == [*range(1, 25)]
    assert [version for version, _ in found["b"]] == [*range(1, 19)]
    assert [e.version for e in app.log("x").read() if e.key is None] == [None] * 18


def test_what_the_log_holds_is_noticed_and_what_was_counted_for_it_is_forgotten(app: App) -> None:
    versions = Versions()
    land(app, [event("e1", "a"), event("e2", "a")], versions)
    for repeated in ([event("e3", "a"), event("e1", "a")], [event("e3", "a"), event("e3", "b")]):
        with pytest.raises(Repeated):
            land(app, repeated, versions)
    land(app, [event("e3", "a")], versions)
    assert [(e.id, e.version) for e in app.log("x").read()] == [("e1", 1), ("e2", 2), ("e3", 3)]


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
