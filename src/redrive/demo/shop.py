"""A small shop: it counts its revenue and ships its orders. Run it with `redrive run shop:app`."""

import asyncio
import random
from typing import Any

from redrive import App, Ctx, Event, Reject, Tx, retry

app = App("shop.db")
orders = app.log("orders")  # a customer is a key: what they order is applied in this order
parcels = app.log("parcels")

RATES = {"EUR": 1.0, "USD": 0.92}
CARRIERS = {"DE": "Post", "GB": "Royal Mail", "US": "Pony Express"}

REVENUE = "customer TEXT PRIMARY KEY, orders INTEGER NOT NULL, cents INTEGER NOT NULL"
ADD = """
    INSERT INTO revenue VALUES (:customer, 1, :cents)
    ON CONFLICT (customer) DO UPDATE SET orders = revenue.orders + 1, cents = revenue.cents + excluded.cents
"""


@app.projection(orders, "order.placed", tables={"revenue": REVENUE}, retry=retry(attempts=3, wait="50ms"))
def revenue(event: Event[Any], tx: Tx) -> None:
    """Touches nothing but the database: its rows and its progress are one transaction."""
    cents = round(event.data["cents"] * RATES[event.data["currency"]])
    tx.execute(ADD, {"customer": event.key, "cents": cents})


@app.on(orders, "order.placed", start="first", concurrency=8, retry=retry(attempts=10, wait="20ms", wait_max="200ms"))
async def ship(event: Event[Any], ctx: Ctx) -> None:
    """Talks to the world, which is slow and sometimes deaf; what it emits commits together with its progress."""
    country = event.data["country"]
    if country not in CARRIERS:
        raise Reject(f"no carrier ships to {country!r}")  # trying again would not help: a dead letter at once
    await book_parcel(CARRIERS[country], ctx.idempotency_key)
    ctx.emit(parcels, "parcel.sent", {"order": event.data["order"], "carrier": CARRIERS[country]})


async def book_parcel(carrier: str, idempotency_key: str) -> None:
    """An HTTP call, in a real shop; with the same key the carrier books one parcel, however often it is asked."""
    await asyncio.sleep(0.002)
    if carrier == "Post" and random.random() < 0.04:
        raise ConnectionError("the Post does not answer")
