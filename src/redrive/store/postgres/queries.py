"""The named statements of this store."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from redrive.store.sql import queries_of


@cache
def queries() -> dict[str, str]:
    """By name; `redrive_x` is a table in the schema redrive. Parameters are as they are written there."""
    texts = queries_of(Path(__file__).parent)
    return {name: re.sub(r"\bredrive_(?=\w)", "redrive.", text) for name, text in texts.items()}
