"""The job by quixstreams, in an interpreter that has it and nothing of redrive's: `python -m bench.quix …`.

Its checkpoints go to Kafka whenever five seconds are over, or so many messages: what was applied since the last one is
applied again after a crash. At least once, where redrive's is once. Two ways of doing it: a function that is called for
each message and commits its upsert (what waited for company in an open transaction could be lost), or a sink that has a
thousand messages in one transaction before its checkpoint, which fail together.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from bench.job import TOTALS, UPSERT, check, orders, totals_of

PER_CHECKPOINT = 1_000


def run(bootstrap: str, topic: str, n: int, folder: Path, way: str) -> dict[str, float]:
    """Until n messages are applied."""
    from quixstreams import Application  # type: ignore[import-not-found,unused-ignore]
    from quixstreams.models.topics.admin import (  # type: ignore[import-not-found,unused-ignore]
        TopicAdmin,
        TopicConfig,
    )
    from quixstreams.sinks import BatchingSink  # type: ignore[import-not-found,unused-ignore]

    # Before it reads it asks for the configuration of the topic, which the mock cluster does not know.
    TopicAdmin.inspect_topics = lambda self, names, timeout=30: {
        name: TopicConfig(len(found.partitions), 1, {"retention.bytes": "-1", "retention.ms": "-1"})
        for name, found in self.list_topics(timeout=timeout).items()
        if name in names
    }
    connection = sqlite3.connect(folder / "quix.db", isolation_level=None, check_same_thread=False)
    execute = connection.execute
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = NORMAL")
    execute(TOTALS)
    app = Application(
        broker_address=bootstrap, consumer_group=f"quix-{os.getpid()}", auto_offset_reset="earliest",
        auto_create_topics=False, state_dir=str(folder / "state"), loglevel="ERROR",
        commit_every=PER_CHECKPOINT if way == "sink" else 0,
    )  # fmt: skip
    done, began, ended = 0, 0.0, (0.0, 0.0)

    def apply(data: Any) -> None:
        nonlocal done, began, ended
        began = began or time.perf_counter()  # joining its group takes the mock seconds, which are not its own
        execute(UPSERT, (data["customer"], data["amount"]))
        done += 1
        if done == n:
            ended = time.perf_counter(), time.process_time()
            app.stop()

    class Sink(BatchingSink):  # type: ignore[misc,unused-ignore]
        """Called with what a partition gave since the last checkpoint."""

        def add(self, *args: Any, **more: Any) -> None:
            nonlocal began
            began = began or time.perf_counter()
            super().add(*args, **more)

        def write(self, batch: Any) -> None:
            execute("BEGIN IMMEDIATE")
            for item in batch:
                apply(item.value)
            execute("COMMIT")

    frame = app.dataframe(app.topic(topic, value_deserializer="json"))
    if way == "sink":
        frame.sink(Sink())
    else:
        frame.update(apply)
    cpu = time.process_time()  # messages are fetched before the first is applied
    app.run()
    check("quixstreams", execute("SELECT * FROM totals"), totals_of(orders(n)))
    wall, cpu = ended[0] - began, ended[1] - cpu
    return {"n": n, "rate": n / wall, "seconds": wall, "cpu_rate": n / cpu}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])))
