"""redrive inside FastAPI: requests append events, the functions run in the background of the same process.

Try it with `pip install fastapi uvicorn` and `uvicorn fastapi_app:api`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, PositiveInt

import redrive
from redrive import App, Event, Tx

shop = App("shop.db", name="shop")
orders = shop.log("orders")


@redrive.event("order.placed")
class OrderPlaced(BaseModel):
    customer: str
    cents: PositiveInt


@shop.projection(orders, OrderPlaced, tables={"revenue": "customer TEXT PRIMARY KEY, cents INTEGER NOT NULL"})
def revenue(event: Event[OrderPlaced], tx: Tx) -> None:
    tx.execute(
        "INSERT INTO revenue VALUES (?, ?) ON CONFLICT (customer) DO UPDATE SET cents = revenue.cents + excluded.cents",
        (event.data.customer, event.data.cents),
    )


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    async with shop.running():  # installs no signal handlers and no log handlers; the server has its own
        yield


api = FastAPI(lifespan=lifespan)


@api.post("/orders", status_code=202)
async def place(order: OrderPlaced) -> dict[str, Any]:
    stored = await orders.append_async(order, key=order.customer)  # requests that wait together share one commit
    return {"id": stored.id, "position": stored.position}


@api.get("/revenue")
def show_revenue() -> dict[str, int]:  # a plain def: FastAPI runs it on a thread, reading blocks nobody
    with shop.reader() as tx:
        return dict(tx.execute("SELECT customer, cents FROM revenue").fetchall())
