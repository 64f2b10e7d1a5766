"""SIGKILL on the way from broker to database to broker: everything arrives, in key order, with the id it always had."""

from __future__ import annotations

import json
import random
import signal
import zlib
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from chain import between_streams, example
from processes import Zygote, wait_until

from redrive.failpoints import NAMES
from redrive.policy.partitions import place
from redrive.testing.kafka import Kafka, write

KILLS = 4
KEYS = 5
# Landing from Kafka, the projection that writes and emits, the delivery to Redis.
ON_THE_WAY = [name for name in NAMES if name.startswith(("land.", "batch.", "round."))]
AGAIN = ("round.called", "round.fenced", "round.effects", "round.before_commit")
ARMED = {"REDRIVE_CRASH_CHARGES_MAX": "100000", "REDRIVE_LEASE": "1s"}  # we kill, not the events

Said = list[tuple[str, int]]  # what the producer has said: key and number, in its order


@pytest.mark.parametrize("where", ON_THE_WAY)
def test_a_kill_anywhere_between_kafka_and_redis_changes_nothing(
    where: str, valkey_url: str, server: Any, zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, said = random.Random(zlib.crc32(where.encode())), Said()
    cluster = Kafka()
    cluster.make("payments", 2)
    store = str(tmp_path / "bank.db")
    env = {**ARMED, "KAFKA": cluster.bootstrap, "REDIS": valkey_url, "REDRIVE_STORE": store}

    def say(count: int) -> None:
        more = [(f"k{n % KEYS}", 1 + n) for n in range(len(said), len(said) + count)]
        said.extend(more)
        write(cluster.bootstrap, [
            {"topic": "payments", "key": key, "value": json.dumps({"cents": cents})} for key, cents in more
        ])  # fmt: skip

    try:
        for _ in range(KILLS):
            say(dice.randint(1, 30))
            armed = env | {"REDRIVE_FAILPOINT": f"{where}:1:kill"}
            victim = zygote.start("chain:run_example", tmp_path / "stderr", env=armed)
            assert victim.wait() == -signal.SIGKILL, f"{where} was not reached: {victim.said}"
        say(3)
        run = lambda: zygote.run("chain:run_example", tmp_path / "stderr", env=env, until_idle=True)  # noqa: E731
        found = wait_for(said, run, server, "balances")
    finally:
        cluster.close()
    if where in AGAIN:  # else it may have been under way elsewhere when we killed
        assert len(found) > len(said), "what had arrived and was not settled comes again"
    check_arrived([(id, key, data["cents"]) for id, key, data in found], said)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    app = example()
    with app.reader() as tx:
        assert dict(tx.execute("SELECT name, cents FROM accounts").fetchall()) == {
            f"k{key}": sum(n for one, n in said if one == f"k{key}") for key in range(KEYS)
        }
    assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []
    app.close()


@pytest.mark.parametrize("where", ["trim.before_commit", "round.called"])
def test_a_kill_anywhere_between_two_streams_changes_nothing(
    where: str, valkey_url: str, server: Any, zygote: Zygote, tmp_path: Path
) -> None:
    dice, said = random.Random(zlib.crc32(where.encode())), Said()
    arguments: dict[str, Any] = {"path": str(tmp_path / "shop.db"), "url": valkey_url}
    run = lambda: zygote.run(  # noqa: E731
        "chain:run_between_streams", tmp_path / "stderr", env=ARMED, **arguments, until_idle=True
    )

    def say(count: int) -> None:
        for n in range(len(said), len(said) + count):
            said.append((f"k{n % KEYS}", 1 + n))
            server.xadd("orders", {"id": f"order-{n}", "key": f"k{n % KEYS}", "data": 1 + n})

    say(10)
    wait_for(said, run, server, "sums")  # now there is something to trim
    for kill in range(KILLS):
        say(dice.randint(1, 30))
        at = (
            1 + kill % 2 if where == "round.called" else 1
        )  # the first round is the handler's, the next may be either's
        armed = ARMED | {"REDRIVE_FAILPOINT": f"{where}:{at}:kill"}
        victim = zygote.start("chain:run_between_streams", tmp_path / "stderr", env=armed, **arguments)
        assert victim.wait() == -signal.SIGKILL, f"{where} was not reached: {victim.said}"
    check_arrived(wait_for(said, run, server, "sums"), said)
    app = between_streams(**arguments)
    assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []
    app.close()


def wait_for(said: Said, run: Callable[[], None], server: Any, stream: str) -> list[tuple[str, str, Any]]:
    """Run until all has arrived: a worker may be idle before the broker has given it everything."""

    def all_of_it() -> list[tuple[str, str, Any]]:
        run()
        found = arrived(server, stream)
        return found if len({id for id, *_ in found}) >= len(said) else []

    return wait_until(all_of_it, what=f"{len(said)} events in {stream}")


def arrived(server: Any, stream: str) -> list[tuple[str, str, Any]]:
    """(id, key, data) of each entry, stream after stream."""
    found = []
    for number in range(2):
        for _, fields in server.xrange(f"{stream}:{number}"):
            key = fields[b"ce_partitionkey"].decode()
            assert place(key, 2) == number
            found.append((fields[b"ce_id"].decode(), key, json.loads(fields[b"data"])))
    return found


def check_arrived(found: list[tuple[str, str, int]], said: Said) -> None:
    """At least once, and the same each time; taken once each, exactly what was said, in key order."""
    first: dict[str, tuple[str, int]] = {}
    for id, key, total in found:
        assert first.setdefault(id, (key, total)) == (key, total)
    for key in {key for key, _ in said}:
        assert [n for k, n in first.values() if k == key] == list(accumulate(n for k, n in said if k == key))
