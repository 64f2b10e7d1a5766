"""Letters mirrored to a Redis server: a stream of burials, and an index of the dead that there are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redrive import App, Event, Reject, Tx, UsageError
from redrive.redis import LetterIndex, LetterStream, Stream
from redrive.redis.letters import read
from redrive.testing import Harness
from redrive.testing.brokers import Valkey
from redrive.testing.crashing import Crashed
from redrive.testing.failpoints import failpoint


def dead(server: Any, url: str, stream: str = "orders:dlq") -> list[int]:
    return [entry.letter for entry in read(f"{url}/{stream}")]


def test_a_burial_is_an_entry_of_the_dlq_of_what_was_read(shops: Any, server: Any, valkey_url: str) -> None:
    shop = shops(LetterStream(valkey_url, name="dead-stream"))
    shop.bad = {1}
    event = shop.order(1)
    shop.order(2)
    shop.run()
    ((_, fields),) = server.xrange("orders:dlq")
    about = json.loads(fields[b"_dlq_metadata"])
    assert (about["original_stream"], about["original_id"], about["consumer_group"]) == ("orders", event.id, "charge")
    assert (about["retry_count"], about["reason"], about["error"]) == (0, "rejected", "no charge for 1")
    assert about["failed_at"] == "2026-01-01T00:00:00+00:00"
    assert about["consumer"]
    assert json.loads(fields[b"data"])["data"] == {"n": 1}
    (entry,) = read(f"{valkey_url}/orders:dlq")
    assert (entry.letter, entry.state, entry.event_id) == (1, "dead", event.id)


def test_what_comes_from_a_stream_and_its_backfill_dies_beside_them(
    server: Any, valkey_url: str, backend: str | None
) -> None:
    app = App("/nonexistent/x.db", name="shop")
    for late in (False, True):

        @app.projection(Stream(valkey_url, "orders", partitions=1, backfill=late), name=f"take{int(late)}")
        def take(event: Event[Any], tx: Tx) -> None:
            raise Reject("never")

    app.mirror(to=LetterStream(valkey_url, name="dead-stream"))
    with Harness(app, backend) as harness:
        server.xadd("orders", {"type": "order.placed", "data": "1"})
        server.xadd("orders:backfill", {"type": "order.placed", "data": "2"})
        server.xadd("orders:backfill", {"type": "order.placed", "data": "\x01 no JSON"})
        harness.run_until_idle()
        assert [json.loads(one[b"data"])["data"] for _, one in server.xrange("orders:dlq")] == [1]
        backfilled = [one.reason for one in read(f"{valkey_url}/orders:backfill:dlq")]
        assert backfilled == ["rejected", "undecodable"]


def test_a_dlq_can_be_read_as_a_stream_of_the_events_themselves(
    shops: Any, server: Any, valkey_url: str, backend: str | None
) -> None:
    shop = shops(LetterStream(valkey_url, name="dead-stream"))
    shop.bad = {1}
    event = shop.order(1)
    shop.run()
    app, seen = App("/nonexistent/x.db", name="other"), []

    @app.on(Stream(valkey_url, "orders:dlq", partitions=1))
    def look(event: Event[Any], ctx: Any) -> None:
        seen.append((event.id, event.type, event.key, event.data))

    with Harness(app) as harness:
        harness.run_until_idle()
    assert seen == [(event.id, "order.placed", "ada", {"n": 1})]


def test_streams_may_be_called_otherwise_and_are_trimmed(shops: Any, server: Any, valkey_url: str) -> None:
    shop = shops(LetterStream(valkey_url, name="dead-stream", stream="dead:{subscription}", length_max=1))
    shop.bad = {1, 2}
    for n in (1, 2):
        shop.order(n, key=str(n))
    shop.run()
    assert server.keys("*") == [b"dead:charge"]
    assert server.xlen("dead:charge") in (1, 2), "servers trim when it suits them"


@pytest.mark.parametrize("stream", ["{source}", "", "{log}:dlq", "{0}", "{"])
def test_a_name_that_is_none_or_the_source_itself_is_refused(stream: str) -> None:
    with pytest.raises(UsageError):
        LetterStream("redis://localhost", name="dead-stream", stream=stream)


def test_the_index_holds_the_dead_letters_that_there_are(shops: Any, server: Any, valkey_url: str) -> None:
    shop = shops(LetterIndex(valkey_url, "shop:letters", name="dead-index"))
    shop.bad = {1, 2, 3}
    for n in (1, 2, 3):
        shop.order(n, key=str(n))
    shop.order(4, key="1")
    shop.run()

    def held() -> list[tuple[int, str]]:
        entries = list(read(f"{valkey_url}/shop:letters"))
        assert sorted(entry.letter for entry in entries) == sorted(map(int, server.zrange("shop:letters:index", 0, -1)))
        return [(entry.letter, entry.state) for entry in entries]

    assert held() == [(1, "dead"), (2, "dead"), (3, "dead")]
    ((_, at), *_) = server.zrange("shop:letters:index", 0, -1, withscores=True)
    assert at == shop.desk.get(1).last_failed_at
    shop.desk.discard([2], "not needed")
    shop.run()
    assert held() == [(1, "dead"), (3, "dead")]
    shop.bad = {1}
    shop.harness.replay()
    assert held() == [(1, "dead")], "it failed again"


def test_an_index_on_a_server_that_was_emptied_is_written_anew(shops: Any, server: Any, valkey_url: str) -> None:
    shop = shops(LetterIndex(valkey_url, "shop:letters", name="dead-index"))
    shop.bad = {1, 2}
    shop.order(1, key="ada")
    shop.run()
    server.flushall()
    shop.order(2, key="bob")
    shop.run()
    shop.harness.advance("10m")
    assert dead(server, valkey_url, "shop:letters") == [1, 2]


def test_who_was_the_owner_writes_to_an_index_no_more(server: Any, valkey_url: str) -> None:
    from redrive.errors import MirrorDown
    from tests.mirrors.test_files import entries

    former, owner = (LetterIndex(valkey_url, "shop:letters", name="dead-index") for _ in range(2))
    assert (former.resume(), owner.resume()) == (0, None)
    owner.write(entries(1), 0.0)
    with pytest.raises(MirrorDown, match="another owner"):
        former.write(entries(2), 0.0)
    assert dead(server, valkey_url, "shop:letters") == [1]
    former.close()
    owner.close()


@pytest.mark.parametrize("where", ["mirror.block", "mirror.written", "mirror.before_commit"])
def test_after_a_crash_nothing_is_missing(shops: Any, server: Any, valkey_url: str, where: str) -> None:
    shop = shops(
        LetterStream(valkey_url, name="dead-stream"), LetterIndex(valkey_url, "shop:letters", name="dead-index")
    )
    shop.bad = {1, 2}
    shop.order(1, key="ada")
    with failpoint(where, action=shop.harness.crash), pytest.raises(Crashed):
        shop.run()
    shop.order(2, key="bob")
    shop.run()
    assert {entry.key[:2] for entry in read(f"{valkey_url}/orders:dlq")} == {("charge", 1), ("charge", 2)}
    assert dead(server, valkey_url, "shop:letters") == [1, 2]


def test_a_server_that_is_away_is_waited_for(shops: Any) -> None:
    server = Valkey()
    try:
        shop = shops(LetterStream(server.url, name="dead-stream"))
        shop.bad = {1}
        server.kill()
        shop.order(1)
        shop.run()
        assert (shop.lag("dead-stream"), len(shop.harness.letters())) == (1, 1)
        assert "ConnectionError" in shop.harness.halted["dead-stream"]
        server.start()
        shop.harness.advance("10m")
        assert (shop.lag("dead-stream"), len(list(read(f"{server.url}/orders:dlq")))) == (0, 1)
    finally:
        server.close()


def test_what_is_no_letter_is_not_taken_for_one(server: Any, valkey_url: str) -> None:
    server.set("text", "x")
    server.xadd("foreign", {"data": "1"})
    for key in ("text", "nothing", ""):
        with pytest.raises(UsageError):
            list(read(f"{valkey_url}/{key}"))
    from redrive import EventError

    with pytest.raises(EventError, match="no letter"):
        list(read(f"{valkey_url}/foreign"))
