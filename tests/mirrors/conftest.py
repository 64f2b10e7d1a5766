"""A shop whose handler fails on request, and whose letters are mirrored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from redrive import App, Event, Reject, mirrors
from redrive.mirrors import Mirror
from redrive.testing import Harness


class Shop:
    """`bad` holds the numbers that cannot be charged, `broken` those that cannot be charged now."""

    def __init__(self, store: str | None, *to: Mirror, only: tuple[str, ...] = ()) -> None:
        self.app = App("/nonexistent/x.db", name="shop")
        self.orders = self.app.log("orders")
        self.bad: set[int] = set()
        self.broken: set[int] = set()

        @self.app.on(self.orders, start="first")
        def charge(event: Event[Any], ctx: Any) -> None:
            if event.data["n"] in self.broken:
                raise ConnectionError("the bank does not answer")
            if event.data["n"] in self.bad:
                raise Reject(f"no charge for {event.data['n']}")

        @self.app.on(self.orders, "order.audited", start="first", order="none")
        def audit(event: Event[Any], ctx: Any) -> None:
            raise Reject("never")

        if to:
            self.app.mirror(to=to, only=only)
        self.harness = Harness(self.app, store)
        self.store = self.harness.path

    def order(self, n: int, key: str | None = "ada", kind: str = "order.placed") -> Event[Any]:
        id = f"order {n} of {self.store}"  # stores under test give the same ids
        return self.harness.append(self.orders, kind, {"n": n}, key=key, id=id)

    def run(self) -> None:
        self.harness.run_until_idle()

    @property
    def desk(self) -> Any:
        return self.app.operate("ada").letters

    def lag(self, name: str) -> int:
        (found,) = [one for one in self.app.operate().status() if one.subscription == name]
        return int(found.lag_events)


@pytest.fixture
def shops(backend: str | None) -> Iterator[Any]:
    """Make a shop on a store of its own; at the end the books must balance."""
    made: list[Shop] = []

    def make(*to: Mirror, **how: Any) -> Shop:
        made.append(Shop(backend, *to, **how))
        return made[-1]

    yield make
    for shop in made:
        assert [verdict for verdict in shop.app.operate().verify() if not verdict.sound] == []
        shop.harness.close()


def told(place: Any) -> list[tuple[int, str]]:
    """What a mirror in files says: (letter, state), each once; nothing of it may be damaged."""
    entries = {}
    for one in mirrors.read(place):
        assert isinstance(one, mirrors.Entry), one
        entries.setdefault(one.key, one)
    return [(one.letter, one.state) for one in entries.values()]
