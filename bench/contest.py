"""Who runs, on what: every contestant runs once per round, one after the other, so that ratios compare neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import kafka, letters, postgres, raw, redis, redrives
from bench.lab import Figures, Lab

Round = dict[str, Figures]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    events: int = 50_000
    fast_peer: int = 5_000  # enough for a steady rate; the job of 50,000 would take it six seconds a round
    slow_peer: int = 500
    job_queue: int = 1_000
    appends: int = 20_000
    appends_one_by_one: int = 2_000
    growth: int = 1_000_000
    letters: int = 1_000_000
    latency_per_second: int = 500
    latency_seconds: float = 4.0
    idle_seconds: float = 3.0
    lease_seconds: float = 3.0  # the default of 10 s would only make the take-over longer to wait for
    tracked: int = 80_000  # a second and a half of eight threads
    failed: int = 1_000  # one after the other, each synced twice
    delivered: int = 5_000  # a second over HTTP, six times
    outages: int = 34  # four cooldowns
    redis_peer: int = 5_000
    markers: int = 2_000_000
    held: int = 300_000  # dead letters, of which one in thirty is replayed: ten seconds


QUICK = Sizes(1_000, 100, 20, 20, 1_000, 50, 3_000, 3_000, 200, 0.5, 0.2, 1.0, 2_000, 20, 50, 2, 100, 5_000, 3_000)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A function of this package, run in a process of its own."""

    name: str
    topic: str
    function: str
    arguments: Callable[[Lab], dict[str, Any]]


BESIDE = "raw beside "  # a machine's speed changes within seconds: the loop by hand runs before each that it measures


def beside(name: str) -> str:
    """The run of the raw loop right before this contestant's."""
    return BESIDE + name


def contestants(sizes: Sizes) -> list[Contestant]:
    """All of them, in the order of a round: first those that others are compared with."""
    n = sizes.events

    def raw_file(lab: Lab) -> dict[str, Any]:
        return {"template": str(lab.prepared("raw", lambda path: raw.build(path, n))), "n": n}

    def own_file(lab: Lab) -> dict[str, Any]:
        return {"template": str(lab.prepared("own", lambda path: redrives.build(path, n))), "n": n}

    def own(name: str, topic: str, function: str, **more: Any) -> Contestant:
        return Contestant(name, topic, f"bench.redrives:{function}", lambda lab: own_file(lab) | more)

    def beside_raw(name: str, function: str, **more: Any) -> Iterator[Contestant]:
        yield Contestant(beside(name), "handlers", "bench.raw:catch_up", raw_file)
        yield own(name, "handlers", function, **more)

    def plain(name: str, topic: str, function: str, **arguments: Any) -> Contestant:
        return Contestant(name, topic, function, lambda lab: arguments)

    return [
        Contestant("raw", "raw", "bench.raw:catch_up", raw_file),
        own("projection", "projection", "projection"),
        plain("eventsourcing", "peers", "bench.peers:eventsourcing", n=sizes.fast_peer),
        plain("eventsource-py", "peers", "bench.peers:eventsource_py", n=sizes.slow_peer),
        own("clean", "poison", "unordered", poison=False),
        own("poison", "poison", "unordered", poison=True),
        *beside_raw("async handler", "handler", kind="async"),
        *beside_raw("sync handler", "handler", kind="sync"),
        *beside_raw("keyed state", "stateful"),
        *beside_raw("emit", "emitting"),
        plain("append one by one", "append", "bench.append:one_by_one", n=sizes.appends_one_by_one),
        plain("append together", "append", "bench.append:together", n=sizes.appends),
        plain("append alone", "append", "bench.append:alone", n=sizes.appends_one_by_one),
        plain("track", "track", "bench.track:one_caller", n=sizes.tracked // 4),
        plain("track, 8 threads", "track", "bench.track:many_callers", n=sizes.tracked),
        plain("failing", "failing", "bench.failing:failing", n=sizes.failed),
        Contestant("pg failing", "failing", "bench.failing:failing",
                   lambda lab: {"n": sizes.failed, "server": lab.server.url}),
        Contestant("delivery", "delivery", "bench.delivery:delivery", lambda lab: _big_file(lab, sizes.delivered)),
        Contestant("to a file", "delivery", "bench.delivery:to_file", own_file),
        Contestant("to stdout", "delivery", "bench.delivery:to_stdout", own_file),
        plain("outbox", "delivery", "bench.outbox:relay", n=n),
        plain("recovery", "recovery", "bench.recovery:recovery", outages=sizes.outages),
        plain("latency by hand", "latency", "bench.byhand:latency", per_second=sizes.latency_per_second,
              seconds=sizes.latency_seconds),
        plain("latency", "latency", "bench.latency:latency", per_second=sizes.latency_per_second,
              seconds=sizes.latency_seconds, idle_seconds=sizes.idle_seconds),
        Contestant("letters", "letters", "bench.letters:look", lambda lab: _letters_file(lab, sizes)),
        Contestant("listings", "letters", "bench.listings:look", lambda lab: _letters_file(lab, sizes)),
        plain("repair", "repair", "bench.repair:repair", n=sizes.held),
        Contestant("growth", "growth", "bench.redrives:projection", lambda lab: _big_file(lab, sizes.growth)),
        Contestant("metrics", "metrics", "bench.watched:watched", lambda lab: _big_file(lab, 4 * n)),
        Contestant("restart", "restart", "bench.restart:restart", own_file),
        plain("start", "start", "bench.start:start"),
        *_on_postgres(sizes),
        *_on_kafka(sizes),
        *_on_redis(sizes),
    ]  # fmt: skip


def _on_postgres(sizes: Sizes) -> list[Contestant]:
    n = sizes.events

    def built(lab: Lab, name: str, build: Callable[[str, int], None], count: int) -> dict[str, Any]:
        return {"server": lab.server.url, "template": lab.database(f"{name} {count}", lambda url: build(url, count))}

    def raw(name: str, **more: Any) -> Contestant:
        function = "bench.postgres:raw"
        return Contestant(
            name, "postgres", function, lambda lab: built(lab, "raw", postgres.build_raw, n) | {"n": n} | more
        )

    def own(name: str, function: str, **more: Any) -> Contestant:
        return Contestant(
            name, "postgres", function, lambda lab: built(lab, "own", postgres.build, n) | {"n": n} | more
        )

    def peer(name: str, function: str, count: int) -> Contestant:
        return Contestant(
            name, "postgres", f"bench.pgpeers:{function}", lambda lab: {"server": lab.server.url, "n": count}
        )

    def fleet(name: str, function: str, **more: Any) -> Contestant:
        rest = {"lease": sizes.lease_seconds, **more}
        return Contestant(name, "workers", function, lambda lab: built(lab, "empty", postgres.build, 0) | rest)

    return [
        raw("pg raw pipeline"),
        own("pg projection", "bench.postgres:projection"),
        peer("pg eventsourcing", "eventsourcing", sizes.fast_peer),
        peer("pg pgqueuer", "pgqueuer", sizes.fast_peer),
        peer("pg procrastinate", "procrastinate", sizes.job_queue),
        raw("pg raw unnest", unnest=True),
        own("pg set-based", "bench.postgres:set_based"),
        own("pg clean", "bench.postgres:unordered", poison=""),
        own("pg python poison", "bench.postgres:unordered", poison="python"),
        own("pg sql poison", "bench.postgres:unordered", poison="sql"),
        Contestant("pg latency", "postgres", "bench.latency:latency", lambda lab: {
            "per_second": sizes.latency_per_second, "seconds": sizes.latency_seconds,
            "idle_seconds": sizes.idle_seconds, "server": lab.server.url}),
        fleet("pg one worker", "bench.fleet:together", n=n, workers=1),
        fleet("pg two workers", "bench.fleet:together", n=n, workers=2),
        fleet("pg take-over", "bench.fleet:take_over"),
    ]  # fmt: skip


def _on_redis(sizes: Sizes) -> list[Contestant]:
    n = sizes.events

    def own(name: str, function: str, **more: Any) -> Contestant:
        return Contestant(
            name, "redis", f"bench.redis:{function}", lambda lab: {"server": lab.stream(n, redis.fill), "n": n} | more
        )

    def peer(name: str, function: str, count: int, **more: Any) -> Contestant:
        return Contestant(
            name, "redis", f"bench.redispeers:{function}", lambda lab: {"server": lab.valkey.url, "n": count} | more
        )

    def grown(lab: Lab) -> dict[str, Any]:
        server = lab.stream(n, redis.fill)
        made = lab.prepared("grown", lambda path: redis.build_grown(path, server, sizes.markers))
        return {"server": server, "n": n, "ordered": False, "template": str(made)}

    return [
        own("redis raw", "raw"),
        own("redis in order", "projection", ordered=True),
        own("redis group", "projection", ordered=False),
        Contestant("redis group, grown", "redis", "bench.redis:projection", grown),
        peer("redis faststream", "faststream", sizes.redis_peer),
        peer("redis faststream batch", "faststream", n, batch=True),
        peer("redis dramatiq", "dramatiq", sizes.redis_peer),
        peer("redis taskiq", "taskiq", sizes.redis_peer),
        Contestant("redis latency by hand", "redis", "bench.byhand:from_redis", lambda lab: {
            "server": lab.valkey.url, "per_second": sizes.latency_per_second, "seconds": sizes.latency_seconds}),
        Contestant("redis latency", "redis", "bench.redis:latency", lambda lab: {
            "server": lab.valkey.url, "per_second": sizes.latency_per_second, "seconds": sizes.latency_seconds,
            "idle_seconds": sizes.idle_seconds}),
    ]  # fmt: skip


def _on_kafka(sizes: Sizes) -> list[Contestant]:
    n = sizes.events

    def on_a_topic(name: str, function: str, **more: Any) -> Contestant:
        return Contestant(
            name, "kafka", f"bench.kafka:{function}",
            lambda lab: {"bootstrap": lab.topic(n, kafka.build), "n": n, **more},
        )  # fmt: skip

    return [
        on_a_topic("kafka raw", "raw"),
        on_a_topic("kafka projection", "projection"),
        on_a_topic("kafka quixstreams", "quixstreams"),
        on_a_topic("kafka quixstreams sink", "quixstreams", way="sink"),
    ]


def _big_file(lab: Lab, n: int) -> dict[str, Any]:
    return {"template": str(lab.prepared(f"big-{n}", lambda path: redrives.build(path, n))), "n": n}


def _letters_file(lab: Lab, sizes: Sizes) -> dict[str, Any]:
    events = Path(_big_file(lab, sizes.letters)["template"])
    made = lab.prepared("letters", lambda path: letters.build(path, sizes.letters, events))
    return {"template": str(made), "n": sizes.letters}


TOPICS = tuple(dict.fromkeys(contestant.topic for contestant in contestants(QUICK) if contestant.topic != "raw"))
NEEDS = {  # what a topic is compared with must run in the same round
    "projection": {"raw"},
    "peers": {"projection"},
    "growth": {"projection"},
}


def chosen(sizes: Sizes, topics: set[str]) -> list[Contestant]:
    """The contestants of some topics and whatever they are compared with."""
    wanted = topics.union(*(NEEDS.get(topic, set()) for topic in topics))
    return [contestant for contestant in contestants(sizes) if contestant.topic in wanted]


def rounds(lab: Lab, who: list[Contestant], count: int, tell: Callable[[str], None]) -> Iterator[Round]:
    """Round after round."""
    for contestant in who:
        tell(f"preparing {contestant.name}")
        contestant.arguments(lab)
    for number in range(count):
        done: Round = {}
        for contestant in who:
            tell(f"round {number + 1} of {count}: {contestant.name}")
            done[contestant.name] = lab.run(contestant.function, **contestant.arguments(lab))
        yield done
