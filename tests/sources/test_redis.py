"""Redis and Valkey streams as sources: each entry lands once, in order where that is promised, or becomes a letter."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from streamshop import say

from redrive import App, UsageError
from redrive.redis import Codec, Stream, ordered
from redrive.redis.ids import id_of
from redrive.redis.stream import line_of
from redrive.replay.operations import operate
from redrive.replay.prune import What
from redrive.runner import land
from redrive.sources.port import Plain, moved
from redrive.testing.failpoints import FailpointHit, failpoint

ORDERED = {"partitions": 1}
GROUP: dict[str, Any] = {}
WAYS = pytest.mark.parametrize("way", [ORDERED, GROUP], ids=["in order", "through a group"])


@WAYS
def test_every_entry_is_applied_once_and_as_it_was_written(shops: Any, server: Any, way: dict[str, Any]) -> None:
    shop, ids = shops(**way), say(server, 30)
    shop.harness.run_until_idle()
    shop.harness.run_until_idle()
    expected = [(f"orders:{id}", f"k{i % 3}", str({"n": i})) for i, id in enumerate(ids)]
    assert shop.given == expected
    ids += say(server, 5)
    shop.harness.run_until_idle()
    assert [id for id, _, _ in shop.given] == [f"orders:{id}" for id in ids]


@WAYS
@pytest.mark.parametrize("place", ["land.fenced", "land.before_commit", "land.committed"])
def test_a_death_at_any_step_neither_loses_nor_doubles(
    shops: Any, server: Any, way: dict[str, Any], place: str
) -> None:
    shop, ids = shops(**way), say(server, 10)
    with failpoint(place, FailpointHit):
        shop.harness.run_until_idle()
    shop.harness.advance("1m")
    assert sorted(id for id, _, _ in shop.given) == sorted(f"orders:{id}" for id in ids)
    if not shop.stream.ordered:
        assert server.xpending("orders", "shop.orders")["pending"] == 0


@WAYS
@pytest.mark.parametrize("place", ["land.fenced", "land.before_commit", "land.committed"])
def test_a_death_while_the_next_read_is_under_way_neither_loses_nor_doubles(
    shops: Any, server: Any, way: dict[str, Any], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(land, "READ_MAX", 3)  # always a backlog: always one ahead
    shop, ids = shops(**way), say(server, 20)
    for _ in range(3):
        with failpoint(place, FailpointHit):
            shop.harness.run_until_idle()
        shop.harness.advance("1m")
        ids += say(server, 7)
    shop.harness.run_until_idle()
    assert sorted(id for id, _, _ in shop.given) == sorted(f"orders:{id}" for id in ids)
    if shop.stream.ordered:
        assert [id for id, _, _ in shop.given] == [f"orders:{id}" for id in ids]
    else:
        assert server.xpending("orders", "shop.orders")["pending"] == 0


@WAYS
def test_a_mapping_is_about_the_json_of_the_field_data(shops: Any, server: Any, way: dict[str, Any]) -> None:
    shop = shops(codec=Codec("json", id="meta.id", key="customer", data="payload"), **way)
    server.xadd("orders", {"data": '{"meta": {"id": "a"}, "customer": "ada", "payload": {"n": 1}}'})
    shop.harness.run_until_idle()
    assert shop.given == [("a", "ada", "{'n': 1}")]
    assert shop.harness.letters() == []


@WAYS
def test_what_cannot_be_read_becomes_a_letter_in_its_place(shops: Any, server: Any, way: dict[str, Any]) -> None:
    shop = shops(**way)
    server.xadd("orders", {"type": "order.placed", "key": "k", "data": '{"n": '})
    server.xadd("orders", {"type": "two words", "data": "1"})
    server.xadd("orders", {b"type": b"\xff", b"data": b"1"})
    say(server, 1)
    shop.harness.run_until_idle()
    assert shop.reasons == ["undecodable"] * 3
    assert len(shop.given) == 1
    letters = shop.app.operate().letters.list()
    assert all("no event" in letter.error_message for letter in letters)
    # What it is about is told as far as it can be read; what cannot is shown to everybody, whatever they ask for.
    assert [(one.type, one.key) for one in letters] == [
        ("order.placed", "k"), ("redrive.refused", None), ("redrive.refused", None),
    ]  # fmt: skip


def test_a_key_function_is_not_asked_about_what_cannot_be_read(shops: Any, server: Any) -> None:
    shop, asked, calls = shops(**ORDERED), [], []

    def customer(event: Any) -> Any:
        asked.append(event.data)
        return event.data["customer"]

    @shop.app.on(shop.stream, key_by=customer, start="first", name="keyed")
    def keyed(event: Any, ctx: Any) -> None:
        calls.append(ctx.key)

    for said in ("{", '{"customer": "ada"}', '{"customer": "eve"}'):
        server.xadd("orders", {"id": "order-1", "data": said})
    shop.harness.run_until_idle()
    letters = shop.app.operate().letters.list(subscription="keyed")
    assert [one.reason for one in letters] == ["undecodable", "id_collision"]
    assert {data["customer"] for data in asked} == {"ada"}
    for letter in letters:
        assert shop.app.operate().letters.edit(letter, {"customer": "zoe"}, "what was meant").done
    shop.harness.replay([letter.id for letter in letters])
    assert calls == ["ada", "zoe", "zoe"]


@WAYS
def test_what_is_appended_by_hand_where_messages_land_is_an_event_like_others(
    shops: Any, server: Any, way: dict[str, Any]
) -> None:
    shop = shops(**way)
    log = shop.app.log("redis:orders")
    for id in ("first", "second"):
        server.xadd("orders", {"id": f"said-{id}", "data": "1"})
        shop.harness.run_until_idle()
        log.append("order.placed", 1, id=f"by-hand-{id}")
        shop.harness.run_until_idle()
        assert [(one.subscription, one.lag_events) for one in shop.app.operate().status() if one.lag_events] == []
        assert [one.pending for one in shop.app.operate().verify() if one.pending or not one.sound] == []
    assert [id for id, _, _ in shop.given] == ["said-first", "by-hand-first", "said-second", "by-hand-second"]


def test_nothing_overtakes_a_cloud_event_that_cannot_be_read(shops: Any, server: Any) -> None:
    shop = shops(**ORDERED)
    ada = {"ce_specversion": "1.0", "ce_source": "till", "ce_type": "order.placed", "ce_partitionkey": "ada"}
    server.xadd("orders", {**ada, "ce_id": "1", "data": '{"n": '})
    server.xadd("orders", {**ada, "ce_id": "2", "data": '{"n": 2}'})
    shop.harness.run_until_idle()
    assert shop.given == []
    (letter,) = shop.harness.letters("dead")
    shop.app.operate().letters.edit(letter.id, {"n": 1}, "what was meant")
    shop.harness.replay()
    assert [said for _, _, said in shop.given] == ["{'n': 1}", "{'n': 2}"]


def test_what_could_not_be_read_is_an_event_once_it_was_edited(shops: Any, server: Any) -> None:
    shop = shops(**ORDERED)
    server.xadd("orders", {"type": "order.placed", "key": "k", "data": '{"n": '})
    shop.harness.run_until_idle()
    (letter,) = shop.harness.letters("dead")
    shop.app.operate().letters.edit(letter.id, {"n": 7}, "what was meant")
    shop.harness.replay()
    assert [said for _, _, said in shop.given] == ["{'n': 7}"]


@WAYS
def test_a_producers_id_is_taken_once_and_another_payload_under_it_is_shown(
    shops: Any, server: Any, way: dict[str, Any]
) -> None:
    shop = shops(**way)
    for n in (1, 1, 2, 2):
        server.xadd("orders", {"id": "order-1", "data": f'{{"n": {n}}}'})
        shop.harness.run_until_idle()
    assert shop.given == [("order-1", None, "{'n': 1}")]
    assert shop.reasons == ["id_collision", "id_collision"]


def test_fields_without_data_are_the_data(shops: Any, server: Any) -> None:
    shop = shops(**ORDERED)
    server.xadd("orders", {"customer": "7", "city": "Köln"})
    shop.harness.run_until_idle()
    assert [said for _, _, said in shop.given] == ["{'customer': '7', 'city': 'Köln'}"]


def test_cloud_events_are_understood_in_both_forms(shops: Any, server: Any) -> None:
    shop = shops(**ORDERED)
    head = {"specversion": "1.0", "id": "a", "source": "/x", "type": "order.placed", "subject": "k"}
    server.xadd("orders", {**{f"ce_{name}": text for name, text in head.items()}, "data": '{"n": 1}'})
    line = '{"specversion":"1.0","id":"b","source":"/x","type":"order.placed","subject":"k","data":{"n":2}}'
    server.xadd("orders", {"data": line})
    shop.harness.run_until_idle()
    assert shop.given == [("a", "k", "{'n': 1}"), ("b", "k", "{'n': 2}")]


def test_entries_that_were_trimmed_before_they_were_read_are_told(shops: Any, server: Any) -> None:
    shop = shops(**ORDERED)
    say(server, 3)
    shop.harness.run_until_idle()
    say(server, 5)
    server.xtrim("orders", maxlen=2, approximate=False)
    shop.harness.run_until_idle()
    shop.harness.run_until_idle()
    assert shop.reasons == ["lost_at_source"]
    assert [said for _, _, said in shop.given] == [str({"n": n}) for n in (0, 1, 2, 3, 4)]


def test_pending_entries_that_were_deleted_are_told(shops: Any, server: Any) -> None:
    shop = shops(**GROUP)
    ids = say(server, 2)
    server.xgroup_create("orders", "shop.orders", id="0")
    server.xreadgroup("shop.orders", "redrive", {"orders": ">"})  # an owner that died before anything landed
    server.xdel("orders", ids[0])
    shop.harness.run_until_idle()
    assert shop.reasons == ["lost_at_source"]
    assert [id for id, _, _ in shop.given] == [f"orders:{ids[1]}"]
    assert server.xpending("orders", "shop.orders")["pending"] == 0


def test_what_a_consumer_left_behind_is_claimed(shops: Any, server: Any) -> None:
    shop, ids = shops(min_idle=0.0), say(server, 4)
    server.xgroup_create("orders", "shop.orders", id="0")
    server.xreadgroup("shop.orders", "somebody else", {"orders": ">"}, count=3)
    shop.harness.run_until_idle()
    assert sorted(id for id, _, _ in shop.given) == sorted(f"orders:{id}" for id in ids)


def test_a_server_that_was_emptied_halts_who_reads_in_order(shops: Any, server: Any) -> None:
    shop = shops(**ORDERED)
    say(server, 3)
    shop.harness.run_until_idle()
    server.flushall()
    server.xadd("orders", {"data": "1"}, id="1-1")
    shop.harness.run_until_idle()
    assert "was the server emptied" in shop.halted
    assert len(shop.given) == 3


def test_a_group_that_is_gone_is_made_again_where_it_was(shops: Any, server: Any) -> None:
    shop, ids = shops(**GROUP), say(server, 3)
    shop.harness.run_until_idle()
    server.xgroup_destroy("orders", "shop.orders")
    ids += say(server, 2)  # from `$` on, these would be passed over
    shop.harness.run_until_idle()
    assert [id for id, _, _ in shop.given] == [f"orders:{id}" for id in ids]
    server.delete("orders")
    ids += say(server, 2)
    shop.harness.run_until_idle()
    assert [id for id, _, _ in shop.given] == [f"orders:{id}" for id in ids]


def test_keys_of_partitioned_streams_keep_their_order(shops: Any, server: Any) -> None:
    shop = shops(partitions=3)
    for i in range(60):
        server.xadd(f"orders:{i % 3}", {"key": f"k{i % 3}", "data": str(i)})
        if i % 17 == 0:
            shop.harness.run_until_idle()
    shop.harness.run_until_idle()
    by_key = {key: [int(said) for _, k, said in shop.given if k == key] for key in ("k0", "k1", "k2")}
    assert by_key == {f"k{n}": list(range(n, 60, 3)) for n in range(3)}


def test_what_a_source_cannot_promise_is_refused_with_the_way_out(valkey_url: str) -> None:
    app = App("x.db")
    with pytest.raises(UsageError, match=r'order="none"; or Stream\(…, partitions=1\)'):
        app.projection(Stream(valkey_url, "orders"))(lambda event, tx: None)
    with pytest.raises(UsageError, match="no common order"):
        app.on(Stream(valkey_url, "orders", partitions=2), order="total")(lambda event, ctx: None)
    app.projection(Stream(valkey_url, "orders", partitions=1), name="one")(lambda event, tx: None)
    with pytest.raises(UsageError, match="two objects name one redis source"):
        app.projection(Stream(valkey_url, "orders", partitions=1), name="two")(lambda event, tx: None)


def test_ids_are_numbers() -> None:
    assert sorted(["10-0", "9-0", "9-10", "9-9"], key=id_of) == ["9-0", "9-9", "9-10", "10-0"]


def test_the_reading_is_paused_and_resumed_and_nothing_else(shops: Any, server: Any) -> None:
    shop = shops(**ORDERED)
    say(server, 2)
    shop.harness.run_until_idle()
    desk, name = shop.app.operate(), "redis:orders"
    for deed in (
        lambda: desk.reset(name, "x"),
        lambda: desk.plan_reset(name),
        lambda: desk.subscriptions.plan_seek(name, "first"),
        lambda: desk.subscriptions.seek(name, "first", "x"),
        lambda: desk.subscriptions.rename(name, "other"),
        lambda: desk.subscriptions.accept_from_now(name, "x"),
    ):
        with pytest.raises(UsageError, match="the reading of a broker"):
            deed()
    desk.subscriptions.pause(name)
    say(server, 2)
    shop.harness.run_until_idle()
    assert len(shop.given) == 2
    desk.subscriptions.resume(name)
    shop.harness.run_until_idle()
    assert len(shop.given) == 4
    desk.reset("write_down", "again")
    shop.harness.run_until_idle()
    assert len(shop.given) == 4


@WAYS
def test_deleted_entries_at_the_end_are_told_once(shops: Any, server: Any, way: dict[str, Any]) -> None:
    shop, ids = shops(**way), say(server, 2)
    shop.harness.run_until_idle()
    server.xdel("orders", *say(server, 2))
    for _ in range(2):
        shop.harness.run_until_idle()
        shop.harness.restart()
    assert shop.reasons == ["lost_at_source"]
    ids += say(server, 2)
    shop.harness.run_until_idle()
    assert [id for id, _, _ in shop.given] == [f"orders:{id}" for id in ids]
    assert shop.reasons == ["lost_at_source"]


def test_who_waits_looks_at_everything_else_only_now_and_then(
    server: Any, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered, "LOOK_SECONDS", 1_000.0)
    reader, _ = Stream(valkey_url, "orders", partitions=1).open("g"), say(server, 1)

    def looks(wait: float) -> int:
        """How often the server was asked about the stream for one read."""

        def asked() -> int:
            calls: Any = server.info("commandstats")
            return sum(found["calls"] for name, found in calls.items() if name.startswith("cmdstat_xinfo"))

        before = asked()
        assert not reader.read(known, 10, wait)
        return asked() - before

    try:
        (only,) = reader.read({}, 10, 0.0)
        known = {0: only.position}
        assert [looks(0.001), looks(0.001), looks(0.0), looks(0.001)] == [0, 0, 1, 0]
        monkeypatch.setattr(ordered, "LOOK_SECONDS", -1.0)
        assert [looks(0.0), looks(0.001), looks(0.001)] == [1, 1, 1]
    finally:
        reader.close()


@pytest.mark.parametrize("wait", [0.0, 0.01])
@pytest.mark.parametrize("limit", [2, 10])
def test_trimmed_entries_are_told_before_those_that_follow(
    server: Any, valkey_url: str, limit: int, wait: float
) -> None:
    """Also if more follow than one read takes, and if the reader would wait for more."""
    reader, ids = Stream(valkey_url, "orders", partitions=1).open("g"), say(server, 2)
    try:
        *_, last = reader.read({}, 10, 0.0)
        ids = say(server, 8)
        server.xtrim("orders", maxlen=5, approximate=False)
        reader._look_at = 0.0  # it is time to look at everything
        lost, *others = reader.read({0: last.position}, limit, wait)
        assert "3 entries" in str(lost.event.data_raw) and ":lost" in lost.event.id
        assert [one.id if isinstance(one, Plain) else one.event.id for one in others] == [
            f"orders:{id}" for id in ids[3 : 3 + limit]
        ]
        again = reader.read({0: others[-1].position}, limit, 0.0)
        assert len(again) == min(limit, 5 - len(others))
    finally:
        reader.close()


def test_entries_trimmed_behind_the_back_of_who_waits_are_told(server: Any, valkey_url: str) -> None:
    reader, ids = Stream(valkey_url, "orders", partitions=1).open("g"), say(server, 2)
    try:
        (_, last) = reader.read({}, 10, 0.0)
        known = {0: last.position}
        assert not reader.read(known, 10, 0.0)
        burst = say(server, 4)  # between a look and the waiting that follows it
        server.xtrim("orders", maxlen=2, approximate=False)
        waited = [
            moved(message, f"{message.position.partition(';')[0]};{2 + more}")
            for more, message in enumerate(reader.read(known, 10, 0.0)[1:], 1)
        ]
        assert [message.event.id for message in waited] == [f"orders:{id}" for id in burst[2:]]
        lost, *others = reader.read({0: waited[-1].position}, 10, 0.0)
        assert b"2 entries after" in lost.event.data_raw and not others
        assert len(ids) == 2
    finally:
        reader.close()


def test_a_group_is_made_again_from_what_somebody_still_has_and_not_from_the_last_that_landed(
    shops: Any, server: Any
) -> None:
    shop, ids = shops(**GROUP), say(server, 2)
    shop.harness.run_until_idle()
    ids += say(server, 2)
    server.xreadgroup("shop.orders", "a live one", {"orders": ">"}, count=1)  # it has the third, and never lands it
    shop.harness.run_until_idle()
    assert len(shop.given) == 3
    server.xgroup_destroy("orders", "shop.orders")
    shop.harness.run_until_idle()
    assert sorted(id for id, _, _ in shop.given) == sorted(f"orders:{id}" for id in ids)


def test_who_takes_over_with_a_slower_clock_halts_who_reads_in_order(shops: Any, server: Any) -> None:
    shop = shops(**ORDERED)
    server.xadd("orders", {"data": "1"}, id="10-0")
    server.xadd("orders", {"data": "2"}, id="20-0")
    shop.harness.run_until_idle()
    server.delete("orders")
    for id, data in (("10-0", 1), ("15-0", 3), ("25-0", 4)):  # 20-0 was lost, and the next one is before it
        server.xadd("orders", {"data": data}, id=id)
    shop.harness.run_until_idle()
    assert "did another server take over" in shop.halted
    assert len(shop.given) == 2
    server.xtrim("orders", minid="20-0", approximate=False)
    shop.harness.advance("5m")
    assert [said for _, _, said in shop.given] == ["1", "2", "4"]


def test_what_is_trimmed_while_there_is_no_group_is_told(shops: Any, server: Any) -> None:
    shop = shops(**GROUP)
    say(server, 3)
    shop.harness.run_until_idle()
    server.xgroup_destroy("orders", "shop.orders")
    ids = say(server, 4)
    server.xtrim("orders", maxlen=1, approximate=False)
    shop.harness.run_until_idle()
    assert shop.reasons == ["lost_at_source"]
    assert [id for id, _, _ in shop.given][3:] == [f"orders:{ids[-1]}"]
    shop.harness.restart()
    shop.harness.run_until_idle()
    assert shop.reasons == ["lost_at_source"]


@WAYS
def test_who_stops_does_not_wait_for_the_server(valkey_url: str, server: Any, way: dict[str, Any]) -> None:
    stream = Stream(valkey_url, "orders", **way)
    reader = stream.open("shop.orders")
    with ThreadPoolExecutor(1) as other:
        say(server, 1)
        messages = list(reader.read({}, 10, 0.0))
        at = {0: messages[-1].position}
        reader.settled(messages)
        waiting = other.submit(reader.read, at, 10, 1_000.0)  # longer than any test may take
        while not any(client["flags"] == "b" for client in server.client_list()):
            assert not waiting.done()
        reader.hurry()
        assert list(waiting.result()) == []
    reader.close()


def test_older_drivers_are_told_that_a_connection_is_for_some_command() -> None:
    """redis-py 5 was allowed, and whatever was sent to a stream was a TypeError."""

    class Old:
        def get_connection(self, command: str) -> str:
            return f"for {command}"

    class New:
        def get_connection(self) -> str:
            return "for anything"

    old, new = cast("Any", Old()), cast("Any", New())
    assert (line_of(old), line_of(new)) == ("for ANY", "for anything")


def test_who_waits_on_a_line_that_is_cut_goes_on_with_another(valkey_url: str, server: Any) -> None:
    reader = Stream(valkey_url, "orders", partitions=1).open("shop.orders")

    def waits() -> int:
        """The connection that waits, as soon as one does."""
        while not (blocked := [int(client["id"]) for client in server.client_list() if client["flags"] == "b"]):
            assert not waiting.done()
        return blocked[0]

    with ThreadPoolExecutor(1) as other:
        ids = say(server, 1)
        at = {0: next(iter(reader.read({}, 10, 0.0))).position}
        waiting = other.submit(reader.read, at, 10, 20.0)
        server.client_kill_filter(_id=(first := waits()))
        assert list(waiting.result()) == []
        ids += say(server, 1)
        (found,) = reader.read(at, 10, 20.0)
        assert found.event.id == f"orders:{ids[-1]}"
        waiting = other.submit(reader.read, {0: found.position}, 10, 20.0)
        assert waits() != first
        reader.hurry()  # knows the other one, too: else this would take as long as it may wait
        assert list(waiting.result(timeout=15.0)) == []
    reader.close()


@WAYS
def test_an_id_counts_once_as_long_as_its_event_is_kept(shops: Any, server: Any, way: dict[str, Any]) -> None:
    shop = shops(**way)

    def repeat(at: int) -> list[str]:
        server.xadd("orders", {"id": "order-1", "data": "1"}, id=f"{at}-1")  # long ago, by the clock of the test
        server.xadd("orders", {"data": "2"}, id=f"{at}-2")
        shop.harness.run_until_idle()
        return [id for id, _, _ in shop.given if id == "order-1"]

    assert repeat(1) == repeat(2) == ["order-1"]
    shop.harness.advance("40d")
    assert repeat(3) == ["order-1"]  # the window is not a time: it is how long the event is kept
    desk, what = shop.app.operate(), What(30 * 86_400.0, logs=("redis:orders",), no_rebuild=("write_down",))
    desk.prune(what, desk.plan_prune(what), "old")
    assert repeat(4) == ["order-1", "order-1"]
    assert shop.reasons == []


def test_prune_warns_of_events_that_the_group_has_not_acknowledged(shops: Any, server: Any) -> None:
    """An acknowledgement may be lost. As long as its event is in the log, an entry that comes again is recognised."""
    shop = shops(**GROUP)
    ids = [server.xadd("orders", {"data": "1"}, id=f"{at}-1").decode() for at in range(1, 21)]  # long ago
    shop.harness.run_until_idle()
    shop.harness.advance("40d")
    desk = shop.app.operate()
    what = What(30 * 86_400.0, logs=("redis:orders",), no_rebuild=("write_down",))
    (quiet,) = desk.plan_prune(what).events
    assert (quiet.events, quiet.unacknowledged, quiet.warning) == (19, 0, "")
    (group,) = server.xinfo_groups("orders")
    name = group["name"].decode()
    server.xclaim("orders", name, "redrive", 0, ids, force=True)
    assert server.xpending("orders", name)["pending"] == 20
    plan = desk.plan_prune(what)
    (told,) = plan.events
    assert told.unacknowledged == 19
    assert f"group {name!r} has not acknowledged 19 of them" in told.warning
    assert server.xpending("orders", name)["pending"] == 20, "asking changes nothing"
    (blind,) = operate(desk.operator.store, desk.operator.env).plan_prune(what).events
    assert blind.unacknowledged is None and "add --app" in blind.warning
    desk.prune(what, plan, "it was said")
    assert [id for id, _, _ in shop.given] == [f"orders:{id}" for id in ids]


def test_prune_says_so_if_the_broker_cannot_be_asked(shops: Any, server: Any) -> None:
    shop = shops(**GROUP)
    for at in (1, 2):
        server.xadd("orders", {"data": "1"}, id=f"{at}-1")
    shop.harness.run_until_idle()
    shop.harness.advance("40d")
    shop.stream.url = "redis://127.0.0.1:1/0"
    what = What(30 * 86_400.0, logs=("redis:orders",), no_rebuild=("write_down",))
    (plan,) = shop.app.operate().plan_prune(what).events
    assert plan.unacknowledged is None and "could not be asked" in plan.warning


def test_a_group_on_a_stream_that_was_restored_reads_all_of_it_and_knows_what_it_has(shops: Any, server: Any) -> None:
    shop = shops(**GROUP)
    for id in ("5-0", "9-0"):
        server.xadd("orders", {"data": "1"}, id=id)
    shop.harness.run_until_idle()
    server.delete("orders")
    for id in ("5-0", "7-0"):  # it ends before what was read, and has what was not
        server.xadd("orders", {"data": "1"}, id=id)
    shop.harness.run_until_idle()
    assert [id for id, _, _ in shop.given] == ["orders:5-0", "orders:9-0", "orders:7-0"]
    assert shop.reasons == []


@pytest.mark.parametrize("start", ["now", "2026-01-31T00:00:00Z"])
@pytest.mark.parametrize("kind", ["projection", "handler", "delivery"])
def test_a_start_that_would_not_leave_out_what_the_stream_holds_is_refused(
    shops: Any, server: Any, kind: str, start: str
) -> None:
    shop, _ = shops(**ORDERED), say(server, 3)
    if kind == "projection":
        shop.app.projection(shop.stream, start=start, name="late")(lambda event, tx: None)
    elif kind == "handler":
        shop.app.on(shop.stream, start=start, name="late")(lambda event: None)
    else:
        shop.app.deliver(shop.stream, to=Stream(shop.stream.url, "late", partitions=1), start=start)
    with pytest.raises(UsageError, match=r"late.*: nothing of 'redis:orders' has landed yet") as told:
        shop.harness.run_until_idle()
    assert repr(start) in str(told.value)
    assert 'start="first"' in str(told.value)
    assert "raise Ignore(" in str(told.value)


@WAYS
def test_a_start_counts_from_what_has_landed(shops: Any, server: Any, way: dict[str, Any]) -> None:
    shop, seen = shops(**way), []
    say(server, 3)
    shop.harness.run_until_idle()
    shop.app.on(shop.stream, order="none", start="now", name="late")(lambda event: seen.append(event.id))
    shop.harness.run_until_idle()
    ids = say(server, 2)
    shop.harness.run_until_idle()
    assert seen == [f"orders:{id}" for id in ids]


def test_a_function_that_is_known_may_say_any_start_while_nothing_has_landed(shops: Any, server: Any) -> None:
    shop, seen = shops(**ORDERED), []
    handle = lambda event: seen.append(event.id)  # noqa: E731
    shop.app.on(shop.stream, name="late")(handle)
    shop.harness.run_until_idle()
    shop.app.on(shop.stream, start="now", name="late")(handle)
    shop.harness.run_until_idle()
    ids = say(server, 2)
    shop.harness.run_until_idle()
    assert seen == [f"orders:{id}" for id in ids]


def test_a_start_that_is_no_time_is_told_so_also_on_a_stream(shops: Any) -> None:
    shop = shops(**ORDERED)
    shop.app.on(shop.stream, start="yesterday", name="late")(lambda event: None)
    with pytest.raises(UsageError, match="start='yesterday' is neither"):
        shop.harness.run_until_idle()


def test_a_worker_that_does_not_read_the_stream_itself_refuses_such_a_start_too(shops: Any, server: Any) -> None:
    shop = shops(**ORDERED)
    shop.harness.run_until_idle()
    shop.harness.restart()
    shop.app.on(shop.stream, start="now", name="late")(lambda event: None)
    with pytest.raises(UsageError, match="nothing of 'redis:orders' has landed yet"):
        asyncio.run(shop.app.serve(until_idle=True, exclude=["redis:orders"]))
