"""What has happened to others who read streams, each on the schedule on which it happened: it does not happen here."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from streamshop import Shop, say

from redrive import App, Event, Tx
from redrive.redis import Stream
from redrive.redis.group import TIDY
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint

pytestmark = pytest.mark.sqlite("the incidents are about what is read; what is written is the store's contract")

GROUP = "shop.orders"
ORDERED, GROUPED = {"partitions": 1}, {"min_idle": 0.0}  # whatever is idle for a moment may be claimed
WAYS = pytest.mark.parametrize("way", [ORDERED, GROUPED], ids=["in order", "through a group"])
PATIENCE = 60.0


def ids_of(shop: Shop) -> list[str]:
    return [id.removeprefix("orders:") for id, _, _ in shop.given]


def pending(server: Any) -> int:
    return int(server.xpending("orders", GROUP)["pending"])


@pytest.mark.parametrize("kind", ["projection", "on"])
def test_celery_5935_a_function_slower_than_the_claim_timeout_runs_once(
    valkey_url: str, server: Any, tmp_path: Path, kind: str
) -> None:
    """Others took the message over while a task was longer than the visibility timeout, every hour anew.

    Here nothing is pending while a function runs, however long: there is nothing to claim, and no heartbeat to miss.
    """
    app, calls, taken = App(str(tmp_path / "shop.db"), name="shop"), [], []
    stream, ids = Stream(valkey_url, "orders", min_idle=0.0), say(server, 5)

    def slow(event: Event[Any], ctx: Any) -> None:
        calls.append(event.id)
        deadline, moment = time.monotonic() + PATIENCE, threading.Event()
        while pending(server) and time.monotonic() < deadline:  # the function is not done; the acknowledgement comes
            moment.wait(0.01)
        taken.append(server.xautoclaim("orders", GROUP, "worker-2", min_idle_time=0)[1])

    getattr(app, kind)(stream, order="none")(slow)
    app.run(until_idle=True)
    app.close()
    assert taken == [[]] * 5
    assert sorted(calls) == [f"orders:{id}" for id in ids]


@WAYS
def test_faststream_2618_a_later_success_does_not_pass_an_earlier_failure(
    shops: Any, server: Any, way: dict[str, Any]
) -> None:
    """A failed message was skipped, because the next one that succeeded committed a higher offset."""
    shop, ids, broken = shops(**way), say(server, 6), True

    def fail(event: Event[Any]) -> None:
        if broken and event.data["n"] == 0:
            raise OSError("not yet")

    shop.meanwhile = fail
    shop.harness.run_until_idle()
    parked = [0, 3] if shop.stream.ordered else [0]  # the next one of the key waits for it, where there is an order
    assert ids_of(shop) == [id for n, id in enumerate(ids) if n not in parked]
    shop.harness.restart()
    broken = False
    shop.harness.advance("1h")
    assert sorted(ids_of(shop)) == sorted(ids)
    if shop.stream.ordered:
        assert [id for id in ids_of(shop) if id in (ids[0], ids[3])] == [ids[0], ids[3]]


@WAYS
def test_faststream_2611_a_stream_that_is_gone_is_no_endless_loop(shops: Any, server: Any, way: dict[str, Any]) -> None:
    """NOGROUP was answered to every read, for ever, after the server had lost the stream."""
    shop, ids = shops(**way), say(server, 3)
    shop.harness.run_until_idle()
    server.delete("orders")
    shop.harness.advance("1h")  # ends: whoever reads in order has halted, and says why
    assert ("was the server emptied" in shop.halted) == shop.stream.ordered
    ids += say(server, 3)
    shop.harness.advance("1h")
    assert ids_of(shop) == ids


def test_faststream_2197_what_a_dead_process_had_read_is_read_again(shops: Any, server: Any) -> None:
    """Only `>` was ever asked for: what was pending at a restart stayed there."""
    shop, ids = shops(min_idle="1h"), say(server, 4)
    with failpoint("land.before_commit", shop.harness.crash), pytest.raises(Crashed):
        shop.harness.run_until_idle()
    assert pending(server) == 4
    shop.harness.run_until_idle()
    assert ids_of(shop) == ids
    assert pending(server) == 0


def test_dapr_4599_entries_that_were_read_long_ago_have_all_their_attempts(shops: Any, server: Any) -> None:
    """Entries aged in a queue from when they were read, others claimed them meanwhile, and no attempt was left."""
    shop, ids, calls = shops(**GROUPED), say(server, 3), []
    server.xgroup_create("orders", GROUP, id="0")
    server.xreadgroup(GROUP, "redrive", {"orders": ">"})
    server.xclaim("orders", GROUP, "redrive", 0, ids, idle=36_000_000, retrycount=99)

    def fail(event: Event[Any]) -> None:
        calls.append(event.id)
        if event.data["n"] == 1:
            raise OSError("down")

    shop.meanwhile = fail
    shop.harness.advance("1d")
    assert sorted(ids_of(shop)) == [ids[0], ids[2]]
    (letter,) = shop.harness.letters()
    assert letter.attempts == calls.count(f"orders:{ids[1]}") > 1  # those of its function, not of its deliveries
    assert pending(server) == 0


@pytest.mark.parametrize("landed_before", [True, False], ids=["later", "at once"])
def test_watermill_24_what_a_deleted_consumer_had_is_not_lost(shops: Any, server: Any, landed_before: bool) -> None:
    """A consumer was deleted as idle, and what it had read and not finished went with it."""
    shop, ids = shops(min_idle="1h"), say(server, 2)
    shop.harness.run_until_idle()
    ids += say(server, 3)
    with failpoint("land.before_commit", shop.harness.crash), pytest.raises(Crashed):
        shop.harness.run_until_idle()
    assert server.xgroup_delconsumer("orders", GROUP, "redrive") == 3
    if landed_before:
        ids += say(server, 2)
    shop.harness.run_until_idle()
    assert ids_of(shop) == ids


def test_watermill_24_we_delete_no_consumer_that_has_something(shops: Any, server: Any) -> None:
    ids = say(server, 3)
    server.xgroup_create("orders", GROUP, id="0")
    server.xreadgroup(GROUP, "somebody", {"orders": ">"}, count=2)
    server.xgroup_createconsumer("orders", GROUP, "gone")

    def consumers() -> list[str]:
        return sorted(row["name"].decode() for row in server.xinfo_consumers("orders", GROUP))

    patient = shops(min_idle="1h")
    patient.harness.run_until_idle()
    assert ids_of(patient) == ids[2:]
    assert consumers() == ["gone", "redrive", "somebody"]  # not gone for an hour
    eager = shops(**GROUPED)
    deadline = time.monotonic() + PATIENCE
    while consumers() != ["redrive"] and time.monotonic() < deadline:  # a millisecond has to pass
        eager.harness.run_until_idle()
    assert consumers() == ["redrive"]
    assert sorted(ids_of(eager)) == ids[:2], "what they had was given to us before they were let go"


@WAYS
def test_protean_a_failure_in_a_batch_strands_nothing_of_the_batch(
    shops: Any, server: Any, way: dict[str, Any]
) -> None:
    """One failure left the rest of what had been read together pending, until somebody restarted."""
    shop, ids = shops(**way), say(server, 30)

    def fail(event: Event[Any]) -> None:
        if event.data["n"] == 4:
            raise ValueError("never")

    shop.meanwhile = fail
    shop.harness.advance("1d")
    # The others of its key wait behind it where there is an order; those of other keys never do.
    parked = {n for n in range(4, 30) if n % 3 == 1} if shop.stream.ordered else {4}
    assert ids_of(shop) == [id for n, id in enumerate(ids) if n not in parked]
    if not shop.stream.ordered:
        assert pending(server) == 0


def test_protean_1042_a_replay_reaches_who_failed_and_nobody_else(shops: Any, server: Any) -> None:
    """What one handler had failed was published again, and every handler of the stream counted it twice."""
    shop, ids, broken = shops(**ORDERED), say(server, 3), True

    @shop.app.projection(shop.stream, name="second", tables={"counted": "id TEXT"})
    def second(event: Event[Any], tx: Tx) -> None:
        tx.execute("INSERT INTO counted VALUES (:id)", {"id": event.id})

    def fail(event: Event[Any]) -> None:
        if broken and event.data["n"] == 1:
            raise ValueError("not now")

    shop.meanwhile = fail
    shop.harness.advance("1d")
    assert len(shop.given) == 2
    broken = False
    shop.harness.replay()
    assert sorted(ids_of(shop)) == ids
    assert [id for (id,) in shop.harness.query("SELECT id FROM counted ORDER BY rowid")] == [
        f"orders:{id}" for id in ids
    ]
    assert server.xlen("orders") == 3, "nothing was published again"


@WAYS
def test_pspf_ids_are_compared_as_numbers(shops: Any, server: Any, way: dict[str, Any]) -> None:
    """As texts, 10-0 is before 9-0: it counted as read."""
    shop, ids = shops(**way), ["8-9", "8-10", "9-0", "10-0", "99-0", "100-0", "100-9", "100-10"]
    for id in ids:
        server.xadd("orders", {"type": "order.placed", "key": "k", "data": "1"}, id=id)
        shop.harness.run_until_idle()
        shop.harness.restart()
    assert ids_of(shop) == ids
    assert shop.reasons == []


def test_watermill_24_whatever_is_idle_a_consumer_that_has_something_stays(server: Any) -> None:
    say(server, 1)
    server.xgroup_create("orders", GROUP, id="0")
    server.xreadgroup(GROUP, "busy", {"orders": ">"})
    for name in ("redrive", "gone"):
        server.xgroup_createconsumer("orders", GROUP, name)
    server.eval(TIDY, 1, "orders", GROUP, "redrive", "-1")  # everybody has been idle for longer than that
    assert sorted(row["name"].decode() for row in server.xinfo_consumers("orders", GROUP)) == ["busy", "redrive"]
    assert pending(server) == 1
