"""The connection is lost while COMMIT is under way: whether it happened is looked up, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from redrive import App, no_retry
from redrive.errors import CommitUnknown
from redrive.observe.signals import Halted
from redrive.testing import FaultProxy, Harness
from redrive.testing.failpoints import failpoint
from redrive.testing.servers import empty

COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"  # what the server answers
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"


@pytest.fixture
def wire(postgres_store: str) -> Iterator[FaultProxy]:
    with FaultProxy(postgres_store) as wire:
        yield wire


@pytest.fixture
def harness(app: App, postgres_store: str, wire: FaultProxy) -> Iterator[Harness]:
    with Harness(app, wire.at(postgres_store)) as harness:
        yield harness
        assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []
    empty(postgres_store)


def lose_the_next_answer(wire: FaultProxy) -> None:
    """The server commits, and nobody hears of it."""
    wire.cut(on="replies", holding=COMMITTED)


KINDS = {"projection": ("batch.before_commit", "letter.before_commit"), "handler": ("round.before_commit",) * 2}


def declare(app: App, kind: str) -> None:
    def apply(event: Any, out: Any) -> None:
        out.execute("INSERT INTO applied VALUES (:n)", {"n": event.data})
        if event.data < 0:
            raise ValueError("not yet")
        out.emit(app.log("told"), "told", event.data)

    with app.transaction() as tx:
        tx.execute("CREATE TABLE applied (n INTEGER NOT NULL)")
    if kind == "handler":
        app.on(app.log("orders"), name="apply", start="first", retry=no_retry)(apply)
    else:
        app.projection(app.log("orders"), name="apply", tables=["applied"], retry=no_retry)(apply)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("happened", [True, False], ids=["it happened", "it did not"])
def test_a_settling_commit_without_an_answer_is_neither_lost_nor_done_again(
    app: App, harness: Harness, wire: FaultProxy, postgres_store: str, kind: str, happened: bool
) -> None:
    def end_the_connection() -> None:
        with psycopg.connect(postgres_store, autocommit=True) as administrator:
            administrator.execute(TERMINATE, (administrator.info.dbname,))

    def lose() -> None:
        lose_the_next_answer(wire)

    declare(app, kind)
    for number in (1, 2, -3, 4):
        harness.append("orders", "order.placed", number, key=f"k{number}")
    place, at_a_replay = KINDS[kind]
    with failpoint(place, lose if happened else end_the_connection) as armed:
        harness.run_until_idle()
        assert armed.fired
    harness.advance("1m")
    assert sorted(harness.query("SELECT n FROM applied")) == [(1,), (2,), (4,)]
    [letter] = harness.letters("dead")
    assert (letter.position, letter.attempts) == (3, 1)
    assert not [fact for fact in harness.signals if isinstance(fact, Halted)], "looking is all it takes"
    with app.transaction() as tx:
        tx.execute("UPDATE redrive.events SET data = '3' WHERE position = 3")
    with failpoint(at_a_replay, lose if happened else end_the_connection) as armed:
        harness.replay()
        assert armed.fired
    harness.advance("1m")
    assert sorted(harness.query("SELECT n FROM applied")) == [(1,), (2,), (3,), (4,)]
    assert sorted(data for _, data in harness.emitted("told")) == [1, 2, 3, 4]
    assert [(one.state, one.attempts) for one in harness.letters()] == [("applied", 2)]


@pytest.mark.parametrize("together", [True, False], ids=["in a transaction", "alone"])
def test_an_append_without_an_answer_says_so_and_may_be_said_again(
    app: App, harness: Harness, wire: FaultProxy, together: bool
) -> None:
    orders = app.log("orders")

    def say() -> None:
        if together:
            with app.transaction() as tx:
                orders.append("order.placed", 1, id="one", tx=tx)
        else:
            orders.append("order.placed", 1, id="one")

    orders.append("order.placed", 0, id="zero")
    lose_the_next_answer(wire)
    with pytest.raises(CommitUnknown, match="no answer came"):
        say()
    say()
    assert [event.id for event in orders.read()] == ["zero", "one"]
