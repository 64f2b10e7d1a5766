"""SIGKILL while a stream is read: every entry is applied once, in key order where that is promised."""

from __future__ import annotations

import random
import signal
import zlib
from collections import Counter
from pathlib import Path

import pytest
import redis
from landing import KEYS, build
from processes import Zygote

from redrive.failpoints import NAMES

KILLS = 14  # at each of five places and in three ways of reading: more than 200
PLACES = [name for name in NAMES if name.startswith("land.")] + ["batch.before_commit", "batch.committed"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("partitions", [None, 1, 2], ids=["through a group", "in order", "two streams"])
def test_a_kill_while_messages_land_changes_nothing(
    valkey_url: str, partitions: int | None, place: str, zygote: Zygote, tmp_path: Path
) -> None:
    arguments = {"path": str(tmp_path / "shop.db"), "url": valkey_url, "partitions": partitions}
    dice, said = random.Random(zlib.crc32(f"{place} {partitions}".encode())), 0
    with redis.Redis.from_url(valkey_url) as server:
        server.flushall()

        def say(count: int) -> None:
            nonlocal said
            for n in range(said, said + count):
                key = n % KEYS
                stream = f"orders:{key % partitions}" if partitions and partitions > 1 else "orders"
                server.xadd(stream, {"key": f"k{key}", "data": n})
            said += count

        for _ in range(KILLS):
            say(dice.randint(1, 30))
            armed = {
                "REDRIVE_FAILPOINT": f"{place}:1:kill",
                "REDRIVE_CRASH_CHARGES_MAX": "100000",
            }  # we kill, not the events
            victim = zygote.start("landing:work", tmp_path / "stderr", env=armed, **arguments)
            assert victim.wait() == -signal.SIGKILL, f"{place} was not reached: {victim.said}"
        say(3)
        last = zygote.start("landing:work", tmp_path / "stderr", env={}, **arguments, until_idle=True)
        assert last.wait() == 0, last.said
        if partitions is None:
            assert server.xpending("orders", "shop.orders")["pending"] == 0
    app = build(**arguments)
    with app.reader() as tx:
        given = [(key, n) for key, n in tx.execute("SELECT key, n FROM given ORDER BY seq").fetchall()]
    assert Counter(given) == Counter((f"k{n % KEYS}", n) for n in range(said))
    if partitions is not None:
        for key in range(KEYS):
            assert [n for k, n in given if k == f"k{key}"] == list(range(key, said, KEYS))
    assert [verdict for verdict in app.operate().verify() if not verdict.sound] == []
    app.close()
