"""The job everybody does: 50,000 orders of about 200 bytes, 1,000 customers, one upsert of a total per order.

The expected totals are computed from the generated list, never from a database. A run that ends with other totals
is an error, not a number.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

KEYS = 1_000
POISON_EVERY = 100  # one order in a hundred cannot be applied
TOTALS = "CREATE TABLE totals (key TEXT PRIMARY KEY, count INTEGER NOT NULL, amount INTEGER NOT NULL) WITHOUT ROWID"
UPSERT = (
    "INSERT INTO totals (key, count, amount) VALUES (?, 1, ?) "
    "ON CONFLICT (key) DO UPDATE SET count = totals.count + 1, amount = totals.amount + excluded.amount"
)


class Order(NamedTuple):
    """One generated event."""

    id: str
    key: str
    data: dict[str, Any]

    @property
    def is_poison(self) -> bool:
        return is_poison(self.data)


Totals = dict[str, tuple[int, int]]


class WrongTotals(AssertionError):
    """A contestant did not do the job."""


def is_poison(data: dict[str, Any]) -> bool:
    """By chance, so that no distance between two of them happens to fit what a contestant does between failures."""
    return int(data["amount"]) % POISON_EVERY == POISON_EVERY // 2


def orders(n: int, seed: int = 7) -> list[Order]:
    """The same list for every contestant."""
    dice = random.Random(seed)
    made = []
    for seq in range(n):
        key = f"customer-{dice.randrange(KEYS):04d}"
        order_id, event_id = (str(uuid.UUID(int=dice.getrandbits(128), version=4)) for _ in range(2))
        amount = dice.randrange(1, 10_000)
        made.append(Order(event_id, key, {"order_id": order_id, "customer": key, "amount": amount, "seq": seq,
                                          "note": "x" * 60}))  # fmt: skip
    return made


def payload(order: Order) -> str:
    """The event as the hand-written loop stores it."""
    return json.dumps(order.data)


def totals_of(done: Iterable[Order]) -> Totals:
    """What the table must contain when exactly these orders were applied once."""
    totals: Totals = {}
    for order in done:
        count, amount = totals.get(order.key, (0, 0))
        totals[order.key] = (count + 1, amount + order.data["amount"])
    return totals


def check(who: str, rows: Iterable[Sequence[Any]], expected: Totals) -> None:
    """Compare the rows (key, count, amount) of a contestant's table."""
    found = {key: (count, amount) for key, count, amount in rows}
    if found != expected:
        wrong = sum(1 for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        applied = sum(count for count, _ in found.values())
        wanted = sum(count for count, _ in expected.values())
        raise WrongTotals(
            f"{who}: {wrong} of {len(expected)} totals are wrong ({applied} events applied, not {wanted})"
        )
