"""SIGKILL while two workers read a topic and take over from each other: every message is applied once, in key order."""

from __future__ import annotations

import itertools
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Child, Zygote, wait_until
from topics import build

from redrive.failpoints import NAMES
from redrive.testing.kafka import Topics, kafka, write

KILLS = 60  # on each store
PARTITIONS, KEYS, WORKERS = 3, 7, 2
PATIENT_LOOKS = 15
PLACES = [name for name in NAMES if name.startswith(("land.", "batch.", "lease."))]


class Producer:
    """Knows what it has written: the expected values are made of this, and of nothing that redrive has stored."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.applied: dict[str, list[int]] = {}
        self.letters: Counter[tuple[str, str]] = Counter()
        self._numbers = itertools.count()

    def say(self, count: int, dice: random.Random) -> None:
        """Mostly events; now and then one that its function rejects, or one that is none. Those have their own keys."""
        write(self.bootstrap, [self._message(next(self._numbers), dice) for _ in range(count)])

    def _message(self, n: int, dice: random.Random) -> dict[str, Any]:
        kind = dice.random()
        if kind < 0.04:
            key, value, reason = f"bad{n}", "{", "undecodable"
        elif kind < 0.08:
            key, value, reason = f"below{n}", str(-n - 1), "rejected"
        else:
            key, value, reason = f"k{n % KEYS}", str(n), ""
        if reason:
            self.letters[key, reason] += 1
        else:
            self.applied.setdefault(key, []).append(n)
        return {"topic": self.topic, "partition": n % KEYS % PARTITIONS, "key": key, "value": value}


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    with kafka() as found:
        yield found


def next_to_die(workers: list[Child], producer: Producer, dice: random.Random) -> Child:
    """Whoever comes to its failpoint; or anybody, at any moment, if each waits for what the other one does."""
    looks = itertools.count(1)

    def dead() -> list[Child]:
        producer.say(dice.randint(1, 12), dice)
        if next(looks) > PATIENT_LOOKS:
            dice.choice(workers).kill()
        return [worker for worker in workers if worker.ended]

    return wait_until(dead, what="a worker dies", every=0.02)[0]


def test_kills_and_takeovers_while_a_topic_is_read_change_nothing(
    topics: Topics, store: str | None, zygote: Zygote, tmp_path: Path
) -> None:
    topic = topics.make("orders", PARTITIONS)
    arguments = {"store": store or str(tmp_path / "shop.db"), "bootstrap": topics.bootstrap, "topic": topic}
    dice, said, producer = random.Random(6), tmp_path / "stderr", Producer(topics.bootstrap, topic)
    producer.say(40, dice)

    def start() -> Child:
        armed = {
            "REDRIVE_FAILPOINT": f"{dice.choice(PLACES)}:{dice.randint(1, 3)}:kill",
            "REDRIVE_CRASH_CHARGES_MAX": "100000",  # we kill, not the events
        }
        return zygote.start("topics:work", said, env=armed, **arguments)

    workers = [start() for _ in range(WORKERS)]
    for _ in range(KILLS):
        victim = next_to_die(workers, producer, dice)
        assert victim.wait() == -signal.SIGKILL, victim.said
        workers[workers.index(victim)] = start()
    for worker in workers:
        worker.kill()
    producer.say(10, dice)
    zygote.run("topics:work", said, env={}, **arguments, until_idle=True)

    app = build(**arguments)
    with app.reader() as tx:
        rows = tx.execute("SELECT key, n FROM given ORDER BY seq").fetchall()
    given: dict[str, list[int]] = {}
    for key, n in rows:
        given.setdefault(key, []).append(n)
    assert given == producer.applied
    letters = app.operate().letters.list(limit=10_000)
    assert Counter((letter.key, letter.reason) for letter in letters) == producer.letters
    assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []
    app.close()
