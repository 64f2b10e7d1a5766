"""Typed events: the data is checked when it is stored and when it is read, and old data is brought up to date."""

from typing import Any

import msgspec

import redrive
from redrive import App, Event, Tx

app = App("sales.db")
orders = app.log("orders")


@redrive.event("order.placed", schema=2)
class OrderPlaced(msgspec.Struct):
    cents: int
    currency: str = "EUR"


@app.upcast("order.placed", 1)
def euros_to_cents(data: dict[str, Any]) -> dict[str, Any]:
    """From the data of schema 1 to that of schema 2."""
    return {"cents": data["euros"] * 100}


@app.projection(orders, OrderPlaced, tables={"sums": "currency TEXT PRIMARY KEY, cents INTEGER NOT NULL"})
def sums(event: Event[OrderPlaced], tx: Tx) -> None:
    order = event.data  # an OrderPlaced, whatever schema it was stored with
    tx.execute(
        "INSERT INTO sums VALUES (?, ?) ON CONFLICT (currency) DO UPDATE SET cents = sums.cents + excluded.cents",
        (order.currency, order.cents),
    )


@redrive.event("order.placed", schema=1)
class OrderPlacedLastYear(msgspec.Struct):
    euros: int


if __name__ == "__main__":
    last_year = App("sales.db")  # stands for the former version of this program
    last_year.log("orders").append(OrderPlacedLastYear(euros=20), key="order-1")
    last_year.close()

    orders.append(OrderPlaced(cents=1250), key="order-2")
    orders.append(OrderPlaced(cents=999, currency="USD"), key="order-3")
    app.run(until_idle=True)
    with app.reader() as tx:
        for currency, cents in tx.execute("SELECT currency, cents FROM sums ORDER BY currency"):
            print(f"{cents / 100:.2f} {currency}")
