"""Redis 6.2 tells less of what it has deleted: what can be known is told all the same, and nothing hangs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from streamshop import Shop, say

from redrive.testing.brokers import Valkey, has_old

pytestmark = pytest.mark.sqlite("what is written is the store's contract")
GROUP = "shop.orders"


@pytest.fixture(scope="module", params=["6.2"] if has_old() else [])  # tests/contracts says so where there is none
def old_url() -> Iterator[str]:
    server = Valkey(old=True)
    yield server.url
    server.close()


@pytest.fixture
def old(old_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(old_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def make(old_url: str, old: Any) -> Iterator[Any]:
    made: list[Shop] = []

    def shop(**how: Any) -> Shop:
        made.append(Shop(old_url, None, **how))
        return made[-1]

    yield shop
    for one in made:
        one.harness.close()


@pytest.mark.parametrize("owner", ["redrive", "somebody else"])
def test_what_was_pending_and_is_deleted_is_told(make: Any, old: Any, owner: str) -> None:
    shop, ids = make(min_idle=0.0), say(old, 5)
    old.xgroup_create("orders", GROUP, id="0")
    old.xreadgroup(GROUP, owner, {"orders": ">"}, count=4)
    old.xdel("orders", ids[1], ids[2])
    for _ in range(2):
        shop.harness.run_until_idle()
        assert shop.reasons == ["lost_at_source", "lost_at_source"]
        shop.harness.restart()
    assert sorted(id for id, _, _ in shop.given) == [f"orders:{ids[n]}" for n in (0, 3, 4)]
    assert old.xpending("orders", GROUP)["pending"] == 0


@pytest.mark.parametrize("how", [{"partitions": 1}, {"min_idle": 0.0}], ids=["in order", "through a group"])
def test_what_it_does_not_tell_does_not_stop_anybody(make: Any, old: Any, how: dict[str, Any]) -> None:
    shop, ids = make(**how), say(old, 3)
    shop.harness.run_until_idle()
    ids += say(old, 4)
    old.xtrim("orders", maxlen=2, approximate=False)
    shop.harness.run_until_idle()
    old.xgroup_destroy("orders", GROUP)
    ids += say(old, 2)
    shop.harness.run_until_idle()
    assert [id for id, _, _ in shop.given] == [f"orders:{id}" for id in [*ids[:3], *ids[5:]]]
    assert shop.reasons == []


def test_a_restored_backup_halts_who_reads_in_order(make: Any, old: Any) -> None:
    shop, _ = make(partitions=1), say(old, 3)
    shop.harness.run_until_idle()
    old.flushall()
    old.xadd("orders", {"data": "1"}, id="1-1")
    shop.harness.run_until_idle()
    assert "was the server emptied" in shop.halted
