"""A program's role needs no more rights than docs/guide/postgres.md gives it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from redrive import App, Ctx, Event, Reject, Tx, UsageError, no_retry

PAGE = (Path(__file__).parent.parent.parent / "docs" / "guide" / "postgres.md").read_text(encoding="utf-8")
(GRANTS,) = [block for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) if "GRANT" in block]


@pytest.fixture
def guest(postgres_url: str) -> Iterator[str]:
    """The address for a role that may log in, and nothing else yet."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        role = f"{connection.info.dbname}_shop"
        connection.execute(f'CREATE ROLE "{role}" LOGIN'.encode())
        parts = urlsplit(postgres_url)
        yield urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))
        connection.execute(f'DROP OWNED BY "{role}"'.encode())
        connection.execute(f'DROP ROLE "{role}"'.encode())


def allow(owner: str, guest: str) -> None:
    role = urlsplit(guest).username
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(GRANTS.replace("shop_worker", f'"{role}"').encode())


def shop(url: str) -> App:
    app = App(url)
    orders, receipts = app.log("orders"), app.log("receipts")

    @app.projection(orders, tables=["revenue"], retry=no_retry)
    def revenue(event: Event[Any], tx: Tx) -> None:
        if event.data < 0:
            raise Reject("negative")
        tx.execute("INSERT INTO revenue VALUES (:cents)", {"cents": event.data})

    @app.on(orders, start="first")
    def charge(event: Event[Any], ctx: Ctx) -> None:
        ctx.state["seen"] = event.position
        ctx.emit(receipts, "charged", event.data)

    return app


def test_without_its_rights_a_role_is_told_what_is_missing(postgres_url: str, guest: str) -> None:
    with closing(App(guest)) as app, pytest.raises(UsageError, match="run `redrive migrate` once with a role that may"):
        app.log("orders").append("placed", 1)
    with closing(App(postgres_url)) as app:
        app.log("orders").append("placed", 1)
    with closing(App(guest)) as app, pytest.raises(UsageError, match="grant this one its rights"):
        app.log("orders").append("placed", 1)


def test_with_the_rights_of_the_guide_a_worker_and_an_operator_do_everything(postgres_url: str, guest: str) -> None:
    with closing(App(postgres_url)) as app:
        app.log("orders").append("placed", 1, key="k")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE revenue (cents bigint)")
        connection.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON revenue TO "{urlsplit(guest).username}"'.encode())
    allow(postgres_url, guest)
    with closing(shop(guest)) as app:
        for cents in (2, -3):
            app.log("orders").append("placed", cents, key="k")
        app.run(until_idle=True)
        desk = app.operate("ada")
        (dead,) = desk.letters.list()
        desk.letters.edit(dead.id, 3, "a typing error")
        desk.letters.replay(desk.letters.list())
        app.run(until_idle=True)
        with app.reader() as tx:
            assert tx.execute("SELECT sum(cents)::int FROM revenue").fetchall() == [(6,)]
        desk.subscriptions.pause("revenue")
        desk.subscriptions.resume("revenue")
        desk.reset("revenue", "once more")
        app.run(until_idle=True)
        assert all(verdict.sound for verdict in desk.verify())
        assert len(list(app.log("receipts").read())) == 3
