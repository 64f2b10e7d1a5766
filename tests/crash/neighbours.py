"""Others at the same file: a user who reads with the stdlib and with SQLAlchemy, a user who writes, more writers."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from worker_app import build, produce

from redrive import App

TOTALS = "SELECT (SELECT coalesce(sum(cents), 0) FROM balance), (SELECT coalesce(sum(cents), 0) FROM balance_rows)"


READS_MIN = 25  # by each of them


class Readers:
    """Threads that read the totals again and again, on connections of their own, until told to stop."""

    def __init__(self, path: str) -> None:
        self.done = threading.Event()
        self.errors: list[str] = []
        self.counts = {"stdlib": 0, "sqlalchemy": 0}
        readers = (("stdlib", self._stdlib), ("sqlalchemy", self._sqlalchemy))
        self._threads = [threading.Thread(target=self._loop, args=(name, read, path)) for name, read in readers]
        for thread in self._threads:
            thread.start()

    async def have_read(self, times: int) -> None:
        """Each of them has read so often, or met something."""
        while not self.errors and min(self.counts.values()) < times:
            await asyncio.sleep(0.005)

    def stop(self) -> None:
        self.done.set()
        for thread in self._threads:
            thread.join()

    def _loop(self, name: str, read: Callable[[str], tuple[int, int]], path: str) -> None:
        while not self.done.is_set():
            try:
                upserted, inserted = read(path)
            except Exception as error:
                self.errors.append(f"{name}: {error!r}")
                return
            if upserted != inserted:
                self.errors.append(f"{name}: a torn read, {upserted} and {inserted}")
            self.counts[name] += 1

    def _stdlib(self, path: str) -> tuple[int, int]:
        connection = sqlite3.connect(path)  # opened and closed each time: closing must not drop the engine's locks
        try:
            row: tuple[int, int] = connection.execute(TOTALS).fetchone()
        finally:
            connection.close()
        return row

    def _sqlalchemy(self, path: str) -> tuple[int, int]:
        from sqlalchemy import create_engine, text

        if not hasattr(self, "_engine"):
            self._engine = create_engine(f"sqlite:///{path}")
        with self._engine.connect() as connection:
            upserted, inserted = connection.execute(text(TOTALS)).one()
        return upserted, inserted


def write(path: str, done: threading.Event, written: list[int]) -> None:
    """A user's own transactions, as the stdlib makes them, in the process of the engine."""
    connection = sqlite3.connect(path, timeout=30)
    connection.execute("CREATE TABLE IF NOT EXISTS mine (n INTEGER)")
    while not done.is_set():
        with connection:
            connection.execute("INSERT INTO mine VALUES (?)", (written[0],))
        written[0] += 1
        done.wait(0.002)
    connection.close()


def work_among_readers(path: str, flakes: str, acks: str, seed: int, upto: int, report: str) -> None:
    """A worker, a producer, two readers and a writer in one process; says what they met."""
    app = build(path, flakes)
    written = [0]
    done = threading.Event()
    writer = threading.Thread(target=write, args=(path, done, written))

    async def main() -> None:
        async with app.running():
            readers = Readers(path)
            await readers.have_read(1)  # SQLAlchemy may take longer to import than all of the work
            writer.start()
            await asyncio.to_thread(produce, path, acks, seed, upto)
            while any(status.lag_events for status in app.operate("test").status()):
                await asyncio.sleep(0.005)
            await readers.have_read(READS_MIN)
            done.set()
            writer.join()
            readers.stop()
            lines = [*readers.errors, *(f"{name} {count}" for name, count in readers.counts.items())]
            Path(report).write_text("\n".join([*lines, f"written {written[0]}"]))

    asyncio.run(main())
    app.close()


def hammer(path: str, name: str, count: int, start: str) -> None:
    """One of several processes that append and checkpoint as often as they can."""
    from misbehaving import wait_for_file

    app = App(path)
    log = app.log(name)
    wait_for_file(start)
    for n in range(count):
        log.append("hit", {"n": n, "pad": "x" * (n % 7 * 500)}, key=str(n % 5))
    app.close()


def hammer_plainly(path: str, count: int, start: str) -> None:
    """A stranger without redrive, with SQLite's own automatic checkpoints."""
    from misbehaving import wait_for_file

    connection = sqlite3.connect(path, timeout=30)
    connection.execute("PRAGMA wal_autocheckpoint = 2")
    wait_for_file(start)
    for n in range(count):
        with connection:
            connection.execute("INSERT INTO sent VALUES (?)", (1000 + n,))
    os.kill(os.getpid(), signal.SIGKILL)  # without closing: the last one to close would tidy up
