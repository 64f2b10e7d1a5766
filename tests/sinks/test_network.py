"""A delivery through a bad network: each event arrives in its key's order, and one that comes again says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import App, retry, webhook
from redrive.testing import FaultProxy
from redrive.testing.faults import Trap
from redrive.testing.web import HttpServer

KEYS, NUMBER = 3, 12
POST = b"POST /hook"
FAULTS: dict[str, tuple[Callable[[FaultProxy, int], Trap], bool]] = {  # and whether the request has arrived
    "the answer is lost": (lambda proxy, nth: proxy.lose_reply(holding=POST, nth=nth), True),
    "the answer never comes": (lambda proxy, nth: proxy.lose_reply(holding=POST, nth=nth, silent=True), True),
    "the request is cut": (lambda proxy, nth: proxy.cut(holding=POST, nth=nth), False),
    "the request is cut in its body": (lambda proxy, nth: proxy.cut(holding=b'{"n"', nth=nth), False),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_network_loses_is_sent_again_as_what_it_was(server: HttpServer, tmp_path: Path, fault: str) -> None:
    lose, has_arrived = FAULTS[fault]
    timeout = "500ms" if "never" in fault else "60s"  # a busy machine is not to be taken for a lost answer
    app = App(str(tmp_path / "shop.db"))
    orders = app.log("orders")
    for n in range(NUMBER):
        orders.append("order.placed", {"n": n}, key=f"k{n % KEYS}", id=f"order-{n}")
    with FaultProxy(server.url) as proxy:
        app.deliver(
            orders, to=webhook(proxy.at(f"{server.url}/hook"), name="crm", timeout=timeout, allow_private=True),
            start="first", retry=retry(attempts=50, wait="0s", wait_max="0s"),  # due at once: else it could seem idle
        )  # fmt: skip
        faults = [lose(proxy, nth) for nth in (1, 4, 9)]
        app.run(until_idle=True)
    assert all(one.fired for one in faults)
    came = [(int(one.body.decode().strip('{"n: }')), one.headers["idempotency-key"]) for one in server.requests]
    assert {key for _, key in came} == {f"order-{n}" for n in range(NUMBER)}
    assert all(key == f"order-{n}" for n, key in came), "the same name however often it comes"
    assert len(came) == NUMBER + len(faults) * has_arrived or "never" in fault
    for key in range(KEYS):
        mine = [n for n, _ in came if n % KEYS == key]
        assert mine == sorted(mine), "what comes again comes before the next of its key"
    desk = app.operate()
    assert desk.letters.list("dead") == [] and desk.letters.list("retrying") == []
    assert [verdict for verdict in desk.verify() if not verdict.sound] == []
    app.close()
