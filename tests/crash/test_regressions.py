"""Bugs that these tests found, each as the smallest program that showed it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from redrive import App, retry
from redrive.settings import Settings
from redrive.testing.failpoints import failpoint


def test_a_log_that_was_created_and_undone_does_not_lend_its_number_to_another(tmp_path: Path) -> None:
    """Emissions went to whatever log got the number of the one that the failing stride had created."""
    app = App(str(tmp_path / "shop.db"))
    orders, relayed = app.log("orders"), app.log("relayed")

    @app.projection(orders, retry=retry(attempts=1))
    def relay(event: Any, tx: Any) -> None:
        tx.emit(relayed, "relayed", event.data)
        if event.data["n"] == 1:
            raise ValueError("after it emitted")

    orders.append_many([{"type": "paid", "data": {"n": n}, "key": str(n)} for n in range(3)])
    app.run(until_idle=True)
    assert [event.data["n"] for event in relayed.read()] == [0, 2]
    app.close()


def test_a_rebuild_does_not_swallow_the_emissions_of_an_event_that_was_a_letter(tmp_path: Path) -> None:
    """Emissions below the old progress are not repeated; those of a dead letter had never been made."""
    app = App(str(tmp_path / "shop.db"))
    orders, relayed = app.log("orders"), app.log("relayed")
    broken = [True]

    @app.projection(orders, tables={"seen": "n INTEGER"}, retry=retry(attempts=1))
    def relay(event: Any, tx: Any) -> None:
        if event.data["n"] == 1 and broken[0]:
            raise ValueError("a bug")
        tx.emit(relayed, "relayed", event.data)

    orders.append_many([{"type": "paid", "data": {"n": n}, "key": str(n)} for n in range(3)])
    app.run(until_idle=True)
    operations = app.operate("ada")
    operations.reset("relay", "try again")
    app.run(until_idle=True)
    broken[0] = False
    operations.letters.replay([letter.id for letter in operations.letters.list("dead")], "fixed")
    app.run(until_idle=True)
    assert [event.data["n"] for event in relayed.read()] == [0, 2, 1]
    app.close()


def test_a_rebuild_of_a_list_projection_emits_what_only_a_letter_had_held_back(tmp_path: Path) -> None:
    app = App(str(tmp_path / "shop.db"))
    orders, relayed = app.log("orders"), app.log("relayed")
    broken = [True]

    @app.projection(orders, tables={"seen": "n INTEGER"}, retry=retry(attempts=1), batch=True)
    def relay(events: Any, tx: Any) -> None:
        for event in events:
            if event.data["n"] == 1 and broken[0]:
                raise ValueError("a bug")
            tx.emit(relayed, "relayed", event.data, key=event.key)

    orders.append_many([{"type": "paid", "data": {"n": n}, "key": str(n)} for n in range(3)])
    app.run(until_idle=True)
    broken[0] = False
    app.operate("ada").reset("relay", "fixed")
    app.run(until_idle=True)
    assert [event.data["n"] for event in relayed.read()] == [0, 2, 1]
    app.close()


def test_a_projection_that_swallows_everything_still_emits(tmp_path: Path) -> None:
    """The engine's own request to run again on the durable connection was swallowed, and the emission with it."""
    app = App(str(tmp_path / "shop.db"))
    orders, relayed = app.log("orders"), app.log("relayed")

    @app.projection(orders, tables={"seen": "n INTEGER"})
    def relay(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO seen VALUES (:n)", event.data)
        try:
            tx.emit(relayed, "relayed", event.data)
        except BaseException:  # somebody's idea of robustness
            return

    orders.append_many([{"type": "paid", "data": {"n": n}, "key": str(n)} for n in range(3)])
    app.run(until_idle=True)
    assert [event.data["n"] for event in relayed.read()] == [0, 1, 2]
    app.close()


@pytest.mark.parametrize("error", [sqlite3.OperationalError("disk I/O error"), sqlite3.DatabaseError("malformed")])
def test_a_checkpoint_that_fails_does_not_end_the_writer(tmp_path: Path, error: sqlite3.Error) -> None:
    """The writer's thread died of it, and every later append waited for ever."""
    app = App(str(tmp_path / "shop.db"), settings=Settings(checkpoint_pages=1))
    orders = app.log("orders")
    orders.append("paid", {})
    with failpoint("checkpoint.begun", error) as checkpoint:
        for n in range(10):
            orders.append("paid", {"n": n})
        assert checkpoint.fired
    assert len(list(orders.read())) == 11
    app.close()
