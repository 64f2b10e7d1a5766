"""Statements built by SQLAlchemy Core, run in the projection's own transaction.

It needs a Postgres: `REDRIVE_STORE=postgresql://… python 07_sqlalchemy.py`.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, Table, Text, select
from sqlalchemy.dialects.postgresql import insert, psycopg

from redrive import App, Event, Tx

app = App()  # the address is in REDRIVE_STORE
orders = app.log("orders")
dialect = psycopg.dialect()  # type: ignore[no-untyped-call]
revenue = Table("revenue", MetaData(), Column("day", Text, primary_key=True), Column("cents", BigInteger))


def run(tx: Tx, statement: Any) -> Any:
    """SQLAlchemy writes the text, the driver's connection runs it; redrive commits."""
    compiled = statement.compile(dialect=dialect)
    return tx.connection.execute(str(compiled), compiled.params)


@app.projection(orders, "order.placed", tables={"revenue": "day TEXT PRIMARY KEY, cents BIGINT NOT NULL"})
def add_up(event: Event[Any], tx: Tx) -> None:
    row = insert(revenue).values(day=event.data["day"], cents=event.data["cents"])
    added = {"cents": revenue.c.cents + row.excluded.cents}
    run(tx, row.on_conflict_do_update(index_elements=[revenue.c.day], set_=added))


if __name__ == "__main__":
    orders.append("order.placed", {"day": "2026-11-16", "cents": 4200})
    orders.append("order.placed", {"day": "2026-11-16", "cents": 1000})
    orders.append("order.placed", {"day": "2026-11-17", "cents": None})  # refused by the table: a letter
    app.run(until_idle=True)
    with app.reader() as tx:
        print(run(tx, select(revenue)).fetchall())
