"""The job on Postgres: redrive beside psycopg's own pipeline mode, clean and with poison.

Every contestant commits without waiting for the disk, as redrive does for projections of a log in the same database.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.job import KEYS, UPSERT, check, is_poison, orders, payload, totals_of
from bench.lab import Figures, Stopwatch
from bench.redrives import ATTEMPTS, build_log, check_letters, timed, timed_until
from redrive import App, retry
from redrive.testing.servers import Databases

PER_TRANSACTION = 100
TOTALS = (
    "CREATE TABLE totals (key TEXT PRIMARY KEY, count BIGINT NOT NULL, amount BIGINT NOT NULL CHECK (amount >= 0)) "
    "WITH (fillfactor = 50)"
)
UNNEST = (
    "INSERT INTO totals (key, count, amount) SELECT * FROM unnest({}::text[], {}::bigint[], {}::bigint[]) "
    "ON CONFLICT (key) DO UPDATE SET count = totals.count + excluded.count, amount = totals.amount + excluded.amount"
)
RAW_UPSERT, RAW_UNNEST = UPSERT.replace("?", "%s"), UNNEST.format("%s", "%s", "%s")


def build_raw(url: str, n: int) -> None:
    """A log of n events and an empty table of totals."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE events (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT NOT NULL UNIQUE, "
            "payload TEXT NOT NULL)"
        )
        connection.execute(TOTALS.encode())
        connection.execute("CREATE TABLE progress (position bigint NOT NULL)")
        connection.execute("INSERT INTO progress VALUES (0)")
        with connection.cursor() as cursor, cursor.copy("COPY events (id, payload) FROM STDIN") as copy:
            for order in orders(n):
                copy.write_row((order.id, payload(order)))
        connection.execute("VACUUM ANALYZE")


def build(url: str, n: int) -> None:
    """redrive's log of n events and an empty table of totals."""
    app = App(url)
    build_log(app, n)
    with app.transaction() as tx:
        tx.execute(TOTALS)
    app.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


@contextmanager
def copy_of(server: str, template: str) -> Iterator[str]:
    """A database of this run's own."""
    databases = Databases(server)
    url = databases.make(template)
    try:
        yield url
    finally:
        databases.drop(url)


def raw(folder: Path, server: str, template: str, n: int, unnest: bool = False) -> Figures:
    """Read a hundred, apply a hundred, remember the position, commit; all but the reading in one pipeline."""
    with copy_of(server, template) as url, Stopwatch() as watch, psycopg.connect(url, autocommit=True) as connection:
        connection.prepare_threshold = 1
        connection.execute("SET synchronous_commit = off")
        cursor = connection.cursor()
        execute: Callable[..., Any] = cursor.execute
        apply = _apply_set if unnest else _apply_each
        ((position,),) = execute("SELECT position FROM progress").fetchall()
        select = "SELECT position, payload FROM events WHERE position > %s ORDER BY position LIMIT %s"
        while rows := execute(select, (position, PER_TRANSACTION)).fetchall():
            position = rows[-1][0]
            with connection.pipeline():
                execute("BEGIN")
                apply(execute, [json.loads(text) for _, text in rows])
                execute("UPDATE progress SET position = %s", (position,))
                execute("COMMIT")
        watch.stop()
        check("raw on Postgres", execute("SELECT * FROM totals").fetchall(), totals_of(orders(n)))
    return watch.figures(n)


def _apply_each(execute: Callable[..., Any], orders: Iterable[dict[str, Any]]) -> None:
    for data in orders:
        execute(RAW_UPSERT, (data["customer"], data["amount"]))


def _apply_set(execute: Callable[..., Any], orders: Iterable[dict[str, Any]]) -> None:
    execute(RAW_UNNEST, _columns(orders))


def _columns(orders: Iterable[dict[str, Any]]) -> tuple[list[str], list[int], list[int]]:
    """The totals of some orders, by column."""
    sums: dict[str, list[int]] = {}
    for data in orders:
        total = sums.setdefault(data["customer"], [0, 0])
        total[0] += 1
        total[1] += data["amount"]
    return list(sums), [count for count, _ in sums.values()], [amount for _, amount in sums.values()]


def projection(folder: Path, server: str, template: str, n: int) -> Figures:
    """One upsert per event, exactly once, in key order."""
    with copy_of(server, template) as url:
        app = App(url)

        @app.projection(app.log("orders"), tables=["totals"])
        def totals(event: Any, tx: Any) -> None:
            data = event.data
            tx.execute(UPSERT, (data["customer"], data["amount"]))

        return _checked(app, timed(app, n), n)


def set_based(folder: Path, server: str, template: str, n: int) -> Figures:
    """One statement per list of events."""
    unnest = UNNEST.format("?", "?", "?")
    with copy_of(server, template) as url:
        app = App(url)

        @app.projection(app.log("orders"), tables=["totals"], batch=True)
        def totals(events: Any, tx: Any) -> None:
            tx.execute(unnest, _columns(event.data for event in events))

        return _checked(app, timed(app, n), n)


def _checked(app: App, figures: Figures, n: int) -> Figures:
    with app.reader() as tx:
        check("on Postgres", tx.execute("SELECT * FROM totals").fetchall(), totals_of(orders(n)))
    app.close()
    return figures


def unordered(folder: Path, server: str, template: str, n: int, poison: str) -> Figures:
    """The same function without poison, with an error raised by Python, or by a constraint of the table."""
    rule = retry(attempts=ATTEMPTS, wait="0s", wait_max="0s")
    with copy_of(server, template) as url:
        app = App(url)

        @app.projection(app.log("orders"), tables=["totals"], order="none", retry=rule)
        def totals(event: Any, tx: Any) -> None:
            data = event.data
            amount = data["amount"]
            if is_poison(data) and poison == "sql":
                amount = -1_000 * KEYS * amount
            tx.execute(UPSERT, (data["customer"], amount))
            if is_poison(data) and poison == "python":
                raise ValueError(f"order {data['seq']} cannot be applied")

        figures = asyncio.run(timed_until(app, n))
        made = orders(n)
        good = [order for order in made if not (poison and order.is_poison)]
        with app.reader() as tx:
            check(f"{poison} poison", tx.execute("SELECT * FROM totals").fetchall(), totals_of(good))
            dead = tx.execute("SELECT position FROM redrive.letters WHERE state = 'dead'").fetchall()
        check_letters({position for (position,) in dead}, [order for order in made if poison and order.is_poison])
        app.close()
        return figures
