"""A million letters: how long an operator waits for a page, for one letter, for the counts."""

from __future__ import annotations

import itertools
import random
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import redrives
from bench.lab import Figures
from redrive import App

CHUNK = 50_000
PAGE = 50
LOOKS = 25

# What a bad night leaves behind: 300,000 dead letters with one event behind each, one customer with 100,000 events
# behind a single one, 150,000 dead letters alone, and 150,000 that were settled. Two common causes and two hundred
# rare ones. Triggers keep the counters and the journal.
FILL = """
WITH placed AS (SELECT *, position * 10000 / :n AS part FROM redrive_events
                WHERE position > :above AND position <= :upto),
     laned AS (SELECT *, CASE WHEN part < 6000 THEN 'order-' || (position / 2) WHEN part < 7000 THEN 'customer-big'
                              ELSE 'order-' || position END AS lane,
                      CASE WHEN part >= 8500 THEN iif(position % 3 = 0, 'discarded', 'applied')
                           WHEN part < 6000 AND position % 2 = 1 AND position > 1 THEN 'retrying'
                           WHEN part >= 6000 AND part < 7000 AND (position - 1) * 10000 / :n >= 6000 THEN 'retrying'
                           ELSE 'dead' END AS state FROM placed)
INSERT INTO redrive_letters (subscription, position, lane, event_id, type, key, state, reason, attempts, due_at,
       due_set_at, delay, parked_at, first_failed_at, last_failed_at, error_type, error_message, fingerprint,
       touched_at)
SELECT 1, position, lane, id, type, lane, state,
       iif(state = 'retrying', 'behind_head', iif(position % 50 = 0, 'rejected', 'attempts_exhausted')),
       iif(state = 'retrying', 0, 5), 0, 0, 0, 1700000000,
       iif(state = 'retrying', NULL, 1700000000), iif(state = 'retrying', NULL, 1700000000 + position),
       iif(state = 'retrying', '', iif(position % 100 < 90, 'shop.PaymentRefused', 'ValueError')),
       iif(state = 'retrying', '', 'the bank refused order ' || position || ' with a text of the usual length'),
       iif(state = 'retrying', '', CASE WHEN part = 8499 THEN 'feedfacecafe'
           WHEN position % 100 < 90 THEN '000000000001' WHEN position % 100 < 99 THEN '000000000002'
           ELSE printf('%012x', 3 + position / 100 % 200) END),
       1700000000 + position
FROM laned
"""
# One operation over a third of all letters, and a page of small ones after it.
OPERATIONS = """
INSERT INTO redrive_operations (action, who, reason, at, selected, ended_at)
SELECT 'replay', 'ada', 'fixed', 1700000000 + value, iif(value = 0, :n / 3, 1), 1700000000 FROM json_each(:numbers);
"""
OPERATED = """
INSERT INTO redrive_operation_letters (operation, letter, rev, asked, result, why)
SELECT iif(id <= :n / 3, 1, 2 + id % 55), id, 0, 1, iif(id % 7 = 0, 'failed', 'applied'), ''
FROM redrive_letters WHERE id <= :n / 3 + 500
"""
SAID = "SELECT id, error_type, error_message FROM redrive_letters WHERE state = 'dead' AND id > ? AND id <= ?"


def build(path: Path, n: int, events: Path) -> None:
    """Letters for the events of a prepared log."""
    path.write_bytes(events.read_bytes())
    app = App(str(path))

    @app.projection(app.log("orders"), name="totals", start="now")
    def totals(event: Any, tx: Any) -> None: ...

    redrives.timed(app, 1)  # registers the subscription
    app.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -256000")
    for at in range(0, n, CHUNK):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(FILL, {"above": at, "upto": min(at + CHUNK, n), "n": n})
        connection.execute("COMMIT")
    connection.execute(OPERATIONS, {"n": n, "numbers": str([*range(60)])})
    connection.execute(OPERATED, {"n": n})
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    _sift(path, n)


def _sift(path: Path, n: int) -> None:
    """What no trigger keeps: the sieve through which `--error` searches."""
    app = App(str(path))
    for at in range(0, n, CHUNK):
        with app.runtime.store.transaction() as tx:
            tx.letters.sieve.add(tx.connection.execute(SAID, (at, at + CHUNK)).fetchall())
    app.close()


def look(folder: Path, template: str, n: int) -> Figures:
    """Read only, so the prepared file itself is used. The worst of several pages is the page figure."""
    app = App(template)
    store = app.runtime.store
    dice = random.Random(3)

    def timed(ask: Callable[[Any], Any]) -> float:
        times = []
        for _ in range(LOOKS):
            started = time.perf_counter()
            with store.reading() as tx:
                found = ask(tx)
            times.append(time.perf_counter() - started)
            assert found, "there is always something to find"
        return median(times) * 1e3

    with store.reading() as tx:
        total = sum(tx.letters.counts(1).values())
        assert total == n, f"{total} letters counted, not {n}"
        some = [row[0] for row in tx.sql.connection.execute("SELECT event_id FROM redrive_letters WHERE id % 9973 = 1")]
    which = list(itertools.product(("dead", "retrying"), (None, 1), (0, n // 2)))
    pages = [timed(partial(_page, *one)) for one in which]
    by_id = timed(lambda tx: _one(tx, dice.randrange(1, n)))
    by_event = timed(lambda tx: tx.sql.all("select_by_event", {"start": dice.choice(some), "limit": 2}))
    stats = timed(lambda tx: tx.sql.all("letter_counts"))
    app.close()
    return {"n": n, "page_ms": max(pages), "by_id_ms": max(by_id, by_event), "stats_ms": stats}


def _page(state: str, subscription: int | None, after: int, tx: Any) -> Any:
    return tx.letters.page(state, subscription, after, PAGE)


def _one(tx: Any, letter: int) -> Any:
    """What `dlq show` needs: the letter, its event, its history."""
    found = tx.letters.get(letter)
    tx.sql.all("attempts_of", {"letter": letter})
    return found and tx.letters.event(letter)
