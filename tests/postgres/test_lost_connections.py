"""An event whose SQL ends its own connection becomes a dead letter; its neighbours are applied once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from redrive import App, retry
from redrive.settings import Settings
from redrive.testing import Harness
from redrive.testing.servers import Server, empty

ENDINGS: dict[str, Callable[[Any, str], object]] = {}
FORGET = "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"  # the driver does not see what it does
PLAIN = retry(attempts=2, wait="1s", jitter=0.0)


def ending(function: Callable[[Any, str], object]) -> Callable[[Any, str], object]:
    """A way for a function to lose its connection."""
    ENDINGS[function.__name__] = function
    return function


@ending
def terminate(tx: Any, url: str) -> object:
    return tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@ending
def compute_for_too_long(tx: Any, url: str) -> object:
    """As a projection that takes longer than the 20 s that redrive gives it."""
    tx.execute("SET LOCAL idle_in_transaction_session_timeout = 20")
    [(pid,)] = tx.execute("SELECT pg_backend_pid()").fetchall()
    wait_until_gone(url, pid)
    return tx.execute("SELECT 1")


@ending
def exceed_the_timeout_of_the_transaction(tx: Any, url: str) -> object:
    tx.execute("SET LOCAL transaction_timeout = 20")
    return tx.execute("SELECT pg_sleep(60)")


@ending
def terminate_by_a_trigger(tx: Any, url: str) -> object:
    """The statement is sent with others and with COMMIT: nothing waits for its answer."""
    if not tx.execute("SELECT to_regclass('fatal')").fetchone()[0]:
        for statement in TRIGGER:
            tx.execute(statement)
    return tx.execute("INSERT INTO fatal VALUES (1)")


TRIGGER = [
    "CREATE TABLE fatal (n INTEGER)",
    "CREATE OR REPLACE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$",
    "CREATE TRIGGER die AFTER INSERT ON fatal FOR EACH ROW EXECUTE FUNCTION die()",
]


@ending
def close_it(tx: Any, url: str) -> object:
    tx.connection.close()
    return tx.execute("SELECT 1")


def wait_until_gone(url: str, pid: int) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        pause = threading.Event()
        while other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone():
            pause.wait(0.005)


def declare(app: App, kind: str, bad: Callable[[Any], object], **options: Any) -> list[str]:
    """A function that writes down each event, and for those whose id begins with `bad` does something else as well."""
    calls: list[str] = []

    def project(event: Any, tx: Any) -> None:
        for one in event if isinstance(event, list) else [event]:
            calls.append(one.id)
            tx.execute("INSERT INTO seen VALUES (:id)", {"id": one.id})
            if one.id.startswith("bad"):
                bad(tx)

    tables = {"seen": "id TEXT"}
    options = {"retry": PLAIN, **options}
    app.projection(app.log("orders"), name="project", tables=tables, batch=kind == "batch", **options)(project)
    return calls


def handle(app: App, *statements: str) -> list[str]:
    calls: list[str] = []

    @app.on(app.log("orders"), name="project", start="first", retry=PLAIN)
    def handler(event: Any, ctx: Any) -> None:
        calls.append(event.id)
        ctx.execute("INSERT INTO seen VALUES (:id)", {"id": event.id})
        for statement in statements if event.id.startswith("bad") else ():
            ctx.execute(statement)

    with app.transaction() as tx:
        tx.execute("CREATE TABLE seen (id TEXT)")
    return calls


def put(harness: Harness, *ids: str) -> None:
    for one in ids:
        harness.append("orders", "order.placed", id=one, key=one.rstrip("0123456789"))


def seen(harness: Harness) -> list[str]:
    return sorted(one for (one,) in harness.query("SELECT id FROM seen"))


def letters(harness: Harness) -> list[tuple[str, str, str | None]]:
    return [(one.event_id, one.state, one.reason) for one in harness.letters()]


BURIED = [("bad1", "dead", "crashed_connection"), ("bad2", "retrying", "behind_head")]


@pytest.mark.parametrize("kind", ["projection", "batch"])
@pytest.mark.parametrize("how", ENDINGS)
def test_event_of_a_projection_that_ends_its_connection_is_buried(
    app: App, harness: Harness, postgres_store: str, how: str, kind: str
) -> None:
    calls = declare(app, kind, lambda tx: ENDINGS[how](tx, postgres_store))
    put(harness, "a", "b", "bad1", "c", "bad2", "d")
    harness.advance("1h")
    assert (seen(harness), letters(harness)) == (["a", "b", "c", "d"], BURIED)
    assert calls.count("bad1") == 5, "twice among others, and three times alone"
    [letter] = harness.letters("dead")
    assert letter.attempts == 1
    assert "was lost 3 times while this event ran alone" in (letter.error_message or "")
    assert harness.halted == {}
    assert harness.query("SELECT * FROM redrive.inflight") == []


STATEMENTS = {
    "terminate": ["SELECT pg_terminate_backend(pg_backend_pid())"],
    "timeout of the transaction": ["SET LOCAL transaction_timeout = 20", "SELECT pg_sleep(60)"],
}


@pytest.mark.parametrize("how", STATEMENTS)
def test_event_of_a_handler_that_ends_its_connection_is_buried(app: App, harness: Harness, how: str) -> None:
    handle(app, *STATEMENTS[how])
    put(harness, "a", "b", "bad1", "c", "bad2", "d")
    harness.advance("1h")
    assert (seen(harness), letters(harness)) == (["a", "b", "c", "d"], BURIED)
    assert harness.halted == {}
    assert harness.query("SELECT * FROM redrive.inflight") == []


@pytest.mark.parametrize("kind", ["projection", "batch"])
def test_letter_that_ends_its_connection_is_buried_again(app: App, harness: Harness, kind: str) -> None:
    is_well = True

    def bad(tx: Any) -> None:
        if is_well:
            raise ValueError
        tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    declare(app, kind, bad, retry=retry(attempts=2, wait="1m", jitter=0.0))
    put(harness, "a", "bad1", "b")
    harness.run_until_idle()
    is_well = False
    harness.advance("1h")
    assert letters(harness) == [("bad1", "dead", "crashed_connection")]
    put(harness, "c")
    harness.advance("1h")
    assert seen(harness) == ["a", "b", "c"]
    is_well = True
    harness.replay()
    harness.advance("1h")
    assert letters(harness) == [("bad1", "dead", "attempts_exhausted")]


def test_two_events_that_end_their_connections_are_charged_for_their_own(app: App, harness: Harness) -> None:
    declare(app, "projection", lambda tx: terminate(tx, ""))
    for one in ("a", "bad1", "b", "bad2", "c"):
        harness.append("orders", "order.placed", id=one, key=one)
    harness.advance("1h")
    assert seen(harness) == ["a", "b", "c"]
    assert letters(harness) == [(one, "dead", "crashed_connection") for one in ("bad1", "bad2")]


def test_number_of_charges_is_the_setting(app: App, postgres_store: str) -> None:
    declare(app, "projection", lambda tx: terminate(tx, ""))
    with Harness(
        app, postgres_store, settings=Settings(crash_charges_max=1, lease=1e6, poll_min=1e6, poll_max=1e6)
    ) as harness:
        put(harness, "a", "bad1")
        harness.advance("1h")
        assert letters(harness) == [("bad1", "dead", "crashed_connection")]
    empty(postgres_store)


@pytest.mark.parametrize("times", [1, 2, 4])
def test_event_that_is_applied_in_the_end_is_forgiven(app: App, harness: Harness, times: int) -> None:
    left = [None] * times

    def bad(tx: Any) -> None:
        if left:
            left.pop()
            terminate(tx, "")

    declare(app, "projection", bad)
    put(harness, "a", "bad1", "b")
    harness.advance("1h")
    assert (seen(harness), letters(harness)) == (["a", "b", "bad1"], [])
    assert harness.query("SELECT * FROM redrive.inflight") == []


def test_connections_that_others_end_are_charged_to_no_event(app: App, harness: Harness, postgres_store: str) -> None:
    """Between the transactions, again and again."""
    declare(app, "projection", lambda tx: None)
    name = postgres_store.rpartition("/")[2]
    for number in range(8):
        with psycopg.connect(postgres_store, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                (name,),
            )
        put(harness, f"bad{number}")
        harness.advance("10m")
    assert len(seen(harness)) == 8
    assert letters(harness) == []


def test_plans_that_the_server_lost_spend_no_attempt(app: App, harness: Harness) -> None:
    def bad(tx: Any) -> None:
        tx.execute(FORGET)
        assert tx.execute("SELECT count(*) FROM seen WHERE id = :id", {"id": "a"}).fetchone() == (1,)

    calls = declare(app, "projection", bad, retry=retry(attempts=1))
    put(harness, "a", "bad1", "b", "bad2")
    harness.advance("1h")
    put(harness, "bad3", "c")
    harness.advance("1h")
    assert seen(harness) == ["a", "b", "bad1", "bad2", "bad3", "c"]
    assert letters(harness) == []
    assert len(calls) < 20


def test_plans_that_a_handlers_statement_drops_spend_no_attempt(app: App, harness: Harness) -> None:
    handle(app, FORGET, "INSERT INTO seen VALUES ('more')", FORGET, "INSERT INTO seen VALUES ('more')")
    put(harness, "a", "bad1", "b", "bad2", "c")
    harness.advance("1h")
    assert seen(harness) == ["a", "b", "bad1", "bad2", "c", *["more"] * 4]
    assert harness.query("SELECT max(attempts) FROM redrive.letters") == [(None,)]


def test_plan_that_a_function_itself_never_made_is_its_own_fault(app: App, harness: Harness) -> None:
    declare(app, "projection", lambda tx: tx.execute("EXECUTE nothing"), retry=retry(attempts=1))
    put(harness, "a", "bad1", "b")
    harness.advance("1h")
    assert (seen(harness), letters(harness)) == (["a", "b"], [("bad1", "dead", "attempts_exhausted")])


# ------------------------------------------------------------ the server itself


@pytest.fixture
def own() -> Iterator[Server]:
    """A server of this test's own, which may be killed."""
    found = Server()
    yield found
    found.close()


@pytest.fixture
def away(own: Server) -> str:
    return own.databases.make()


def kill_backend(tx: Any) -> None:
    """As a crash in an extension does: the server ends every connection and recovers."""
    [(pid,)] = tx.execute("SELECT pg_backend_pid()").fetchall()
    os.kill(pid, signal.SIGKILL)
    tx.execute("SELECT 1")


def kill_it_without_waiting(tx: Any) -> None:
    """The statement is sent with others, so that no answer of this transaction ever comes."""
    tx.execute("INSERT INTO fatal VALUES (1)")


CRASHING = """CREATE TABLE fatal (n INTEGER);
CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
EXECUTE format('COPY (SELECT 1) TO PROGRAM %L', 'kill -9 ' || pg_backend_pid()); RETURN NULL; END $$;
CREATE TRIGGER crash AFTER INSERT ON fatal FOR EACH ROW EXECUTE FUNCTION crash()"""


def wait_until_up(url: str) -> None:
    pause = threading.Event()
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            pause.wait(0.1)
        else:
            return


def go_on(harness: Harness, url: str) -> None:
    """Let the server come up each time before the worker tries again: the worker's clock is not the server's."""
    for _ in range(15):
        wait_until_up(url)
        harness.advance("2m")


@pytest.mark.parametrize("crash", [kill_backend, kill_it_without_waiting])
def test_event_that_crashes_the_server_each_time_is_buried(app: App, away: str, crash: Callable[[Any], None]) -> None:
    """The server recovers and is the same one; that its other connections are ended is charged to no event."""
    with psycopg.connect(away, autocommit=True) as administrator:
        administrator.execute(CRASHING)
    declare(app, "projection", crash)
    with Harness(app, away) as harness:
        put(harness, "a", "bad1", "b", "bad2", "c")
        go_on(harness, away)
        assert (seen(harness), letters(harness)) == (["a", "b", "c"], BURIED)


def test_restart_of_the_server_is_charged_to_no_event(app: App, own: Server, away: str) -> None:
    times = []

    def bad(tx: Any) -> None:
        if len(times) < 6:
            times.append(1)
            own.stop(signal.SIGINT)
            own.start()
            tx.execute("SELECT 1")

    declare(app, "projection", bad)
    with Harness(app, away) as harness:
        put(harness, "a", "bad1", "b")
        go_on(harness, away)
        assert (seen(harness), letters(harness), len(times)) == (["a", "b", "bad1"], [], 6)
