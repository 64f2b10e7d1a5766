"""The connection is lost while COMMIT is under way: whether it happened is looked up, and nothing is done twice."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from redrive import App, no_retry
from redrive.errors import CommitUnknown
from redrive.observe.signals import Halted
from redrive.testing import Harness
from redrive.testing.failpoints import failpoint
from redrive.testing.servers import empty

COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"  # what the server answers
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"


class Wire:
    """What lies between a program and its server; it breaks where it is told to."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._cuts = False  # the next answer to a COMMIT is lost, and the connection with it
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_the_next_answer(self) -> None:
        self._cuts = True

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                program, _ = self._listening.accept()
                threading.Thread(target=self._carry, args=(program,), daemon=True).start()

    def _carry(self, program: socket.socket) -> None:
        with program, socket.create_connection(self._server) as server, suppress(OSError):
            other = {program: server, server: program}
            while True:
                for end in select.select([program, server], [], [])[0]:
                    data = end.recv(65536)
                    if not data or (end is server and self._cuts and COMMITTED in data):
                        self._cuts = self._cuts and not data
                        return
                    other[end].sendall(data)


@pytest.fixture
def wire(postgres_store: str) -> Iterator[Wire]:
    server = urlsplit(postgres_store)
    assert server.hostname
    wire = Wire(server.hostname, server.port or 5432)
    yield wire
    wire.close()


@pytest.fixture
def harness(app: App, postgres_store: str, wire: Wire) -> Iterator[Harness]:
    server = urlsplit(postgres_store)
    with Harness(app, urlunsplit(server._replace(netloc=f"{server.username}@127.0.0.1:{wire.port}"))) as harness:
        yield harness
        assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []
    empty(postgres_store)


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
    app: App, harness: Harness, wire: Wire, postgres_store: str, kind: str, happened: bool
) -> None:
    def end_the_connection() -> None:
        with psycopg.connect(postgres_store, autocommit=True) as administrator:
            administrator.execute(TERMINATE, (administrator.info.dbname,))

    declare(app, kind)
    for number in (1, 2, -3, 4):
        harness.append("orders", "order.placed", number, key=f"k{number}")
    place, at_a_replay = KINDS[kind]
    with failpoint(place, wire.lose_the_next_answer if happened else end_the_connection) as armed:
        harness.run_until_idle()
        assert armed.fired
    harness.advance("1m")
    assert sorted(harness.query("SELECT n FROM applied")) == [(1,), (2,), (4,)]
    [letter] = harness.letters("dead")
    assert (letter.position, letter.attempts) == (3, 1)
    assert not [fact for fact in harness.signals if isinstance(fact, Halted)], "looking is all it takes"
    with app.transaction() as tx:
        tx.execute("UPDATE redrive.events SET data = '3' WHERE position = 3")
    with failpoint(at_a_replay, wire.lose_the_next_answer if happened else end_the_connection) as armed:
        harness.replay()
        assert armed.fired
    harness.advance("1m")
    assert sorted(harness.query("SELECT n FROM applied")) == [(1,), (2,), (3,), (4,)]
    assert sorted(data for _, data in harness.emitted("told")) == [1, 2, 3, 4]
    assert [(one.state, one.attempts) for one in harness.letters()] == [("applied", 2)]


@pytest.mark.parametrize("together", [True, False], ids=["in a transaction", "alone"])
def test_an_append_without_an_answer_says_so_and_may_be_said_again(
    app: App, harness: Harness, wire: Wire, together: bool
) -> None:
    orders = app.log("orders")

    def say() -> None:
        if together:
            with app.transaction() as tx:
                orders.append("order.placed", 1, id="one", tx=tx)
        else:
            orders.append("order.placed", 1, id="one")

    orders.append("order.placed", 0, id="zero")
    wire.lose_the_next_answer()
    with pytest.raises(CommitUnknown, match="no answer came"):
        say()
    say()
    assert [event.id for event in orders.read()] == ["zero", "one"]
