"""The job on a Kafka topic: redrive beside the loop one would write by hand, and quixstreams.

The broker is librdkafka's mock cluster in the process of the lab, so the processor time of a contestant is its own.
Each clock begins with the first message that is there to be applied and ends when the last one is committed; processor
time is counted from before there is a client. What comes before is the broker's: a group takes the mock seconds.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.job import TOTALS, UPSERT, check, orders, payload, totals_of
from bench.lab import ROOT, Figures, Stopwatch, environment, load_runner
from redrive import App
from redrive.kafka import Topic
from redrive.observe.signals import Settled, Signal
from redrive.testing.kafka import Kafka, write

PER_TRANSACTION = 100
PARTITIONS = 8  # the mock keeps about 5 MB of each
TOPIC = "orders"
QUIX = ROOT / ".venv" / "quixstreams"  # a venv of its own: it needs an older client, which has another mock


def build(n: int) -> Kafka:
    """A broker whose topic holds n orders."""
    cluster = Kafka()
    cluster.make(TOPIC, PARTITIONS)
    write(cluster.bootstrap, (
        {"topic": TOPIC, "partition": int(order.key[-4:]) % PARTITIONS, "key": order.key, "value": payload(order)}
        for order in orders(n)
    ))  # fmt: skip
    return cluster


def raw(folder: Path, bootstrap: str, n: int) -> Figures:
    """Consume a hundred, apply a hundred, remember the offsets in the same transaction, commit."""
    from confluent_kafka import Consumer, TopicPartition

    path = str(folder / "raw.db")
    with Stopwatch() as watch:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "raw", "enable.auto.commit": False})
        connection = sqlite3.connect(path, isolation_level=None)
        execute = connection.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        execute(TOTALS)
        execute("CREATE TABLE progress (partition INTEGER PRIMARY KEY, offset INTEGER NOT NULL)")
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        done = 0
        while done < n:
            messages = consumer.consume(min(PER_TRANSACTION, n - done), 1.0)
            watch.begin()
            execute("BEGIN IMMEDIATE")
            offsets = {}
            for message in messages:
                assert message.error() is None
                data = json.loads(message.value())  # type: ignore[arg-type]
                execute(UPSERT, (data["customer"], data["amount"]))
                offsets[message.partition()] = message.offset()
            connection.executemany("INSERT OR REPLACE INTO progress VALUES (?, ?)", offsets.items())
            execute("COMMIT")
            done += len(messages)
        watch.stop()
        consumer.close()
    check("raw on Kafka", execute("SELECT * FROM totals"), totals_of(orders(n)))
    connection.close()
    return watch.figures(n)


def projection(folder: Path, bootstrap: str, n: int) -> Figures:
    """Every message lands in the log, and is applied from there: exactly once, in key order."""
    import confluent_kafka.admin  # noqa: F401  a measured run does not pay for an import

    import redrive.kafka.reading  # noqa: F401

    app = App(str(folder / "own.db"))
    with app.transaction() as tx:
        tx.execute(TOTALS)

    watch, left = Stopwatch(), n

    @app.projection(Topic(bootstrap, TOPIC), tables=["totals"])
    def totals(event: Any, tx: Any) -> None:
        watch.begin()
        data = event.data
        tx.execute(UPSERT, (data["customer"], data["amount"]))

    @app.listen
    def count(batch: Sequence[Signal]) -> None:
        nonlocal left
        left -= sum(told.applied for told in batch if isinstance(told, Settled))
        if left == 0:
            watch.stop()

    load_runner()
    with watch:
        asyncio.run(app.serve(until_idle=True))
    with app.reader() as tx:
        check("projection on Kafka", tx.execute("SELECT * FROM totals"), totals_of(orders(n)))
    app.close()
    return watch.figures(n)


def quixstreams(folder: Path, bootstrap: str, n: int, way: str = "function") -> Figures:
    """Its own loop, at least once, in a process of its own; a function for each message, or a sink for many."""
    if not (QUIX / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(QUIX)], check=True, capture_output=True)
    python = str(QUIX / "bin" / "python")
    if subprocess.run([python, "-c", "import quixstreams"], capture_output=True, check=False).returncode:
        subprocess.run([python, "-m", "pip", "install", "-q", "quixstreams>=3.20"], check=True, capture_output=True)
    command = [python, "-m", "bench.quix", bootstrap, TOPIC, str(n), str(folder), way]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures
