"""A projection: every order is counted once, however often this program is stopped and started."""

from typing import Any

from redrive import App, Event, Tx

app = App("shop.db")
orders = app.log("orders")


@app.projection(orders, "order.placed", tables={"revenue": "day TEXT PRIMARY KEY, cents INTEGER NOT NULL"})
def revenue(event: Event[Any], tx: Tx) -> None:
    tx.execute(
        "INSERT INTO revenue VALUES (:day, :cents)"
        " ON CONFLICT (day) DO UPDATE SET cents = revenue.cents + excluded.cents",
        {"day": event.time.date().isoformat(), "cents": event.data["cents"]},
    )


if __name__ == "__main__":
    orders.append("order.placed", {"cents": 4200}, key="order-1")
    app.run()
