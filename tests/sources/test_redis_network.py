"""A stream behind a bad network: what was handed out and not heard of comes again, lands once, and costs no attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Event, Tx
from redrive.observe.signals import Halted
from redrive.redis import Stream
from redrive.testing import FaultProxy, Harness
from redrive.testing.servers import free_port

pytestmark = pytest.mark.sqlite("the network is the broker's; what lands is committed by the same statements")

KEYS, EACH = 3, 20
NEW = b"\r\n>\r\n"  # the last word of an XREADGROUP that asks for new entries
Arm = Callable[[FaultProxy], Any]


class Shop:
    """An app that reads through the proxy and writes down what each key was given, in the order it was."""

    def __init__(self, url: str, server: Any, proxy: FaultProxy, store: str | None, ordered: bool) -> None:
        self.server, self.proxy, self.ordered, self.said = server, proxy, ordered, 0
        self.app = App("/nonexistent/x.db", name="shop")
        # One that answers after a stall shall not take the test half a minute; a busy machine may need several tries.
        stream = Stream(proxy.at(url) + "?socket_timeout=0.5", "orders", partitions=1 if ordered else None)

        @self.app.projection(
            stream, order="key" if ordered else "none", tables={"given": "seq INTEGER, key TEXT, n INTEGER"}
        )
        def write_down(event: Event[Any], tx: Tx) -> None:
            tx.execute(
                "INSERT INTO given SELECT coalesce(max(seq), 0) + 1, :key, :n FROM given",
                {"key": event.key, "n": event.data},
            )

        self.harness = Harness(self.app, store)

    def say(self, number: int = EACH) -> None:
        for n in range(self.said, self.said + number):
            self.server.xadd("orders", {"type": "order.placed", "key": f"k{n % KEYS}", "data": str(n)})
        self.said += number

    def check(self) -> None:
        """As the producer has said it, once, and nobody was blamed."""
        given = self.harness.query("SELECT key, n FROM given ORDER BY seq")
        expected = [(f"k{n % KEYS}", n) for n in range(self.said)]
        assert sorted(given) == sorted(expected)
        if self.ordered:
            assert given == expected
        else:
            assert self.server.xpending("orders", "shop.orders")["pending"] == 0
        assert self.harness.letters() == []


@pytest.fixture
def proxy(valkey_url: str) -> Iterator[FaultProxy]:
    with FaultProxy(valkey_url) as proxy:
        yield proxy


@pytest.fixture
def shops(valkey_url: str, server: Any, proxy: FaultProxy, backend: str | None) -> Iterator[Callable[[bool], Shop]]:
    made: list[Shop] = []

    def make(ordered: bool) -> Shop:
        made.append(Shop(valkey_url, server, proxy, backend, ordered))
        return made[-1]

    yield make
    proxy.heal()
    for shop in made:
        assert [verdict for verdict in shop.app.operate().verify() if not verdict.sound] == []
        shop.harness.close()


IN_ORDER: dict[str, Arm] = {
    "the reply of XREAD is lost": lambda proxy: proxy.lose_reply(holding=b"XREAD"),
    "the reply of XREAD is cut in the middle": lambda proxy: proxy.cut(on="replies", after_bytes=1_500),
    "the reply of XREAD ends in the middle": lambda proxy: proxy.cut(on="replies", after_bytes=1_500, reset=False),
    "XREAD does not arrive": lambda proxy: proxy.cut(holding=b"XREAD"),
    "the server stalls for longer than we wait": lambda proxy: proxy.stall(on="replies", holding=b"order.placed"),
}
THROUGH_A_GROUP: dict[str, Arm] = {
    "the reply of XREADGROUP is lost": lambda proxy: proxy.lose_reply(holding=NEW),
    "the reply of XREADGROUP is lost in silence": lambda proxy: proxy.lose_reply(holding=NEW, silent=True),
    "the reply of XREADGROUP is cut in the middle": lambda proxy: proxy.cut(
        on="replies", holding=b"order.placed", nth=EACH // 2
    ),
    "XREADGROUP arrives late": lambda proxy: proxy.stall(holding=NEW),
    "the reply of XREADGROUP comes late": lambda proxy: proxy.stall(on="replies", holding=b"order.placed"),
    "the reply of XACK is lost": lambda proxy: proxy.lose_reply(holding=b"XACK"),
    "XACK does not arrive": lambda proxy: proxy.cut(holding=b"XACK"),
    "XACK arrives late": lambda proxy: proxy.stall(holding=b"XACK"),
    "the reply of XGROUP CREATE is lost": lambda proxy: proxy.lose_reply(holding=b"CREATE"),
}


@pytest.mark.parametrize(
    ("ordered", "arm"),
    [(True, arm) for arm in IN_ORDER.values()] + [(False, arm) for arm in THROUGH_A_GROUP.values()],
    ids=[*IN_ORDER, *THROUGH_A_GROUP],
)
def test_what_the_network_does_to_a_stream_costs_nothing(
    shops: Callable[[bool], Shop], proxy: FaultProxy, ordered: bool, arm: Arm
) -> None:
    shop = shops(ordered)
    fault = arm(proxy)
    shop.say()
    shop.harness.run_until_idle()
    assert fault.fired
    assert [fact for fact in shop.harness.signals if isinstance(fact, Halted)], "it is told"
    proxy.heal()
    shop.harness.advance("2m")
    shop.check()
    shop.say()
    shop.harness.run_until_idle()
    shop.check()


@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "through a group"])
def test_a_server_that_nobody_reaches_is_waited_for(
    shops: Callable[[bool], Shop], proxy: FaultProxy, ordered: bool
) -> None:
    shop = shops(ordered)
    shop.say()
    shop.harness.run_until_idle()
    proxy.refuse()
    proxy.cut(reset=False)
    shop.say()
    shop.harness.advance("10m")
    assert "redis:orders" in shop.harness.halted
    proxy.heal()
    shop.harness.advance("2m")
    assert shop.harness.halted == {}
    shop.check()


def test_who_stops_while_it_waits_for_a_server_hands_over_at_once(tmp_path: Path) -> None:
    """Another worker may reach it: it is not to wait until the lease has lapsed."""
    app, halted = App(str(tmp_path / "shop.db"), name="shop"), asyncio.Event()

    @app.projection(Stream(f"redis://127.0.0.1:{free_port()}/0", "orders", partitions=1), tables={"t": "n INTEGER"})
    def count(event: Event[Any], tx: Tx) -> None: ...

    async def stop_when_halted() -> None:
        loop = asyncio.get_running_loop()
        app.listen(lambda batch: [loop.call_soon_threadsafe(halted.set) for told in batch if isinstance(told, Halted)])
        async with app.running():
            await halted.wait()

    asyncio.run(stop_when_halted())
    with app.reader() as tx:
        owners = tx.execute("SELECT owner, halted IS NOT NULL FROM redrive_progress").fetchall()
    assert sorted(owners) == [(None, 0), (None, 1)]


@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "through a group"])
def test_a_server_that_nobody_reaches_is_asked_less_and_less_often(
    shops: Callable[[bool], Shop], proxy: FaultProxy, ordered: bool
) -> None:
    """To have the lease again is not to be well again: it was asked, and told of, every second for hours."""
    shop = shops(ordered)
    for _ in range(2):
        shop.say()
        shop.harness.run_until_idle()
        proxy.refuse()
        proxy.cut(reset=False)
        for _ in range(7):
            shop.harness.advance("31s")
        proxy.heal()
        shop.harness.advance("1m")
    pauses = [signal.wait for signal in shop.harness.signals if isinstance(signal, Halted)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 30]
    assert pauses.count(1) == 2
    shop.check()


@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "through a group"])
def test_cuts_at_every_place_of_the_talk_together_cost_nothing(
    shops: Callable[[bool], Shop], proxy: FaultProxy, ordered: bool
) -> None:
    shop = shops(ordered)
    for place in range(1, 10):
        for fault in (proxy.cut(nth=place), proxy.lose_reply(nth=place + 1)):
            for _ in range(place + 1):  # each round asks once at least
                shop.say(3)
                shop.harness.advance("1m")
            assert fault.fired
    shop.check()
