"""A business write and its event in one transaction: both are there, or neither is."""

from typing import Any

from redrive import App, Ctx, Event

app = App("shop.db")
orders = app.log("orders")


def place_order(order_id: str, cents: int) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (:id, :cents, 'placed')", {"id": order_id, "cents": cents})
        orders.append("order.placed", {"cents": cents}, key=order_id, tx=tx)  # appended when the transaction commits
        if cents > 100_000:
            raise ValueError("too expensive")  # rolls back the row and the event


@app.on(orders, "order.placed", start="first")
def ship(event: Event[Any], ctx: Ctx) -> None:
    ctx.execute(
        "UPDATE orders SET state = 'shipped' WHERE id = :id", {"id": event.key}
    )  # runs when the event is settled


if __name__ == "__main__":
    with app.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, cents INTEGER, state TEXT)")
    place_order("order-1", 4200)
    try:
        place_order("order-2", 1_000_000)
    except ValueError as error:
        print(f"order-2 was refused: {error}")
    app.run(until_idle=True)
    with app.reader() as tx:
        print(tx.execute("SELECT id, cents, state FROM orders").fetchall())
    print([event.key for event in orders.read()])
