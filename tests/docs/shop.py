"""The shop that the commands in the documentation are tried on.

It does not know pounds, and while a file `bank_is_down` lies beside it the bank does not answer.
"""

from pathlib import Path
from typing import Any

from redrive import App, Ctx, Event, Reject, Tx, no_retry, retry

app = App("shop.db")
orders, receipts, logins = app.log("orders"), app.log("receipts"), app.log("logins")

RATES = {"EUR": 1.0, "USD": 0.92}
REVENUE = "customer TEXT PRIMARY KEY, cents INTEGER NOT NULL"
ADD = """INSERT INTO revenue VALUES (:who, :cents)
    ON CONFLICT (customer) DO UPDATE SET cents = revenue.cents + excluded.cents"""


@app.projection(orders, "order.placed", tables={"revenue": REVENUE}, retry=no_retry)
def revenue(event: Event[Any], tx: Tx) -> None:
    """Fails for a currency that it does not know."""
    cents = round(event.data["cents"] * RATES[event.data["currency"]])
    tx.execute(ADD, {"who": event.key, "cents": cents})


@app.on(orders, "order.placed", start="first", retry=no_retry)
async def charge(event: Event[Any], ctx: Ctx) -> None:
    """Fails while the bank is down, and for good if there is nothing to pay."""
    if event.data["cents"] <= 0:
        raise Reject("the amount must be positive")
    if Path("bank_is_down").exists():
        raise ConnectionError("the bank does not answer")
    ctx.emit(receipts, "payment.charged", {"cents": event.data["cents"]})


@app.on(logins, "login.failed", start="first", key_by="user")
def watch_for_guessing(event: Event[Any], ctx: Ctx) -> None:
    """Never fails."""
    ctx.state["failures"] = ctx.state.get("failures", 0) + 1


@app.on(app.log("reminders"), start="first", retry=retry(attempts=9, wait="12h", wait_max="12h"))
def remind(event: Event[Any], ctx: Ctx) -> None:
    """Fails, and is retried much later."""
    raise ConnectionError("the mail server does not answer")
