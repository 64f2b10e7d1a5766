"""The job by quixstreams, in an interpreter that has it and nothing of redrive's: `python -m bench.quix …`.

One upsert per message, committed by itself: its checkpoints go to Kafka whenever five seconds are over, so what waited
for company in an open transaction could be lost. What was applied since the last checkpoint is applied again after a
crash: at least once, where redrive's is once.
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


def run(bootstrap: str, topic: str, n: int, folder: Path) -> dict[str, float]:
    """Until n messages are applied."""
    from quixstreams import Application  # type: ignore[import-not-found,unused-ignore]
    from quixstreams.models.topics.admin import (  # type: ignore[import-not-found,unused-ignore]
        TopicAdmin,
        TopicConfig,
    )

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
    )  # fmt: skip
    done, times = 0, [0.0, 0.0, 0.0, 0.0]

    def apply(data: Any) -> None:
        nonlocal done
        if not done:  # joining its group takes the mock seconds, which are not its own
            times[:2] = time.perf_counter(), time.process_time()
        execute(UPSERT, (data["customer"], data["amount"]))
        done += 1
        if done == n:
            times[2:] = time.perf_counter(), time.process_time()
            app.stop()

    app.dataframe(app.topic(topic, value_deserializer="json")).update(apply)
    app.run()
    check("quixstreams", execute("SELECT * FROM totals"), totals_of(orders(n)))
    wall, cpu = times[2] - times[0], times[3] - times[1]
    return {"n": n, "rate": n / wall, "seconds": wall, "cpu_rate": n / cpu}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))))
