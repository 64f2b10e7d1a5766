"""Testing your own functions: no waiting, no real clock, no real store. Run it with `pytest test_shop.py`."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi_app import OrderPlaced, orders, shop

from redrive import App, Ctx, Event, retry
from redrive.testing import FakeCtx, Harness, make_event

app = App("payments.db")  # under a harness this file is never opened
payments, receipts = app.log("payments"), app.log("receipts")
bank: dict[str, Any] = {"is_down": False, "charged": []}


@app.on(payments, "payment.due", start="first", retry=retry(attempts=3, wait="1m", jitter=0))
def charge(event: Event[Any], ctx: Ctx) -> None:
    if bank["is_down"]:
        raise ConnectionError("the bank does not answer")
    bank["charged"].append(event.data["cents"])
    ctx.emit(receipts, "payment.charged", event.data)


@pytest.fixture
def harness() -> Iterator[Harness]:
    bank.update(is_down=False, charged=[])
    with Harness(app) as harness:
        yield harness


def test_orders_of_a_customer_add_up() -> None:
    with Harness(shop) as harness:
        for cents in (100, 250):
            harness.append(orders, OrderPlaced(customer="ada", cents=cents), key="ada")
        harness.run_until_idle()
        assert harness.query("SELECT customer, cents FROM revenue") == [("ada", 350)]


def test_while_the_bank_is_down_payments_wait_in_order(harness: Harness) -> None:
    bank["is_down"] = True
    for cents in (1, 2, 3):
        harness.append(payments, "payment.due", {"cents": cents}, key="ada")
    harness.run_until_idle()
    assert [letter.state for letter in harness.letters()] == ["retrying"] * 3
    bank["is_down"] = False
    harness.advance("1m")  # the first retry is due
    assert bank["charged"] == [1, 2, 3]
    assert harness.emitted(receipts) == [("payment.charged", {"cents": cents}) for cents in (1, 2, 3)]


def test_a_payment_that_fails_three_times_is_a_dead_letter(harness: Harness) -> None:
    bank["is_down"] = True
    harness.append(payments, "payment.due", {"cents": 1}, key="ada")
    harness.advance("10m")
    [letter] = harness.letters("dead")
    assert (letter.reason, letter.attempts, letter.error_type) == ("attempts_exhausted", 3, "ConnectionError")


def test_a_function_can_be_called_by_hand() -> None:
    bank.update(is_down=False, charged=[])
    event = make_event("payment.due", {"cents": 42}, key="ada")
    ctx = FakeCtx(event)
    charge(event, ctx)
    assert ctx.emitted(receipts) == [("payment.charged", {"cents": 42})]
