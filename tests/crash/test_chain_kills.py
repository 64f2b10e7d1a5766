"""SIGKILL on the way from broker to database to broker: everything arrives, in key order, with the id it always had."""

from __future__ import annotations

import json
import random
import signal
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from chain import KEYS, build, prepare
from processes import Zygote, wait_until

from redrive.failpoints import NAMES
from redrive.policy.partitions import place as stream_of
from redrive.testing.brokers import valkey

KILLS = 4
PLACES = [name for name in NAMES if name.startswith(("land.", "round.", "trim."))]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with valkey() as url:
        yield url


@pytest.mark.parametrize("where", PLACES)
def test_a_kill_anywhere_on_the_way_from_broker_to_broker_changes_nothing(
    broker: str, where: str, zygote: Zygote, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"path": str(tmp_path / "shop.db"), "url": broker}
    dice, said = random.Random(zlib.crc32(where.encode())), list[tuple[str, int]]()
    prepare(**arguments)
    with redis.Redis.from_url(broker) as server:
        server.flushall()

        def say(count: int) -> None:
            for n in range(len(said), len(said) + count):
                said.append((f"k{n % KEYS}", n))
                server.xadd("orders", {"id": f"order-{n}", "key": f"k{n % KEYS}", "data": n})

        def drain() -> None:
            """Until it has arrived. Nobody is idle before the stream was read: there is nothing to wait for."""
            zygote.run("chain:work", tmp_path / "stderr", env={}, **arguments, until_idle=True)

        if where.startswith("trim."):
            say(10)
            drain()
        for kill in range(KILLS):
            say(dice.randint(1, 30))
            # Of the rounds of a worker the first is the handler's; of two, one may be the delivery's.
            at = 1 + kill % 2 if where.startswith("round.") else 1
            armed = {"REDRIVE_FAILPOINT": f"{where}:{at}:kill", "REDRIVE_CRASH_CHARGES_MAX": "100000"}
            victim = zygote.start("chain:work", tmp_path / "stderr", env=armed, **arguments)
            assert victim.wait() == -signal.SIGKILL, f"{where} was not reached: {victim.said}"
        say(3)
        wait_until(lambda: drain() or len({id for id, *_ in arrived(server)}) == len(said), what="all has arrived")
        check_arrived(arrived(server), said)
    check_stored(arguments, said)


def arrived(server: Any) -> list[tuple[str, str, Any]]:
    """(id, key, data) of each entry, stream after stream."""
    found = []
    for number in range(2):
        for _, fields in server.xrange(f"sums:{number}"):
            key = fields[b"ce_partitionkey"].decode()
            assert stream_of(key, 2) == number
            found.append((fields[b"ce_id"].decode(), key, json.loads(fields[b"data"])))
    return found


def check_arrived(found: list[tuple[str, str, Any]], said: list[tuple[str, int]]) -> None:
    """At least once, the same each time; after that, exactly once and in key order."""
    first: dict[str, tuple[str, Any]] = {}
    for id, key, data in found:
        assert first.setdefault(id, (key, data)) == (key, data)
    for key in {key for key, _ in said}:
        sums, expected = 0, []
        for n in [n for k, n in said if k == key]:
            sums += n
            expected.append({"n": n, "sum": sums})
        assert [data for k, data in first.values() if k == key] == expected


def check_stored(arguments: dict[str, Any], said: list[tuple[str, int]]) -> None:
    app = build(**arguments)
    with app.reader() as tx:
        given = [(key, n) for key, n in tx.execute("SELECT key, n FROM given").fetchall()]
    assert Counter(given) == Counter(said)
    assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []
    app.close()
