"""One query of a database that may be there, without opening it as a store: nothing is made, migrated or locked."""

from __future__ import annotations

import psycopg

from redrive.store.postgres.params import translate
from redrive.store.postgres.queries import queries
from redrive.store.sql import Row


def glance(url: str, query: str, values: dict[str, object], seconds: float) -> list[Row]:
    """The rows of a named query. psycopg.Error if the server does not answer within about so many seconds."""
    statement = translate(queries()[query], named=True)
    seconds = max(2, round(seconds))  # libpq takes no less
    with psycopg.connect(url, connect_timeout=seconds, autocommit=True) as connection:
        cursor = psycopg.RawCursor(connection)
        return cursor.execute(statement.text.encode(), statement.bind(values)).fetchall()
