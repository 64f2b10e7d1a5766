"""One query of a file that may be there, without opening it as a store: nothing is made, migrated or locked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from redrive.store.sql import Row
from redrive.store.sqlite.transaction import queries


def glance(url: str, query: str, values: dict[str, object], seconds: float) -> list[Row]:
    """The rows of a named query. sqlite3.Error if the file `url` is not there or cannot be read within so many seconds.

    Without a write-ahead log nothing has the file open. Then it is read as it is, or SQLite would make a log and leave
    it.
    """
    path = Path(url).resolve()
    how = "mode=ro" if Path(f"{path}-wal").exists() else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, timeout=seconds)) as connection:
        return connection.execute(queries()[query], values).fetchall()
