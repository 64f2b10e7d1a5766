"""Events appended in transactions of the user's own, and by many at a time: none is lost, each key keeps its order."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from redrive import App, StoreError, UsageError
from redrive.errors import StoreBusy
from redrive.replay.scheduled import waiting
from redrive.settings import Settings
from redrive.store.postgres.params import translate
from redrive.store.postgres.sql import statements
from redrive.testing.servers import empty

WRITERS, EACH, KEYS = 8, 25, 5


@pytest.fixture
def app(postgres_store: str) -> Iterator[App]:
    app = App(postgres_store, settings=Settings(busy_timeout=20.0))
    with app.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")
    yield app
    app.close()
    empty(postgres_store)


@pytest.fixture
def engine(postgres_store: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(postgres_store.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


def stored(app: App) -> tuple[list[Any], list[int]]:
    with app.reader() as tx:
        rows = tx.execute("SELECT n FROM mine ORDER BY n").fetchall()
    return [event.data for event in app.log("orders").read()], [n for (n,) in rows]


def test_a_psycopg_transaction_commits_row_and_event_together(app: App, postgres_store: str) -> None:
    with psycopg.connect(postgres_store, row_factory=dict_row) as connection:
        connection.execute("SET lock_timeout = '7s'; SET TimeZone = 'Asia/Tokyo'")
        connection.execute("INSERT INTO mine VALUES (1)")
        app.log("orders").append("order.placed", 1, key="a", tx=connection)
        app.log("orders").append_many([{"type": "order.placed", "data": 2, "key": "a"}], tx=connection)
        assert stored(app) == ([], [])
        assert connection.execute("SHOW lock_timeout").fetchone() == {"lock_timeout": "7s"}
    assert stored(app) == ([1, 2], [1])
    assert [event.version for event in app.log("orders").read_key("a")] == [1, 2]


def test_a_psycopg_transaction_takes_both_back(app: App, postgres_store: str) -> None:
    with psycopg.connect(postgres_store, autocommit=True) as connection, connection.transaction(force_rollback=True):
        connection.execute("INSERT INTO mine VALUES (1)")
        app.log("orders").append("order.placed", 1, key="a", tx=connection)
    assert stored(app) == ([], [])


def test_sqlalchemy_core_and_sessions(app: App, engine: sqlalchemy.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("INSERT INTO mine VALUES (1)"))
        app.log("orders").append("order.placed", 1, tx=connection)
    with Session(engine) as session, session.begin():
        session.execute(sqlalchemy.text("INSERT INTO mine VALUES (2)"))
        app.log("orders").append("order.placed", 2, tx=session)
    with Session(engine) as session:  # begins by itself
        app.log("orders").append("order.placed", 3, tx=session)
        session.commit()
    with Session(engine) as session:
        app.log("orders").append("order.placed", 4, tx=session)
        session.rollback()
    assert stored(app) == ([1, 2, 3], [1, 2])


def test_what_cannot_be_kept_is_refused(app: App, engine: sqlalchemy.Engine, postgres_store: str) -> None:
    append = app.log("orders").append
    with psycopg.connect(postgres_store, autocommit=True) as connection:
        with pytest.raises(UsageError, match="begin a transaction"):
            append("order.placed", tx=connection)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(UsageError, match="REPEATABLE READ"):
            append("order.placed", tx=connection)
    with engine.connect() as outside, pytest.raises(UsageError, match="begin a transaction"):
        append("order.placed", tx=outside)
    with pytest.raises(UsageError, match="SQLAlchemy"):
        append("order.placed", tx=object())
    assert stored(app) == ([], [])


@pytest.mark.parametrize("holds", ["nothing", "a store"])
def test_a_connection_to_another_database_is_refused(app: App, postgres_url: str, holds: str) -> None:
    if holds == "a store":
        with closing(App(postgres_url)) as another:
            another.log("orders").append("order.placed", 1)
    with psycopg.connect(postgres_url) as connection:
        with pytest.raises(UsageError, match="another database would have two commits"):
            app.log("orders").append("order.placed", 2, tx=connection)
        connection.execute("SELECT 1")  # and its transaction may go on
        connection.rollback()
        with pytest.raises(UsageError, match="another database"):
            app.log("orders").cancel("x", tx=connection)
    assert stored(app) == ([], [])


def test_who_waits_too_long_for_a_log_is_told_what_to_do(app: App, postgres_store: str) -> None:
    impatient = App(postgres_store, settings=Settings(busy_timeout=0.2))
    with psycopg.connect(postgres_store) as first, psycopg.connect(postgres_store) as second:
        app.log("orders").append("order.placed", 1, tx=first)
        impatient.log("other").append("order.placed", 0, tx=second)  # another log is another matter
        with pytest.raises(StoreError, match="append last"):
            impatient.log("orders").append("order.placed", 2, tx=second)
        with pytest.raises(StoreError):
            impatient.log("orders").append("order.placed", 3)
        second.rollback()
    impatient.close()
    assert stored(app)[0] == [1]


def write(app: App, url: str, writer: int, naive: bool) -> None:
    """Transactions of several events, held open for a while: some by the app, some on the user's own connection."""
    dice, pause = random.Random(writer), threading.Event()
    with psycopg.connect(url) as connection:
        for number in range(EACH):
            event = {"type": "order.placed", "data": [writer, number], "key": f"k{dice.randrange(KEYS)}"}
            if naive:
                with connection.transaction():
                    connection.execute("INSERT INTO naive (writer, n) VALUES (%s, %s)", (writer, number))
                    pause.wait(dice.random() * 0.01)
            elif number % 2:
                with app.transaction() as tx:
                    app.log("orders").append(**event, tx=tx)
                    pause.wait(dice.random() * 0.01)
            else:
                with connection.transaction():
                    app.log("orders").append(**event, tx=connection)
                    pause.wait(dice.random() * 0.01)


def read_along(app: App, url: str, *, naive: bool) -> list[Any]:
    """Read what is above the last position, again and again, while eight write, and once more at the end."""
    threads = [threading.Thread(target=write, args=(app, url, writer, naive)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    found: list[Any] = []
    last = 0
    with psycopg.connect(url, autocommit=True) as connection:
        ended = False
        while True:
            if naive:
                rows = connection.execute(
                    "SELECT id, writer, n FROM naive WHERE id > %s ORDER BY id", (last,)
                ).fetchall()
                found += [[writer, n] for _, writer, n in rows]
                last = rows[-1][0] if rows else last
            else:
                events = list(app.log("orders").read(last))
                found += events
                last = events[-1].position if events else last
            if ended:
                return found
            ended = not any(thread.is_alive() for thread in threads)


def test_a_reader_of_a_log_loses_nothing_where_one_of_a_sequence_does(app: App, postgres_store: str) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE naive (id bigint GENERATED ALWAYS AS IDENTITY, writer INTEGER, n INTEGER)")
    everything = [[writer, number] for writer in range(WRITERS) for number in range(EACH)]
    assert sorted(read_along(app, postgres_store, naive=True)) != everything, "the test shows nothing"
    events = read_along(app, postgres_store, naive=False)
    assert sorted(event.data for event in events) == everything
    versions = defaultdict(list)
    for event in events:
        versions[event.key].append(event.version)
    assert all(found == list(range(1, len(found) + 1)) for found in versions.values())


@pytest.mark.parametrize("claims", [True, False])
def test_it_is_the_claim_that_keeps_a_reader_from_passing_what_is_not_committed(
    app: App, postgres_store: str, monkeypatch: pytest.MonkeyPatch, claims: bool
) -> None:
    """Without it, on purpose: the second to append commits first, and a reader goes past the first for good."""
    if not claims:
        anybody = translate("SELECT ?::int, pg_notify('redrive', '')", named=False)
        monkeypatch.setitem(cast(Any, statements()), "pg_append_lock", anybody)
    hasty = App(postgres_store, settings=Settings(busy_timeout=0.2))
    orders, found = hasty.log("orders"), list[Any]()
    orders.append("order.placed", 0)
    with psycopg.connect(postgres_store) as slow:
        orders.append("order.placed", 1, tx=slow)
        with nullcontext() if not claims else pytest.raises(StoreBusy):
            orders.append("order.placed", 2)
        found += orders.read()
    found += orders.read(found[-1].position)
    hasty.close()
    assert [event.data for event in found] == ([0, 1] if claims else [0, 2])


def test_an_event_is_scheduled_and_taken_back_in_a_transaction_of_the_users_own(app: App, postgres_store: str) -> None:
    orders = app.log("orders")
    with psycopg.connect(postgres_store) as connection:
        orders.append("later", 1, id="one", after="0s", tx=connection)
        orders.append("later", 2, id="two", after="0s", tx=connection)
        assert waiting(app.runtime.store) == []
    assert [one.id for one in waiting(app.runtime.store)] == ["one", "two"]
    with psycopg.connect(postgres_store) as connection:
        assert orders.cancel("one", tx=connection)
        assert not orders.cancel("one", tx=connection)
        connection.rollback()
        assert orders.cancel("two", tx=connection)
    app.run(until_idle=True)
    assert [event.id for event in orders.read()] == ["one"]
