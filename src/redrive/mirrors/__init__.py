"""Copies of the letters elsewhere, which follow what happens to them: `files`, and those of `redrive.redis`.

Imported when asked for: most programs have none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from redrive.mirrors.port import Mirror

if TYPE_CHECKING:
    from redrive.mirrors.entry import Entry
    from redrive.mirrors.folders import files, read
    from redrive.mirrors.lines import Damage

_HOMES = {"Damage": "lines", "Entry": "entry", "files": "folders", "read": "folders"}

__all__ = ["Damage", "Entry", "Mirror", "files", "read"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__]
