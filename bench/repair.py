"""An operator replays many of very many dead letters beside a live worker: does it complete, and what do others wait?

`python -m bench.repair file` is the worker. New events of other keys are appended meanwhile; the lag is how long each
waits until its handler is called. The rate is 1,000 a second for 10,000 letters, to keep a round short.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.lab import ROOT, Figures, environment
from redrive import App, Ctx, Event, no_retry
from redrive.settings import Settings

RATE = 1_000.0  # replays a second
SHARE = 30  # one letter in so many is replayed
LIVE_EVERY = 0.05  # seconds between two new events
SECONDS_MAX = 300.0

EVENTS = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :n)
INSERT INTO redrive_events (log, id, type, key, version, schema, time_us, data)
SELECT 1, 'order-' || n, 'order.placed', 'k' || n, 1, 1, 1700000000000000, CAST('{}' AS BLOB) FROM numbers
"""
LETTERS = """
INSERT INTO redrive_letters (subscription, position, lane, event_id, type, key, state, reason, attempts, due_at,
       due_set_at, delay, parked_at, first_failed_at, last_failed_at, error_type, error_message, fingerprint,
       touched_at)
SELECT 1, position, key, id, type, key, 'dead', 'attempts_exhausted', 5, 0, 0, 0, 1700000000, 1700000000, 1700000000,
       'shop.PaymentRefused', 'the bank refused it', iif(position % :share = 0, '000000000001', '000000000002'),
       1700000000
FROM redrive_events
"""
SETTLED = "UPDATE redrive_progress SET position = :n, anchor = 'order-' || :n"


def declare(path: str) -> App:
    """The program that the worker runs."""
    app = App(path, settings=Settings(http="off"))

    @app.on(app.log("orders"), start="first", retry=no_retry)
    def charge(event: Event[Any], ctx: Ctx) -> None:
        if "at" in event.data:
            ctx.execute("INSERT INTO waits VALUES (:seconds)", {"seconds": time.time() - event.data["at"]})

    return app


def repair(folder: Path, n: int) -> Figures:
    """Seconds from the first letter that is asked for to the last that has run, beside what they must take."""
    path = folder / "shop.db"
    _fill(path, n)
    app = declare(str(path))
    command = [sys.executable, "-m", "bench.repair", str(path)]
    worker = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)
    over = threading.Event()
    live = threading.Thread(target=_append, args=(app, over))
    try:
        live.start()
        while min(_waits(app), default=1.0) > 0.1:  # the worker starts, and reads all letters once
            time.sleep(0.1)
        with app.transaction() as tx:
            tx.execute("DELETE FROM waits")
        started = time.perf_counter()
        applied = _replay(app)
        seconds = time.perf_counter() - started
    finally:
        over.set()
        if live.is_alive():
            live.join()
        worker.terminate()
        worker.wait()
    waits = _waits(app)
    app.close()
    assert applied == n // SHARE, f"{applied} letters were applied, not {n // SHARE}"
    return {
        "n": applied, "rate": applied / seconds, "seconds": seconds, "share": applied / RATE / seconds,
        "lag_ms": waits[-1] * 1e3, "lag_p50_ms": waits[len(waits) // 2] * 1e3,
    }  # fmt: skip


def _waits(app: App) -> list[float]:
    with app.reader() as tx:
        return sorted(row[0] for row in tx.execute("SELECT seconds FROM waits"))


def _fill(path: Path, n: int) -> None:
    app = declare(str(path))
    app.run(until_idle=True)  # registers the subscription
    with app.transaction() as tx:
        tx.execute("CREATE TABLE waits (seconds REAL)")
    with app.runtime.store.transaction() as tx:
        tx.logs.id_of("orders", create=True)
        tx.connection.execute(EVENTS, {"n": n})
        tx.connection.execute(LETTERS, {"share": SHARE})
        tx.connection.execute(SETTLED, {"n": n})
    app.close()


def _replay(app: App) -> int:
    from redrive.replay.select import Selection, select

    desk = app.operate("bench")
    letters = select(app.runtime.store, Selection(fingerprint="000000000001"), heads=True)
    number = desk.bulk.begin("replay", letters, "bench", RATE)
    desk.bulk.ask(number, lambda rows, ticket: desk.letters.replay(rows, "bench", within=ticket))
    unfinished, deadline = desk.bulk.unfinished(number), time.monotonic() + SECONDS_MAX
    while unfinished.look():
        assert time.monotonic() < deadline, "the replay does not end"
        time.sleep(0.01)
    return desk.bulk.get(number).applied


def _append(app: App, over: threading.Event) -> None:
    number = 0
    while not over.wait(LIVE_EVERY):
        number += 1
        app.log("orders").append("order.placed", {"at": time.time()}, key=f"live-{number}")


if __name__ == "__main__":
    declare(sys.argv[1]).run()
