"""The doctor on a Postgres store: what it asks of the server."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from redrive import App
from redrive.errors import StoreError
from redrive.testing.servers import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(durable=True)
    yield server
    server.close()


def findings(url: str) -> dict[str, tuple[str, str]]:
    app = App(url)
    found = {one.check: (one.state, one.message) for one in app.operate().doctor(app.runtime.settings)}
    app.close()
    return found


def test_a_healthy_server(server: Server) -> None:
    url = server.databases.make()
    App(url).log("orders").append("placed", 1)
    found = findings(url)
    assert list(found) == ["postgres", "writing", "durability", "clock", "settings", "subscriptions"]
    assert {state for state, _ in found.values()} == {"ok"}
    assert found["postgres"][1].startswith("Postgres ")


@pytest.mark.parametrize(
    ("setting", "check", "message"),
    [
        ("synchronous_commit = off", "durability", "synchronous_commit is off: a crash"),
        ("default_transaction_read_only = on", "writing", "takes no writes"),
    ],
)
def test_a_setting_that_will_hurt_is_told(server: Server, setting: str, check: str, message: str) -> None:
    url = server.databases.make()
    App(url).log("orders").append("placed", 1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET {setting}'.encode())
    state, told = findings(url)[check]
    assert (state, message in told) == ("problem", True), told


def test_a_standby_takes_no_writes_and_is_a_problem(server: Server) -> None:
    url = server.databases.make()
    App(url).log("orders").append("placed", 1)
    signal = server._data / "standby.signal"
    server.stop()
    signal.touch()
    server.start()
    state, told = findings(url)["writing"]
    with pytest.raises(StoreError, match="takes no writes"):  # the world: no attempt is spent, and it may come back
        App(url).log("orders").append("placed", 2)
    server.stop()
    signal.unlink()
    server.start()
    assert App(url).log("orders").append("placed", 2).position > 1
    assert (state, "takes no writes" in told) == ("problem", True), told


def test_a_server_that_does_not_sync_is_a_problem(postgres_url: str) -> None:
    App(postgres_url).log("orders").append("placed", 1)
    state, told = findings(postgres_url)["durability"]
    assert (state, told[:13]) == ("problem", "fsync is off,")
