"""The named statements of this store: SQLite's, but for those that Postgres needs in other words."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from redrive.store.sql import load_queries

_FOLDER = Path(__file__).parent


# These go by the server's clock; a test that has a clock of its own takes SQLite's words, which go by the caller's.
_CLOCKED = ("now", "lease_take", "lease_renew")


@cache
def queries(*, own_clock: bool = True) -> dict[str, str]:
    """By name; `redrive_x` is a table in the schema redrive. Parameters are as they are written there."""
    common = load_queries(_FOLDER.parent / "sqlite" / "queries.sql")
    texts = common | load_queries(_FOLDER / "queries.sql")
    if not own_clock:
        texts |= {name: common[name] for name in _CLOCKED}
    return {name: re.sub(r"\bredrive_(?=\w)", "redrive.", text) for name, text in texts.items()}
