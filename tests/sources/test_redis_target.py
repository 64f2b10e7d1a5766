"""Redis and Valkey streams as targets: what is delivered there is read back as the event it was, in key order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from oddities import ODD

from redrive import App, Event, Sink, UsageError, retry
from redrive.policy.partitions import place
from redrive.redis import Stream
from redrive.redis.sending import StreamSender
from redrive.sinks import SomeFailed
from redrive.sinks.brokers import BrokerDown, TooLarge
from redrive.testing import Harness
from redrive.testing.brokers import Valkey
from redrive.testing.contracts import SinkContract
from redrive.testing.fakes import make_event
from redrive.testing.proxy import FaultProxy
from redrive.types import EventTypes


@pytest.fixture(scope="module")
def mortal() -> Iterator[Valkey]:
    """A server that may be killed, and remembers."""
    server = Valkey(durable=True)
    yield server
    server.close()


class TestStream(SinkContract):
    """The contract of every sink, on a server of its own."""

    can_hang = True
    partitions: int | None = None

    @pytest.fixture(autouse=True)
    def _server(self, mortal: Valkey) -> Iterator[None]:
        self.mortal, self.patience = mortal, 20.0
        with redis.Redis.from_url(mortal.url) as client:
            self.client = client
            client.flushall()
            client.execute_command("ACL", "SETUSER", "ada", "on", ">hunter2", "~*", "+@all")
            yield

    def make_sink(self) -> Sink:
        stream = Stream(self.mortal.url.replace("//", "//ada:hunter2@"), "out", partitions=self.partitions)
        sink = stream.sink("mirror")
        sink.log, sink.timeout = "orders", self.patience
        return sink

    def delivered(self) -> list[str]:
        return [fields[b"ce_id"].decode() for _, fields in self.client.xrange("out")]

    def secrets(self) -> list[str]:
        return ["hunter2"]

    def break_down(self) -> None:
        self.mortal.kill()

    def hang(self) -> None:
        self.patience = 0.3  # of the sink that is made now: no answer will come
        self.client.client_pause(600_000, all=False)

    def recover(self) -> None:
        if self.mortal.is_running:
            self.client.client_unpause()
        else:
            self.mortal.start()
            self.client.execute_command("ACL", "SETUSER", "ada", "on", ">hunter2", "~*", "+@all")


def entries(server: Any, stream: str = "out") -> list[dict[bytes, bytes]]:
    return [fields for _, fields in server.xrange(stream)]


def ids(server: Any, stream: str = "out") -> list[str]:
    return [fields[b"ce_id"].decode() for fields in entries(server, stream)]


@pytest.fixture
def app() -> App:
    return App("/nonexistent/x.db", name="shop")


def test_a_log_is_delivered_to_a_stream_in_key_order(app: App, server: Any, valkey_url: str, backend: Any) -> None:
    orders = app.log("orders")
    app.deliver(orders, to=[Stream(valkey_url, "out", partitions=1)], start="first")
    with Harness(app, backend) as harness:
        sent = [harness.append(orders, "order.placed", {"n": n}, key=f"k{n % 3}").id for n in range(1_200)]
        harness.run_until_idle()
        found = ids(server)
        assert sorted(found) == sorted(sent)
        for key in range(3):
            assert [one for one in found if one in sent[key::3]] == sent[key::3]
        (row,) = app.operate().status()
        assert (row.subscription, row.lag_events) == ("orders:to:redis:out", 0)


def test_from_stream_to_stream_an_event_stays_what_it_is(app: App, server: Any, valkey_url: str, backend: Any) -> None:
    middle, end = Stream(valkey_url, "middle", partitions=1), Stream(valkey_url, "end", partitions=2)
    orders = app.log("orders")
    app.deliver(orders, to=middle, start="first")
    app.deliver(middle, to=end)
    seen = []
    app.on(end, name="look")(lambda event, ctx: seen.append(event))
    with Harness(app, backend) as harness:
        sent = [harness.append(orders, "order.placed", **{"data": 0, **one}) for one in ODD]
        for _ in range(3):  # nobody in here hears of it when something has arrived at the server
            harness.run_until_idle()
        assert harness.letters() == []

    def content(event: Any) -> Any:
        return event.id, event.type, event.key, event.schema, event.time_us, event.headers, event.data_raw

    assert sorted(map(content, seen), key=str) == sorted(map(content, sent), key=str)


def test_the_schema_of_a_typed_event_comes_along(server: Any, valkey_url: str) -> None:
    stream = Stream(valkey_url, "out", partitions=1)
    sink = stream.sink("mirror")
    event: Event[Any] = Event(1, "one", "order.placed", "a", 1, 3, 1_000_000, None, b"1", EventTypes())
    asyncio.run(sink.send([event]))
    (message,) = stream.open("group").read({}, 10, 0.0)
    assert (message.event.schema, message.event.id, message.event.key) == (3, "one", "a")


def test_a_key_always_goes_to_the_same_of_several_streams(server: Any, valkey_url: str) -> None:
    events = [make_event("order.placed", n, key=f"k{n % 7}", id=f"id-{n}") for n in range(70)]
    asyncio.run(Stream(valkey_url, "out", partitions=3).sink("mirror").send(events))
    for number in range(3):
        assert ids(server, f"out:{number}") == [e.id for e in events if place(e.key or "", 3) == number]


def test_a_target_is_trimmed_if_it_is_to_be(server: Any, valkey_url: str) -> None:
    sink = Stream(valkey_url, "out", maxlen=100).sink("mirror")
    for first in range(0, 2_000, 500):
        asyncio.run(
            sink.send([make_event("order.placed", n, key="k", id=f"id-{n}") for n in range(first, first + 500)])
        )
    assert 100 <= server.xlen("out") < 500
    with pytest.raises(UsageError, match="maxlen"):
        Stream(valkey_url, "out", maxlen=0)


def test_a_server_that_is_full_takes_nothing_of_a_batch_and_the_rest_waits(
    app: App, server: Any, valkey_url: str, backend: Any
) -> None:
    orders = app.log("orders")
    keen = retry(attempts=50, wait="1s", wait_max="5s")
    app.deliver(orders, to=Stream(valkey_url, "out", partitions=1), start="first", retry=keen)
    with Harness(app, backend) as harness:
        server.config_set("maxmemory", 1)
        try:
            sent = [harness.append(orders, "order.placed", {"n": n}, key="k").id for n in range(20)]
            harness.run_until_idle()
            assert ids(server) == []
            assert {(letter.state, letter.error_type) for letter in harness.letters() if letter.attempts} == {
                ("retrying", "redrive.sinks.brokers.BrokerDown")
            }
        finally:
            server.config_set("maxmemory", 0)
        harness.advance("5m")
        assert ids(server) == sent


def test_a_key_that_is_no_stream_is_told_and_the_other_streams_go_on(server: Any, valkey_url: str) -> None:
    events = [make_event("order.placed", n, key=f"k{n}", id=f"id-{n}") for n in range(20)]
    wrong = [at for at, event in enumerate(events) if place(event.key or "", 2) == 0]
    server.set("out:0", "text")
    with pytest.raises(SomeFailed) as caught:
        asyncio.run(Stream(valkey_url, "out", partitions=2).sink("mirror").send(events))
    assert set(caught.value.errors) == set(wrong)
    assert all(isinstance(error, BrokerDown) and "WRONGTYPE" in str(error) for error in caught.value.errors.values())
    assert len(ids(server, "out:1")) == 20 - len(wrong)


def test_what_was_read_from_a_broker_and_is_no_event_is_not_sent_on(
    app: App, server: Any, valkey_url: str, backend: Any
) -> None:
    source, target = Stream(valkey_url, "in", partitions=1), Stream(valkey_url, "out", partitions=1)
    app.deliver(source, to=target)
    server.xadd("in", {"id": "a", "key": "k", "type": "t", "data": "1"})
    server.xadd("in", {"id": "b", "key": "k", "type": "t", "data": "{"})
    server.xadd("in", {"id": "c", "key": "k", "type": "t", "data": "3"})
    server.xadd("in", {"id": "d", "key": "other", "type": "t", "data": "4"})
    with Harness(app, backend) as harness:
        harness.run_until_idle()
        assert sorted(ids(server)) == ["a", "d"]  # what follows the letter in its key waits behind it
        (letter,) = harness.letters("dead")
        assert letter.reason == "undecodable"
        app.operate().letters.edit(letter.id, 2, "what was meant")
        harness.replay()
        found = entries(server)
        assert [one[b"data"] for one in found if one[b"ce_partitionkey"] == b"k"] == [b"1", b"2", b"3"]


def test_what_cannot_be_read_back_is_not_sent(valkey_url: str, app: App) -> None:
    with pytest.raises(UsageError, match="Make another one"):
        app.deliver(app.log("orders"), to=Stream(valkey_url, "out", format="json"))


def test_an_event_that_the_server_will_never_take_is_rejected() -> None:
    sender = StreamSender(Stream("redis://localhost:1", "out"), "orders", 1.0)
    too_large = redis.ResponseError("Protocol error: invalid bulk length")
    assert isinstance(sender._trouble(too_large), TooLarge)
    assert isinstance(sender._trouble(redis.ConnectionError("reset")), BrokerDown)


def test_nothing_goes_past_what_the_server_did_not_take(server: Any, valkey_url: str) -> None:
    """A list that takes several transactions: where one fails, the rest is not tried."""
    events = [make_event("order.placed", "x" * 300_000, key="k", id=f"id-{n}") for n in range(10)]
    sender = StreamSender(Stream(valkey_url, "out"), "orders", 10.0)
    tried = []

    def add(part: Any) -> Any:
        tried.append([index for index, _ in part])
        if len(tried) == 2:
            server.config_set("maxmemory", 1)
        return StreamSender._add(sender, part)

    sender._add = add  # type: ignore[method-assign]
    try:
        with pytest.raises(SomeFailed) as caught:
            sender.send(events)
    finally:
        server.config_set("maxmemory", 0)
    assert tried == [[0, 1, 2], [3, 4, 5]]
    assert ids(server) == ["id-0", "id-1", "id-2"]
    assert set(caught.value.errors) == set(range(3, 10))


def test_an_event_too_large_for_the_server_is_a_letter_and_the_others_arrive(
    app: App, server: Any, valkey_url: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Valkey takes all that a log takes; what stands between us and the server may not."""
    ask = StreamSender._ask

    def through_a_proxy(sender: StreamSender, commands: Any) -> list[Any]:
        if any(len(command) > 100_000 for _, command in commands):
            raise sender._trouble(redis.ResponseError("ERR max request size exceeded"))
        return ask(sender, commands)

    monkeypatch.setattr(StreamSender, "_ask", through_a_proxy)
    outbox = app.outbox(Stream(valkey_url, "out", partitions=1))
    with Harness(app, backend) as harness:
        sent = [outbox.append("x", "y" * (200_000 if n == 4 else 1), key=f"k{n % 2}").id for n in range(10)]
        harness.run_until_idle()
        (letter,) = harness.letters("dead")
        assert (letter.event_id, letter.reason, letter.attempts) == (sent[4], "rejected", 1)
        assert set(ids(server)) == {*sent[1::2], sent[0], sent[2]}


def test_a_user_who_may_not_begin_a_transaction_is_told(server: Any, valkey_url: str) -> None:
    server.execute_command("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all", "-multi")
    sink = Stream(valkey_url.replace("//", "//bob:pw@"), "out").sink("mirror")
    with pytest.raises(BrokerDown, match="multi"):
        asyncio.run(sink.send([make_event("x", 1, key="k")]))


# ------------------------------------------------------------ the network


@pytest.mark.parametrize(
    ("fault", "twice"),
    [
        (lambda proxy: proxy.lose_reply(holding=b"EXEC"), True),  # the server has done it, and nobody hears of it
        (lambda proxy: proxy.lose_reply(holding=b"MULTI"), True),
        (lambda proxy: proxy.cut(holding=b"EXEC"), False),  # the server has heard it all, but not that it is meant
        (lambda proxy: proxy.cut(after_bytes=1_500), False),
        (lambda proxy: proxy.cut("replies", holding=b"QUEUED", nth=3), True),
    ],
    ids=["a lost answer", "no answer at all", "cut before the end", "cut in the middle", "cut while it answers"],
)
def test_what_was_not_answered_is_sent_again_with_its_id(
    fault: Any, twice: bool, app: App, server: Any, valkey_url: str
) -> None:
    with FaultProxy(valkey_url) as proxy, Harness(app) as harness:
        outbox = app.outbox(Stream(proxy.at(valkey_url), "out", partitions=1))
        trap = fault(proxy)
        sent = [outbox.append("x", n, key=f"k{n % 2}").id for n in range(20)]
        harness.run_until_idle()
        assert trap.fired
        harness.advance("5m")
        assert harness.letters("dead") == []
        found = ids(server)
        assert (len(found) > len(sent)) == twice
        first = list(dict.fromkeys(found))
        assert sorted(first) == sorted(sent)
        for key in range(2):
            assert [one for one in first if one in sent[key::2]] == sent[key::2]


def test_a_server_that_hangs_holds_nobody_for_longer_than_its_time(server: Any, valkey_url: str) -> None:
    with FaultProxy(valkey_url) as proxy:
        sink = Stream(proxy.at(valkey_url), "out").sink("mirror")
        sink.timeout = 0.3
        proxy.stall()
        with pytest.raises(BrokerDown):
            asyncio.run(sink.send([make_event("x", 1, key="k", id="one")]))
        proxy.heal()
        asyncio.run(sink.send([make_event("x", 1, key="k", id="one")]))
        asyncio.run(sink.close())
    assert set(ids(server)) == {"one"}
