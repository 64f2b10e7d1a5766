"""The table: what is promised, how it is computed from a round, what must be reached and what is hoped for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.contest import Round, beside
from bench.listings import LISTINGS


@dataclass(frozen=True, slots=True)
class Row:
    """One line; `value` looks at one round only, so ratios are between neighbours in time."""

    topic: str
    label: str
    unit: str
    must: float
    goal: float | None
    value: Callable[[Round], float]
    more_is_better: bool = True
    yardstick: Callable[[Round], float] | None = None  # the same of a loop by hand, where it is no ratio to one

    def reaches(self, value: float, bar: float) -> bool:
        """Is a value at least as good as a bar?"""
        return value >= bar if self.more_is_better else value <= bar


@dataclass(frozen=True, slots=True)
class Result:
    """A row with what was measured."""

    row: Row
    values: tuple[float, ...]
    by_hand: float | None = None

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def verdict(self) -> str:
        if self.row.goal is not None and self.row.reaches(self.median, self.row.goal):
            return "goal"
        return "must" if self.row.reaches(self.median, self.row.must) else "missed"


def ratio(one: str, other: str) -> Callable[[Round], float]:
    """The rate of one contestant over that of another."""
    return lambda done: done[one]["rate"] / done[other]["rate"]


def beside_raw(one: str) -> Callable[[Round], float]:
    """The rate of a contestant over that of the raw loop right before it."""
    return ratio(one, beside(one))


def cpu_ratio(one: str, other: str) -> Callable[[Round], float]:
    """The same per second of processor time, where what is waited for is a broker that is none of the contestants."""
    return lambda done: done[one]["cpu_rate"] / done[other]["cpu_rate"]


def figure(who: str, name: str) -> Callable[[Round], float]:
    """A figure of one contestant."""
    return lambda done: done[who][name]


def _low(
    topic: str, label: str, unit: str, must: float, goal: float | None, value: Callable[[Round], float],
    yardstick: Callable[[Round], float] | None = None,
) -> Row:  # fmt: skip
    return Row(topic, label, unit, must, goal, value, more_is_better=False, yardstick=yardstick)


ROWS: tuple[Row, ...] = (
    Row("projection", "projection catch-up / raw loop", "x", 1.0, 1.4, ratio("projection", "raw")),
    Row("peers", "projection / eventsourcing, equal durability", "x", 15, 25, ratio("projection", "eventsourcing")),
    Row("peers", "projection / eventsource-py", "x", 200, 400, ratio("projection", "eventsource-py")),
    Row("poison", "1 % poison, 3 attempts / own clean rate", "x", 0.8, 0.9, ratio("poison", "clean")),
    Row("handlers", "async handler without effects / raw", "x", 0.8, 1.5, beside_raw("async handler")),
    Row("handlers", "sync handler without effects / raw", "x", 0.5, 1.0, beside_raw("sync handler")),
    Row("handlers", "handler with keyed state / raw", "x", 0.3, 0.6, beside_raw("keyed state")),
    Row("handlers", "handler with one emit each / raw", "x", 0.2, 0.4, beside_raw("emit")),
    Row("append", "100 producers, durable / one by one", "x", 8, 12, ratio("append together", "append one by one")),
    _low("track", "track at the caller, p50", "µs", 50, 15, figure("track", "p50_us")),
    _low("track", "track at the caller, p99", "ms", 1, None, figure("track", "p99_ms")),
    Row("track", "track from 8 threads", "events/s", 50_000, None, figure("track, 8 threads", "rate")),
    _low("failing", "failed call to letter committed, synced, p99", "ms", 10, None, figure("failing", "p99_ms")),
    _low("failing", "dead letter written and synced, p99", "ms", 5, None, figure("failing", "write_p99_ms")),
    _low("failing", "Postgres: failed call to letter committed, p99", "ms", 10, None, figure("pg failing", "p99_ms")),
    _low("failing", "Postgres: dead letter written and synced, p99", "ms", 5, None,
         figure("pg failing", "write_p99_ms")),
    Row("delivery", "delivery over HTTP, concurrency 10 / bare loop", "x", 0.8, None, figure("delivery", "share")),
    Row("delivery", "the same per second of processor time", "x", 0.8, None, figure("delivery", "cpu_share")),
    Row("delivery", "delivery to a file, synced", "events/s", 50_000, None, figure("to a file", "rate")),
    Row("delivery", "delivery to stdout", "events/s", 50_000, None, figure("to stdout", "rate")),
    Row("delivery", "outbox to Valkey, key order kept", "events/s", 20_000, None, figure("outbox", "rate")),
    _low("recovery", "dependency back to breaker closed, worst", "s", 60, None, figure("recovery", "worst_seconds")),
    _low("recovery", "the same where the sink has a probe", "s", 60, 10, figure("recovery", "probed_worst_seconds")),
    _low("latency", "append to applied, 500/s, other process, p50", "ms", 2, 1, figure("latency", "p50_ms"),
         figure("latency by hand", "p50_ms")),
    _low("latency", "append to applied, 500/s, other process, p99", "ms", 8, 4, figure("latency", "p99_ms"),
         figure("latency by hand", "p99_ms")),
    _low("latency", "idle worker, share of a core", "%", 1, None, figure("latency", "idle_cpu")),
    _low("letters", "1 M letters: a page", "ms", 2, None, figure("letters", "page_ms")),
    _low("letters", "1 M letters: by id", "ms", 2, None, figure("letters", "by_id_ms")),
    _low("letters", "1 M letters: counts", "ms", 5, None, figure("letters", "stats_ms")),
    *(
        _low("letters", f"1 M letters: redrive {line}", "ms", 50, None, figure("listings", f"{name}_ms"))
        for name, line in LISTINGS.items()
    ),
    Row("repair", "replay of 10,000 of 300,000 letters at 1,000/s: share of the rate", "x", 0.7, None,
        figure("repair", "share")),
    _low("repair", "the same: longest wait of a new event meanwhile", "ms", 1_000, 250, figure("repair", "lag_ms")),
    _low("growth", "catch-up over 1 M events: memory growth", "MB", 50, None, figure("growth", "grown_mb")),
    Row("growth", "catch-up over 1 M events / 50,000 events", "x", 0.85, None, ratio("growth", "projection")),
    Row("metrics", "projection with metrics, scraped / without", "x", 0.97, None, figure("metrics", "share")),
    _low("restart", "SIGKILL to first commit of the successor", "ms", 50, None, figure("restart", "first_ms")),
    _low("start", "import redrive", "ms", 150, None, figure("start", "import_ms")),
    _low("start", "redrive --help", "ms", 300, None, figure("start", "help_ms")),
    Row("postgres", "Postgres: projection / raw psycopg pipeline", "x", 0.8, 1.3,
        ratio("pg projection", "pg raw pipeline")),
    Row("postgres", "Postgres: projection / eventsourcing", "x", 15, 25, ratio("pg projection", "pg eventsourcing")),
    Row("postgres", "Postgres: projection / pgqueuer", "x", 8, 15, ratio("pg projection", "pg pgqueuer")),
    Row("postgres", "Postgres: projection / procrastinate", "x", 40, 80, ratio("pg projection", "pg procrastinate")),
    Row("postgres", "Postgres: set-based / raw UNNEST per 100", "x", 0.7, 1.2, ratio("pg set-based", "pg raw unnest")),
    Row("postgres", "Postgres: 1 % poison by Python / own clean rate", "x", 0.7, 0.9,
        ratio("pg python poison", "pg clean")),
    Row("postgres", "Postgres: 1 % poison by SQL / own clean rate", "x", 0.3, 0.6, ratio("pg sql poison", "pg clean")),
    _low("postgres", "Postgres: append to applied, 500/s, p50", "ms", 2.5, None, figure("pg latency", "p50_ms")),
    _low("postgres", "Postgres: append to applied, 500/s, p99", "ms", 10, None, figure("pg latency", "p99_ms")),
    Row("workers", "Postgres: two workers / one", "x", 1.3, None, ratio("pg two workers", "pg one worker")),
    _low("workers", "Postgres: SIGKILL to first commit, beyond lease", "s", 1, None,
         figure("pg take-over", "beyond_lease_seconds")),
    _low("workers", "Postgres: SIGTERM to first commit of another", "s", 0.5, None,
         figure("pg take-over", "stopped_seconds")),
    Row("redis", "Redis in order, exactly once / raw group loop", "x", 0.7, 1.0, ratio("redis in order", "redis raw")),
    Row("redis", "Redis group, exactly once / raw group loop", "x", 0.45, 0.7, ratio("redis group", "redis raw")),
    Row("redis", "Redis group / faststream, per message", "x", 12, 20, ratio("redis group", "redis faststream")),
    Row("redis", "Redis group / dramatiq", "x", 12, 20, ratio("redis group", "redis dramatiq")),
    Row("redis", "Redis group / taskiq", "x", 12, 20, ratio("redis group", "redis taskiq")),
    Row("redis", "Redis group / faststream, a hundred at once", "x", 1.0, 1.5,
        ratio("redis group", "redis faststream batch")),
    Row("redis", "Redis group into a log of 2 M / an empty one", "x", 0.85, None,
        ratio("redis group, grown", "redis group")),
    _low("redis", "XADD to applied, 500/s, other process, p50", "ms", 0.8, None, figure("redis latency", "p50_ms"),
         figure("redis latency by hand", "p50_ms")),
    _low("redis", "XADD to applied, 500/s, other process, p99", "ms", 3, None, figure("redis latency", "p99_ms"),
         figure("redis latency by hand", "p99_ms")),
    Row("kafka", "Kafka (mock): projection / raw loop, per processor time", "x", 0.4, 0.7,
        cpu_ratio("kafka projection", "kafka raw")),
    # What quixstreams waits for is the disk, where its function commits each message: its own doing.
    Row("kafka", "Kafka (mock): projection / quixstreams", "x", 2, 3, ratio("kafka projection", "kafka quixstreams")),
    Row("kafka", "Kafka (mock): projection / quixstreams, per processor time", "x", 2, 3,
        cpu_ratio("kafka projection", "kafka quixstreams")),
)  # fmt: skip


def results(rounds: Sequence[Round], topics: set[str]) -> list[Result]:
    """Every row of the chosen topics."""
    return [_result(row, rounds) for row in ROWS if row.topic in topics]


def _result(row: Row, rounds: Sequence[Round]) -> Result:
    by_hand = None if row.yardstick is None else median(map(row.yardstick, rounds))
    return Result(row, tuple(map(row.value, rounds)), by_hand)
