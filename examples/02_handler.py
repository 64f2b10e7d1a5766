"""A handler: it talks to the world, is tried again in key order, and what it cannot do is kept."""

import asyncio
from typing import Any

from redrive import App, Ctx, Event, Reject, retry

app = App("shop.db")
payments, receipts = app.log("payments"), app.log("receipts")


async def ask_bank(cents: int, idempotency_key: str) -> str:
    await asyncio.sleep(0.01)  # your HTTP call; the bank charges once per key, however often it is asked
    return f"receipt for {cents} cents"


@app.on(payments, "payment.due", start="first", retry=retry(attempts=5, wait="1s", wait_max="5m"), timeout="30s")
async def charge(event: Event[Any], ctx: Ctx) -> None:
    if event.data["cents"] <= 0:
        raise Reject("the amount must be positive")  # a dead letter at once
    receipt = await ask_bank(event.data["cents"], ctx.idempotency_key)
    ctx.emit(receipts, "payment.charged", {"receipt": receipt})  # commits together with the event


if __name__ == "__main__":
    payments.append("payment.due", {"cents": 4200}, key="customer-1")
    payments.append("payment.due", {"cents": 0}, key="customer-2")
    app.run()
