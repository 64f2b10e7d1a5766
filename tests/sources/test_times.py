"""A time that no calendar has: what a producer says becomes a letter, what a broker counts is held to the last day."""

from __future__ import annotations

from typing import Any

import pytest
from streamshop import say

from redrive.event import TIME_US_MAX
from redrive.kafka import Topic
from redrive.kafka.messages import Decoder

TOO_LATE = ["9223372036854775807", "253402300800000", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"]
WAYS = pytest.mark.parametrize("way", [{"partitions": 1}, {}], ids=["in order", "through a group"])


@WAYS
def test_a_time_that_is_none_is_a_letter_and_stops_nobody(shops: Any, server: Any, way: dict[str, Any]) -> None:
    shop = shops(**way)
    for time in TOO_LATE:
        server.xadd("orders", {"time": time, "data": "1"})
    cloud = {"ce_specversion": "1.0", "ce_id": "c", "ce_source": "/", "ce_type": "orders"}
    server.xadd("orders", {**cloud, "ce_time": TOO_LATE[2], "data": "1"})
    say(server, 1)
    shop.harness.run_until_idle()
    assert shop.reasons == ["undecodable"] * 5
    assert [said for _, _, said in shop.given] == ["{'n': 0}"]


@WAYS
@pytest.mark.parametrize("milliseconds", [253_402_300_800_000, 1_794_900_709_218_000_000, 2**64 - 1])
def test_an_entry_whose_id_is_no_time_is_an_event(
    shops: Any, server: Any, way: dict[str, Any], milliseconds: int
) -> None:
    shop, years = shops(**way), set()
    shop.meanwhile = lambda event: years.add(event.time.year)
    server.xadd("orders", {"data": "1"}, id=f"{milliseconds}-1")  # as some count nanoseconds
    server.xadd("orders", {"data": "{"}, id=f"{milliseconds}-2")
    shop.harness.run_until_idle()
    assert years == {9999}
    assert shop.reasons == ["undecodable"]


@pytest.mark.parametrize("headers", [None, [("trace", b"x")]], ids=["the quick way", "the long way"])
@pytest.mark.parametrize("stamp", [2**63 - 1, -1])
def test_a_message_whose_time_stamp_is_no_time_is_an_event(headers: Any, stamp: int) -> None:
    class Message:
        partition = offset = lambda self: 0
        key = value = lambda self: b"1"
        timestamp = lambda self: (1, stamp)  # noqa: E731

    message = Message()
    message.headers = lambda: headers  # type: ignore[attr-defined]
    (found,) = Decoder(Topic("localhost:9092", "orders"))([message])
    assert found.event.time_us == (TIME_US_MAX if stamp > 0 else 0)
