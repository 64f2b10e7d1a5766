"""From Kafka to a database to Redis: each payment counts once, and each balance is published, in the order it had."""

import os
from typing import Any

from redrive import App, Event, Tx
from redrive.kafka import Topic
from redrive.redis import Stream

app = App("bank.db", name="bank")
payments = Topic(os.environ.get("KAFKA", "localhost:9092"), "payments")
balances = Stream(os.environ.get("REDIS", "redis://localhost:6379/0"), "balances", partitions=2)
app.outbox(balances, keep="7d")


@app.projection(payments, tables={"accounts": "name TEXT PRIMARY KEY, cents BIGINT NOT NULL"})
def book(event: Event[Any], tx: Tx) -> None:
    tx.execute(
        "INSERT INTO accounts VALUES (:name, :cents) "
        "ON CONFLICT (name) DO UPDATE SET cents = accounts.cents + excluded.cents",
        {"name": event.key, "cents": event.data["cents"]},
    )
    cents = tx.execute("SELECT cents FROM accounts WHERE name = :name", {"name": event.key}).fetchone()[0]
    tx.emit(balances, "balance.changed", {"cents": cents})  # stored with the row above; the worker carries it to Redis


if __name__ == "__main__":
    app.run()
