"""The named statements of this store: SQLite's, but for those that Postgres needs in other words."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from redrive.store.sql import load_queries

_FOLDER = Path(__file__).parent
_SQLITE_ONLY = re.compile(r"\bredrive_(sieve|spans)\b")  # what two transactions at a time could not write


@cache
def queries() -> dict[str, str]:
    """By name; `redrive_x` is a table in the schema redrive. Parameters are as they are written there."""
    theirs = load_queries(_FOLDER.parent / "sqlite" / "queries.sql")
    texts = {name: text for name, text in theirs.items() if not _SQLITE_ONLY.search(text)}
    texts |= load_queries(_FOLDER / "queries.sql")
    return {name: re.sub(r"\bredrive_(?=\w)", "redrive.", text) for name, text in texts.items()}
