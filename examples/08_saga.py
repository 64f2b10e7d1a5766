"""A saga with a time-out: an order that is not paid in 30 minutes is cancelled."""

from typing import Any

from redrive import App, Ctx, Event
from redrive.testing import Harness

app = App("shop.db")
orders = app.log("orders")


@app.on(orders, "order.placed", "payment.*", start="first")
def await_payment(event: Event[Any], ctx: Ctx) -> None:
    match event.type:
        case "order.placed":  # the time-out is stored with the state, in one transaction
            ctx.state["timeout"] = ctx.emit(orders, "payment.overdue", after="30m")
        case "payment.received":
            in_time = ctx.cancel(orders, ctx.state["timeout"])
            ctx.emit(orders, "order.confirmed" if in_time else "payment.refunded")
        case "payment.overdue":
            ctx.emit(orders, "order.cancelled")


if __name__ == "__main__":
    with Harness(app) as harness:  # a store of its own, in virtual time: nobody waits for half an hour
        for order in ("order-1", "order-2"):
            harness.append(orders, "order.placed", {"cents": 4200}, key=order)
        harness.advance("10m")
        harness.append(orders, "payment.received", key="order-1")
        harness.advance("20m")
        harness.append(orders, "payment.received", key="order-2")  # too late
        harness.run_until_idle()
        for event in orders.read():
            print(event.time.strftime("%H:%M"), event.key, event.type)
